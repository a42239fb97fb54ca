//! Redis is down, hangs, or restarts empty.

use std::sync::Arc;
use std::time::Duration;

use leasehold_cache::strategy::{Database, InvalidateAfterCommit, Strategy};
use leasehold_cache::{CacheError, OutagePolicy, ReadThrough};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::redis::{Reply, RespClient};
use leasehold_testbed::{Data, Proxy, Server, eventually, redis};

use crate::cache::fixture::{LONG_TTL, PausePoint, TestTable, expect_text, open_cache_at, spawn_read};

async fn get(cache: &ReadThrough, db: &TestTable) -> Result<Option<Vec<u8>>, CacheError> {
    cache.get_or_load("k", || db.load("k")).await
}

/// Reads until a read hits the cache.
async fn wait_for_hit(cache: &ReadThrough, db: &TestTable, value: &str) {
    eventually(TEST_TIMEOUT, || async {
        let before = cache.stats().hits;
        let got = get(cache, db).await.map_err(|error| error.to_string())?;
        assert_eq!(expect_text(Ok(got)), value);
        if cache.stats().hits > before { Ok(()) } else { Err("no hit".to_owned()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_redis_reads_go_to_the_database_or_fail_and_writes_fail() {
    let mut server = redis::start().await.expect("a Redis");
    let db = TestTable::new().await;
    let open = open_cache_at(&server.url(), |builder| builder).await;
    let closed = open_cache_at(&server.url(), |builder| builder.on_outage(OutagePolicy::FailClosed)).await;
    for cache in [&open, &closed] {
        assert_eq!(expect_text(get(cache, &db).await), "v1");
    }
    server.kill().expect("killed");
    db.write_directly("v2").await;
    assert_eq!(expect_text(get(&open, &db).await), "v2");
    let refused =
        eventually(TEST_TIMEOUT, || async { get(&closed, &db).await.err().ok_or("a value without Redis") }).await;
    assert!(matches!(refused, CacheError::Unavailable(_)), "{refused:?}");
    for cache in [&open, &closed] {
        assert!(matches!(cache.invalidate("k").await, Err(CacheError::Unavailable(_))));
        let commit = |_| async { panic!("the commit must not run") as Result<(), std::io::Error> };
        let written = cache.write_with("k", leasehold::Token(1), commit).await;
        assert!(matches!(written, Err(CacheError::Unavailable(_))), "{written:?}");
    }
    server.restart(Data::Wipe).await.expect("restarted");
    for cache in [&open, &closed] {
        wait_for_hit(cache, &db, "v2").await;
    }
    // A client that starts while Redis is down.
    server.kill().expect("killed");
    let late = open_cache_at(&server.url(), |builder| builder).await;
    assert_eq!(expect_text(get(&late, &db).await), "v2");
    let closed = ReadThrough::builder().on_outage(OutagePolicy::FailClosed).open(&server.url()).await;
    assert!(closed.is_err(), "Redis is down");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_redis_a_crowd_causes_one_load_at_a_time() {
    let mut server = redis::start().await.expect("a Redis");
    let (db, cache) = (TestTable::new().await, open_cache_at(&server.url(), |builder| builder).await);
    server.kill().expect("killed");
    let strategy: Arc<dyn Strategy> = Arc::new(InvalidateAfterCommit(cache.clone()));
    let gate = db.pause_next_at(PausePoint::Loaded);
    let first = spawn_read(&strategy, &db);
    gate.wait_reached().await;
    db.write_directly("v2").await;
    let crowd: Vec<_> = (0..100).map(|_| spawn_read(&strategy, &db)).collect();
    eventually(TEST_TIMEOUT, || async {
        if cache.stats().bypasses == 101 { Ok(()) } else { Err(cache.stats().bypasses) }
    })
    .await;
    gate.open();
    first.await.expect("a reader");
    for one in crowd {
        assert_eq!(one.await.expect("a reader"), "v2", "a reader joined a load that began before its read");
    }
    assert_eq!(cache.stats().loads, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_hangs_costs_one_timeout() {
    let server = redis::start().await.expect("a Redis");
    let proxy = Proxy::start(server.addr()).await.expect("a proxy");
    let url = format!("redis://{}/", proxy.addr());
    let timeout = Duration::from_millis(300);
    let (db, open) = (TestTable::new().await, open_cache_at(&url, |builder| builder.timeout(timeout)).await);
    assert_eq!(expect_text(get(&open, &db).await), "v1");
    proxy.freeze(true);
    db.write_directly("v2").await;
    assert_eq!(expect_text(get(&open, &db).await), "v2");
    proxy.freeze(false);
    eventually(TEST_TIMEOUT, || async { open.invalidate("k").await }).await;
    wait_for_hit(&open, &db, "v2").await;
}

/// Two caches with the same keys and leases that do not expire: one through the proxy with this
/// timeout, one direct.
async fn proxied_and_direct_caches(server: &Server, proxy: &Proxy, timeout: Duration) -> (ReadThrough, ReadThrough) {
    let open = async |addr: std::net::SocketAddr, timeout: Duration| {
        let cache = ReadThrough::builder()
            .ttl(LONG_TTL)
            .load_lease(LONG_TTL)
            .max_load_time(LONG_TTL)
            .max_write_time(LONG_TTL)
            .early_reload(0.0);
        let cache = cache.timeout(timeout);
        let cache = cache.open(&format!("redis://{addr}/?prefix=two:")).await.expect("a cache");
        // Opening a cache does not wait for the connection.
        eventually(TEST_TIMEOUT, || async { cache.invalidate("other").await }).await;
        cache
    };
    (open(proxy.addr(), timeout).await, open(server.addr(), TEST_TIMEOUT).await)
}

/// Waits until Redis has an entry for the key.
async fn wait_for_request(server: &Server) {
    eventually(TEST_TIMEOUT, || async {
        let mut raw = RespClient::connect(server.addr()).await.expect("a connection");
        match raw.command(&["EXISTS", "two:c{k}"]).await.expect("an answer") {
            Reply::Integer(1) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

/// Asserts that a read loads at once, without waiting for an orphaned lease.
async fn assert_loads_at_once(cache: &ReadThrough, db: &TestTable) {
    let got = tokio::time::timeout(TEST_TIMEOUT, get(cache, db)).await.expect("the read waits for an orphaned lease");
    assert_eq!((expect_text(got).as_str(), cache.stats().loads), ("v1", 1));
}

/// Redis may grant the load lease to a reader that is cancelled before the reply; the client gives
/// the lease up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_cancelled_before_its_reply_keeps_no_lease() {
    let server = redis::start().await.expect("a Redis");
    let proxy = Proxy::start(server.addr()).await.expect("a proxy");
    let (db, (goes, stays)) = (TestTable::new().await, proxied_and_direct_caches(&server, &proxy, TEST_TIMEOUT).await);
    proxy.drop_replies(true);
    let strategy: Arc<dyn Strategy> = Arc::new(InvalidateAfterCommit(goes.clone()));
    let cancelled = spawn_read(&strategy, &db);
    wait_for_request(&server).await;
    cancelled.abort();
    assert!(cancelled.await.is_err(), "the reader ended before it was aborted");
    assert_loads_at_once(&stays, &db).await;
    assert_eq!(goes.stats().loads, 0);
}

/// A reader whose reply is lost bypasses the cache and gives up the lease that Redis may have
/// granted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_whose_reply_is_lost_keeps_no_lease() {
    let server = redis::start().await.expect("a Redis");
    let proxy = Proxy::start(server.addr()).await.expect("a proxy");
    let (db, (goes, stays)) =
        (TestTable::new().await, proxied_and_direct_caches(&server, &proxy, Duration::from_millis(300)).await);
    proxy.drop_replies(true);
    assert_eq!(expect_text(get(&goes, &db).await), "v1", "bypassing the cache");
    assert_eq!(goes.stats().bypasses, 1);
    wait_for_request(&server).await;
    assert_loads_at_once(&stays, &db).await;
}

/// A writer whose BeginWrite gets no reply writes nothing and removes the mark that Redis may have
/// set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_whose_reply_is_lost_leaves_no_mark() {
    let server = redis::start().await.expect("a Redis");
    let proxy = Proxy::start(server.addr()).await.expect("a proxy");
    let (db, (writes, reads)) =
        (TestTable::new().await, proxied_and_direct_caches(&server, &proxy, Duration::from_millis(300)).await);
    proxy.drop_replies(true);
    let commit = |_| async { panic!("the commit must not run") as Result<(), std::io::Error> };
    let written = writes.write_with("k", leasehold::Token(1), commit).await;
    assert!(matches!(written, Err(CacheError::Unavailable(_))), "{written:?}");
    wait_for_request(&server).await;
    wait_for_hit(&reads, &db, "v1").await;
}

/// A writer that is cancelled before the reply to BeginWrite removes the mark that Redis may have
/// set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_cancelled_before_its_reply_leaves_no_mark() {
    let server = redis::start().await.expect("a Redis");
    let proxy = Proxy::start(server.addr()).await.expect("a proxy");
    let (db, (writes, reads)) =
        (TestTable::new().await, proxied_and_direct_caches(&server, &proxy, TEST_TIMEOUT).await);
    proxy.drop_replies(true);
    let cancelled = tokio::spawn(async move {
        let commit = |_| async { panic!("the commit must not run") as Result<(), std::io::Error> };
        writes.write_with("k", leasehold::Token(1), commit).await
    });
    wait_for_request(&server).await;
    cancelled.abort();
    assert!(cancelled.await.is_err(), "the writer ended before it was aborted");
    wait_for_hit(&reads, &db, "v1").await;
}

/// A waiter's connection breaks, so it misses the notification that the load has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_connection_breaks_still_finds_the_value() {
    let server = redis::start().await.expect("a Redis");
    let proxy = Proxy::start(server.addr()).await.expect("a proxy");
    let open = async |addr: std::net::SocketAddr| {
        let cache = ReadThrough::builder().timeout(TEST_TIMEOUT).load_lease(LONG_TTL);
        cache.max_load_time(LONG_TTL).open(&format!("redis://{addr}/")).await.expect("a cache")
    };
    let (db, loads, waits) = (TestTable::new().await, open(server.addr()).await, open(proxy.addr()).await);
    let gate = db.pause_next_at(PausePoint::Loaded);
    let strategy: Arc<dyn Strategy> = Arc::new(InvalidateAfterCommit(loads));
    let loader = spawn_read(&strategy, &db);
    gate.wait_reached().await;
    let strategy: Arc<dyn Strategy> = Arc::new(InvalidateAfterCommit(waits.clone()));
    let waiter = spawn_read(&strategy, &db);
    eventually(TEST_TIMEOUT, || async { if waits.stats().waits == 1 { Ok(()) } else { Err("no wait so far") } }).await;
    proxy.refuse(true);
    proxy.cut();
    gate.open();
    assert_eq!(loader.await.expect("a reader"), "v1");
    proxy.refuse(false);
    // Over the new connection, or bypassing Redis if the waiter retried in between.
    assert_eq!(tokio::time::timeout(TEST_TIMEOUT, waiter).await.expect("the call returns").expect("a reader"), "v1");
}
