//! Where else the table may be: behind a pooler that is full, on a replica, in a cluster of writers.

use std::time::Duration;

use leasehold::{ErrorKind, Locks};
use leasehold_conformance::world::SOON;
use leasehold_testbed::mariadb::{Galera, MariaDb};
use leasehold_testbed::postgres::{PgBouncer, PoolMode, Postgres};
use leasehold_testbed::{eventually, mariadb, postgres};

use crate::sql_faults::costs::bells;
use crate::sql_faults::site::{LASTING, is_free, lock, locks, queued};

/// A pooler whose connections are all in use lets us log in, and the first statement wait: opening ends in time all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_pooler_is_not_waited_for() {
    let server = postgres::start().await.expect("a server");
    let pooler = PgBouncer::new(&server, PoolMode::Transaction).pool_size(1).start().await.expect("a pooler");
    let (hand, line) = tokio_postgres::connect(&pooler.url(), tokio_postgres::NoTls).await.expect("a connection");
    tokio::spawn(line);
    hand.batch_execute("BEGIN").await.expect("a transaction");
    let url = format!("{}?pooler=transaction&connect-timeout=2s", pooler.url());
    let opened = tokio::time::timeout(SOON, Locks::open(&url)).await.expect("an end");
    let error = opened.expect_err("it is full");
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true), "{error}");
    assert!(error.to_string().contains("pooler"), "{error}");
    hand.batch_execute("COMMIT").await.expect("a commit");
    assert!(lock(&locks(&url, LASTING).await, "a").await.is_held());
}

/// A standby, and a server that is read-only, say so; named beside its primary, the primary is found.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_takes_no_locks() {
    let primary = postgres::start().await.expect("a server");
    let _ = lock(&locks(&primary.url(), LASTING).await, "a").await.release().await.expect("a release");
    let standby = Postgres::replica_of(&primary).start().await.expect("a standby");
    eventually(SOON, || async {
        let error = Locks::open(&standby.url()).await.map_err(|error| error.to_string())?.mutex("a").try_lock().await;
        let error = error.expect_err("no writes here");
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true), "{error}");
        assert!(error.to_string().contains("takes no writes"), "{error}");
        Ok::<_, String>(())
    })
    .await;
    let both = primary.url().replace(&primary.addr().to_string(), &format!("{},{}", standby.addr(), primary.addr()));
    assert!(lock(&locks(&both, LASTING).await, "a").await.is_held());

    let writable = mariadb::start().await.expect("a server");
    let read_only = MariaDb::new().read_only().start().await.expect("a server");
    let error = Locks::open(&read_only.url()).await.expect_err("no writes here");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("takes no writes"), "{error}");
    let both =
        writable.url().replace(&writable.addr().to_string(), &format!("{},{}", read_only.addr(), writable.addr()));
    assert!(lock(&locks(&both, LASTING).await, "a").await.is_held());
}

/// Two servers of a Galera cluster, both written: their clients exclude each other, and wait without bells.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_of_a_galera_cluster_exclude_each_other() {
    let cluster = Galera::start(2).await.expect("a cluster");
    let (one, two) = (locks(&cluster.server(0).url(), LASTING).await, locks(&cluster.server(1).url(), LASTING).await);
    let mut last = lock(&one, "a").await;
    for round in 0..6 {
        let waiter = if round % 2 == 0 { &two } else { &one };
        assert!(!is_free(waiter, "a").await, "round {round}");
        let waiter = waiter.clone();
        let waiting = tokio::spawn(async move { lock(&waiter, "a").await });
        queued(&one, "a", 1).await;
        let token = last.token();
        let _ = last.release().await.expect("a release");
        last = waiting.await.expect("no panic");
        assert!(last.token() > token, "round {round}");
    }
}

/// A server that is cut off from its Galera cluster takes no writes, and says so; who held there knows before another is let in elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_galera_server_that_is_cut_off_takes_no_locks() {
    let cluster = Galera::start(3).await.expect("a cluster");
    let ttl = Duration::from_secs(6);
    let (there, here) = (locks(&cluster.server(2).url(), ttl).await, locks(&cluster.server(0).url(), LASTING).await);
    let guard = lock(&there, "a").await;
    cluster.cut_off(2).await.expect("a cut");
    // Until the others have agreed that it is gone, nothing can be written there, either.
    let next =
        eventually(SOON, || async { here.mutex("a").wait(SOON).lock().await.map_err(|error| error.to_string()) }).await;
    assert!(!guard.is_held(), "it must have known before another was let in");
    assert!(next.token() > guard.token());
    eventually(SOON, || async {
        let error = there.mutex("b").try_lock().await.err().ok_or("a lock where nothing can be written")?;
        assert!(error.is_retryable(), "{error}");
        if error.to_string().contains("does not answer at present") { Ok(()) } else { Err("it says nothing of that") }
    })
    .await;
    assert!(next.is_held());
    cluster.heal(2).await.expect("a heal");
}

/// Bells are one server's own: clients of a cluster ring none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_rings_in_a_cluster() {
    let cluster = Galera::start(1).await.expect("a cluster");
    assert_eq!(bells(cluster.server(0), "").await, 0);
}
