//! The lease table behind a full pooler, on a replica, and in a multi-writer cluster.

use std::time::Duration;

use leasehold::{ErrorKind, Locks};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::mariadb::{GaleraCluster, MariaDb};
use leasehold_testbed::postgres::{PgBouncer, PoolMode, Postgres};
use leasehold_testbed::{eventually, mariadb, postgres};

use crate::sql_faults::costs::count_wakeup_locks;
use crate::sql_faults::fixture::{LASTING, acquire, is_lock_free, open_locks, until_queued};

/// A pooler whose connections are all in use accepts the login but delays the first statement:
/// opening still times out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opening_behind_a_full_pooler_times_out() {
    let server = postgres::start().await.expect("a server");
    let pooler = PgBouncer::new(&server, PoolMode::Transaction).pool_size(1).start().await.expect("a pooler");
    let (raw, connection) = tokio_postgres::connect(&pooler.url(), tokio_postgres::NoTls).await.expect("a connection");
    tokio::spawn(connection);
    raw.batch_execute("BEGIN").await.expect("a transaction");
    let url = format!("{}?pooler=transaction&connect-timeout=2s", pooler.url());
    let opened = tokio::time::timeout(TEST_TIMEOUT, Locks::open(&url)).await.expect("the call returns");
    let error = opened.expect_err("the pooler is full");
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true), "{error}");
    assert!(error.to_string().contains("pooler"), "{error}");
    raw.batch_execute("COMMIT").await.expect("a commit");
    assert!(acquire(&open_locks(&url, LASTING).await, "a").await.is_held());
}

/// A standby and a read-only server report that they take no writes. If the URL also names the
/// primary, the client finds it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_refuses_locks() {
    let primary = postgres::start().await.expect("a server");
    let _ = acquire(&open_locks(&primary.url(), LASTING).await, "a").await.release().await.expect("a release");
    let standby = Postgres::replica_of(&primary).start().await.expect("a standby");
    eventually(TEST_TIMEOUT, || async {
        let error = Locks::open(&standby.url()).await.map_err(|error| error.to_string())?.mutex("a").try_lock().await;
        let error = error.expect_err("the server is read-only");
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true), "{error}");
        assert!(error.to_string().contains("takes no writes"), "{error}");
        Ok::<_, String>(())
    })
    .await;
    let both = primary.url().replace(&primary.addr().to_string(), &format!("{},{}", standby.addr(), primary.addr()));
    assert!(acquire(&open_locks(&both, LASTING).await, "a").await.is_held());

    let writable = mariadb::start().await.expect("a server");
    let read_only = MariaDb::new().read_only().start().await.expect("a server");
    let error = Locks::open(&read_only.url()).await.expect_err("the server is read-only");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("takes no writes"), "{error}");
    let both =
        writable.url().replace(&writable.addr().to_string(), &format!("{},{}", read_only.addr(), writable.addr()));
    assert!(acquire(&open_locks(&both, LASTING).await, "a").await.is_held());
}

/// Two written servers of a Galera cluster: their clients exclude each other, and wait without
/// wakeup locks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_of_a_galera_cluster_exclude_each_other() {
    let cluster = GaleraCluster::start(2).await.expect("a cluster");
    let (one, two) =
        (open_locks(&cluster.server(0).url(), LASTING).await, open_locks(&cluster.server(1).url(), LASTING).await);
    let mut last = acquire(&one, "a").await;
    for round in 0..6 {
        let waiter = if round % 2 == 0 { &two } else { &one };
        assert!(!is_lock_free(waiter, "a").await, "round {round}");
        let waiter = waiter.clone();
        let waiting = tokio::spawn(async move { acquire(&waiter, "a").await });
        until_queued(&one, "a", 1).await;
        let token = last.token();
        let _ = last.release().await.expect("a release");
        last = waiting.await.expect("no panic");
        assert!(last.token() > token, "round {round}");
    }
}

/// A partitioned Galera node reports that it takes no writes. Its holder's lease expires before
/// another client acquires the lock elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partitioned_galera_node_refuses_locks() {
    let cluster = GaleraCluster::start(3).await.expect("a cluster");
    let ttl = Duration::from_secs(6);
    let (there, here) =
        (open_locks(&cluster.server(2).url(), ttl).await, open_locks(&cluster.server(0).url(), LASTING).await);
    let guard = acquire(&there, "a").await;
    cluster.cut_off(2).await.expect("a partition");
    // Until the others have agreed to remove the node, they cannot write either.
    let next = eventually(TEST_TIMEOUT, || async {
        here.mutex("a").timeout(TEST_TIMEOUT).lock().await.map_err(|error| error.to_string())
    })
    .await;
    assert!(!guard.is_held(), "two holders");
    assert!(next.token() > guard.token());
    eventually(TEST_TIMEOUT, || async {
        let error = there.mutex("b").try_lock().await.err().ok_or("a lock on a read-only node")?;
        assert!(error.is_retryable(), "{error}");
        if error.to_string().contains("without a majority") { Ok(()) } else { Err("another error") }
    })
    .await;
    assert!(next.is_held());
    cluster.heal(2).await.expect("a healed partition");
}

/// Wakeup locks are local to one server, so clients of a cluster do not use them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_client_uses_wakeup_locks_in_a_cluster() {
    let cluster = GaleraCluster::start(1).await.expect("a cluster");
    assert_eq!(count_wakeup_locks(cluster.server(0), "").await, 0);
}
