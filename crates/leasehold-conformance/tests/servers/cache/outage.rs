//! Redis is away, hangs, or comes back empty.

use std::sync::Arc;
use std::time::Duration;

use leasehold::cache::strategy::{Invalidating, Source, Strategy};
use leasehold::cache::{CacheError, Outage, ReadThrough};
use leasehold_conformance::world::SOON;
use leasehold_testbed::redis::{Reply, Resp};
use leasehold_testbed::{Data, Proxy, Server, eventually, redis};

use crate::cache::site::{Db, LONG, Point, cache_at, spawn_read, text};

async fn get(cache: &ReadThrough, db: &Db) -> Result<Option<Vec<u8>>, CacheError> {
    cache.get_or_load("k", || db.load("k")).await
}

/// Reads until something was found in the cache.
async fn cached_again(cache: &ReadThrough, db: &Db, value: &str) {
    eventually(SOON, || async {
        let before = cache.stats().hits;
        let got = get(cache, db).await.map_err(|error| error.to_string())?;
        assert_eq!(text(Ok(got)), value);
        if cache.stats().hits > before { Ok(()) } else { Err("no hit".to_owned()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_redis_reads_go_to_the_database_or_fail_and_writes_say_so() {
    let mut server = redis::start().await.expect("a Redis");
    let db = Db::new().await;
    let open = cache_at(&server.url(), |builder| builder).await;
    let closed = cache_at(&server.url(), |builder| builder.outage(Outage::Closed)).await;
    for cache in [&open, &closed] {
        assert_eq!(text(get(cache, &db).await), "v1");
    }
    server.kill().expect("killed");
    db.set("v2").await;
    assert_eq!(text(get(&open, &db).await), "v2");
    let refused = eventually(SOON, || async { get(&closed, &db).await.err().ok_or("a value without Redis") }).await;
    assert!(matches!(refused, CacheError::Unavailable(_)), "{refused:?}");
    for cache in [&open, &closed] {
        assert!(matches!(cache.invalidate("k").await, Err(CacheError::Unavailable(_))));
        let commit = |_| async { panic!("it must not write") as Result<(), std::io::Error> };
        let written = cache.write_with("k", leasehold::Token(1), commit).await;
        assert!(matches!(written, Err(CacheError::Unavailable(_))), "{written:?}");
    }
    server.restart(Data::Wipe).await.expect("restarted");
    for cache in [&open, &closed] {
        cached_again(cache, &db, "v2").await;
    }
    // One that starts while Redis is away.
    server.kill().expect("killed");
    let late = cache_at(&server.url(), |builder| builder).await;
    assert_eq!(text(get(&late, &db).await), "v2");
    let closed = ReadThrough::builder().outage(Outage::Closed).open(&server.url()).await;
    assert!(closed.is_err(), "nobody answers");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_redis_a_crowd_is_one_load_at_a_time() {
    let mut server = redis::start().await.expect("a Redis");
    let (db, cache) = (Db::new().await, cache_at(&server.url(), |builder| builder).await);
    server.kill().expect("killed");
    let strategy: Arc<dyn Strategy> = Arc::new(Invalidating(cache.clone()));
    let gate = db.hold(Point::Loaded);
    let first = spawn_read(&strategy, &db);
    gate.reached().await;
    db.set("v2").await;
    let crowd: Vec<_> = (0..100).map(|_| spawn_read(&strategy, &db)).collect();
    eventually(SOON, || async { if cache.stats().bypasses == 101 { Ok(()) } else { Err(cache.stats().bypasses) } })
        .await;
    gate.open();
    first.await.expect("a reader");
    for one in crowd {
        assert_eq!(one.await.expect("a reader"), "v2", "nobody joins a load that began before it came");
    }
    assert_eq!(cache.stats().loads, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_hangs_costs_a_timeout_and_no_more() {
    let server = redis::start().await.expect("a Redis");
    let proxy = Proxy::start(server.addr()).await.expect("a proxy");
    let url = format!("redis://{}/", proxy.addr());
    let timeout = Duration::from_millis(300);
    let (db, open) = (Db::new().await, cache_at(&url, |builder| builder.timeout(timeout)).await);
    assert_eq!(text(get(&open, &db).await), "v1");
    proxy.freeze(true);
    db.set("v2").await;
    assert_eq!(text(get(&open, &db).await), "v2");
    proxy.freeze(false);
    eventually(SOON, || async { open.invalidate("k").await }).await;
    cached_again(&open, &db, "v2").await;
}

/// Two caches with the same keys, and leases that do not end: one behind a proxy, which waits for answers this long, and one that is not.
async fn behind_and_beside(server: &Server, proxy: &Proxy, timeout: Duration) -> (ReadThrough, ReadThrough) {
    let open = async |addr: std::net::SocketAddr, timeout: Duration| {
        let cache = ReadThrough::builder().ttl(LONG).lease(LONG).longest_load(LONG).longest_write(LONG).early(0.0);
        let cache = cache.timeout(timeout);
        let cache = cache.open(&format!("redis://{addr}/?prefix=two:")).await.expect("a cache");
        // It need not be connected when it is opened.
        eventually(SOON, || async { cache.invalidate("other").await }).await;
        cache
    };
    (open(proxy.addr(), timeout).await, open(server.addr(), SOON).await)
}

/// Waits until somebody has asked for the key.
async fn asked(server: &Server) {
    eventually(SOON, || async {
        let mut hand = Resp::connect(server.addr()).await.expect("a connection");
        match hand.command(&["EXISTS", "two:c{k}"]).await.expect("an answer") {
            Reply::Integer(1) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

/// It loads: it does not wait for a lease that nobody has.
async fn loads_at_once(cache: &ReadThrough, db: &Db) {
    let got = tokio::time::timeout(SOON, get(cache, db)).await.expect("it waits for a lease that nobody has");
    assert_eq!((text(got).as_str(), cache.stats().loads), ("v1", 1));
}

/// A reader that goes away while it asks may have been given the lease all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_goes_away_before_it_is_answered_keeps_no_lease() {
    let server = redis::start().await.expect("a Redis");
    let proxy = Proxy::start(server.addr()).await.expect("a proxy");
    let (db, (goes, stays)) = (Db::new().await, behind_and_beside(&server, &proxy, SOON).await);
    proxy.drop_replies(true);
    let strategy: Arc<dyn Strategy> = Arc::new(Invalidating(goes.clone()));
    let gone = spawn_read(&strategy, &db);
    asked(&server).await;
    gone.abort();
    assert!(gone.await.is_err(), "nobody can have answered");
    loads_at_once(&stays, &db).await;
    assert_eq!(goes.stats().loads, 0);
}

/// One whose answer is lost goes past the cache, and gives up what it may have been given.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_whose_answer_is_lost_keeps_no_lease() {
    let server = redis::start().await.expect("a Redis");
    let proxy = Proxy::start(server.addr()).await.expect("a proxy");
    let (db, (goes, stays)) = (Db::new().await, behind_and_beside(&server, &proxy, Duration::from_millis(300)).await);
    proxy.drop_replies(true);
    assert_eq!(text(get(&goes, &db).await), "v1", "past the cache");
    assert_eq!(goes.stats().bypasses, 1);
    asked(&server).await;
    loads_at_once(&stays, &db).await;
}

/// A writer whose announcement is not answered writes nothing, and takes away the mark that may stand.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_whose_answer_is_lost_leaves_no_mark() {
    let server = redis::start().await.expect("a Redis");
    let proxy = Proxy::start(server.addr()).await.expect("a proxy");
    let (db, (writes, reads)) = (Db::new().await, behind_and_beside(&server, &proxy, Duration::from_millis(300)).await);
    proxy.drop_replies(true);
    let commit = |_| async { panic!("it must not write") as Result<(), std::io::Error> };
    let written = writes.write_with("k", leasehold::Token(1), commit).await;
    assert!(matches!(written, Err(CacheError::Unavailable(_))), "{written:?}");
    asked(&server).await;
    cached_again(&reads, &db, "v1").await;
}

/// The same of one that goes away before it is answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_that_goes_away_before_it_is_answered_leaves_no_mark() {
    let server = redis::start().await.expect("a Redis");
    let proxy = Proxy::start(server.addr()).await.expect("a proxy");
    let (db, (writes, reads)) = (Db::new().await, behind_and_beside(&server, &proxy, SOON).await);
    proxy.drop_replies(true);
    let gone = tokio::spawn(async move {
        let commit = |_| async { panic!("it must not write") as Result<(), std::io::Error> };
        writes.write_with("k", leasehold::Token(1), commit).await
    });
    asked(&server).await;
    gone.abort();
    assert!(gone.await.is_err(), "nobody can have answered");
    cached_again(&reads, &db, "v1").await;
}

/// A waiter's connection breaks, and it does not hear that the load has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_connection_breaks_finds_the_value_all_the_same() {
    let server = redis::start().await.expect("a Redis");
    let proxy = Proxy::start(server.addr()).await.expect("a proxy");
    let open = async |addr: std::net::SocketAddr| {
        let cache = ReadThrough::builder().timeout(SOON).lease(LONG);
        cache.longest_load(LONG).open(&format!("redis://{addr}/")).await.expect("a cache")
    };
    let (db, loads, waits) = (Db::new().await, open(server.addr()).await, open(proxy.addr()).await);
    let gate = db.hold(Point::Loaded);
    let strategy: Arc<dyn Strategy> = Arc::new(Invalidating(loads));
    let loader = spawn_read(&strategy, &db);
    gate.reached().await;
    let strategy: Arc<dyn Strategy> = Arc::new(Invalidating(waits.clone()));
    let waiter = spawn_read(&strategy, &db);
    eventually(SOON, || async { if waits.stats().waits == 1 { Ok(()) } else { Err("it does not wait yet") } }).await;
    proxy.refuse(true);
    proxy.cut();
    gate.open();
    assert_eq!(loader.await.expect("a reader"), "v1");
    proxy.refuse(false);
    // Over the new connection, or past Redis if it asked in between.
    assert_eq!(tokio::time::timeout(SOON, waiter).await.expect("an end").expect("a reader"), "v1");
}
