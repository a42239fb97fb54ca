//! Several servers, and a client without a free connection.

use leasehold::ErrorKind;
use leasehold_testbed::mariadb::GaleraCluster;
use leasehold_testbed::postgres::Postgres;

use crate::sql_session_faults::fixture::{DatabaseKind, Fixture, LASTING, acquire};

/// A standby takes no writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_refuses_locks() {
    for table in Fixture::on_own_server(DatabaseKind::Postgres).await.techniques() {
        let locks = table.open_locks(LASTING).await;
        drop(locks.mutex("a").lock().await.expect("a lock"));
        let standby = Postgres::replica_of(table.fixture.server()).start().await.expect("a standby");
        let addr = table.fixture.server().addr().to_string();
        let url = table.url().replace(&addr, &standby.addr().to_string());
        let error = match leasehold::Locks::builder().ttl(LASTING).open(&url).await {
            Ok(locks) => locks.mutex("a").try_lock().await.expect_err("the server is read-only"),
            Err(error) => error,
        };
        assert!(error.to_string().contains("takes no writes"), "{}: {error}", table.technique);
    }
}

/// More locks than connections: a waiter is served after a release, and a try fails with an error
/// that says why.
async fn locks_outnumber_connections(kind: DatabaseKind) {
    for table in Fixture::new(kind).await.techniques() {
        let url = format!("{}&connections=3&connect-timeout=2s", table.url());
        let locks = leasehold::Locks::builder().ttl(LASTING).open(&url).await.expect("an engine");
        let (one, two) = (locks.mutex("1").lock().await.expect("a lock"), locks.mutex("2").lock().await);
        let error = locks.mutex("3").try_lock().await.expect_err("no connection is left");
        assert!(error.to_string().contains("connections="), "{error}");
        let third = tokio::spawn({
            let locks = locks.clone();
            async move { acquire(&locks, "3").await }
        });
        // All waiters of one name share one connection.
        let _ = one.release().await.expect("a release");
        let third = third.await.expect("no panic");
        assert!(third.is_held() && two.expect("a lock").is_held());
    }
}

/// The nodes of a Galera cluster do not share session locks: there would be two holders.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_galera_cluster_is_refused() {
    let cluster = GaleraCluster::start(1).await.expect("a cluster");
    for technique in ["session", "for-update"] {
        let url = format!("{}?technique={technique}", cluster.server(0).url());
        let error = leasehold::Locks::open(&url).await.expect_err("there would be two holders");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("technique=row"), "{error}");
    }
}

crate::sql_session_faults::on_both! { locks_outnumber_connections }
