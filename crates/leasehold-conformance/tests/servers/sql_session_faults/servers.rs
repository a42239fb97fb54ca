//! The server crashes, is read-only, or is behind a pooler.

use std::sync::Arc;

use leasehold::ErrorKind;
use leasehold_testbed::Data;
use leasehold_testbed::postgres::{PgBouncer, PoolMode, Postgres};

use crate::sql_session_faults::fixture::{
    DatabaseKind, Fixture, LASTING, ManualTransaction, acquire, assert_lost, is_waiting,
};

/// After a crash and restart, all locks are lost, holders learn of it, and tokens rise.
async fn a_server_crash_loses_all_locks(kind: DatabaseKind) {
    let tables = Fixture::on_own_server(kind).await.techniques();
    let mut all = Vec::new();
    for table in &tables {
        let locks = table.open_locks(LASTING).await;
        let (held, waited) = (acquire(&locks, "a").await, acquire(&locks, "b").await);
        let waiter = tokio::spawn({
            let locks = locks.clone();
            async move { acquire(&locks, "b").await }
        });
        all.push((table.technique, locks, held, waited, waiter));
    }
    let fixtures: Vec<_> = tables.into_iter().map(|table| table.fixture).collect();
    let mut fixture = fixtures.into_iter().find_map(Arc::into_inner).expect("the only reference");
    fixture.database.own_server().kill().expect("a dead server");
    for (_, _, held, waited, _) in &all {
        assert_lost(held).await;
        assert_lost(waited).await;
    }
    fixture.database.own_server().restart(Data::Keep).await.expect("a server");
    for (technique, locks, held, waited, waiter) in all {
        let next = waiter.await.expect("no panic");
        assert!(next.token() > waited.token(), "{technique}");
        let again = acquire(&locks, "a").await;
        assert!(again.token() > held.token(), "{technique}");
    }
}

/// A read-only server: the error says so, and no lock is left behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_server_refuses_locks() {
    for table in Fixture::on_own_server(DatabaseKind::MariaDb).await.techniques() {
        let locks = table.open_locks(LASTING).await;
        let guard = locks.mutex("a").lock().await.expect("a lock");
        let token = guard.token();
        let _ = guard.release().await.expect("a release");
        table.fixture.query_as_admin("SET GLOBAL read_only = ON").await;
        let error = locks.mutex("a").try_lock().await.expect_err("the server is read-only");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("takes no writes"), "{error}");
        table.fixture.query_as_admin("SET GLOBAL read_only = OFF").await;
        let other = table.open_locks(LASTING).await;
        let next = acquire(&other, "a").await;
        assert!(next.token() > token);
    }
}

/// A pooler in transaction mode shares sessions: a lock of one client belongs to the next as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_pooler_is_refused() {
    let server = Postgres::new().start().await.expect("a server");
    let of = |mode, size| PgBouncer::new(&server, mode).pool_size(size).start();
    let (one, some) = (of(PoolMode::Transaction, 1).await, of(PoolMode::Transaction, 4).await);
    for pooler in [one.expect("a pooler"), some.expect("a pooler")] {
        for technique in ["session", "for-update"] {
            let url = format!("{}?technique={technique}", pooler.url());
            let error = leasehold::Locks::open(&url).await.expect_err("the lock would be shared");
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            let text = error.to_string();
            assert!(text.contains("pooler=transaction") && text.contains("technique=row"), "{error}");
        }
    }
    // A pooler in session mode is accepted.
    let pooler = of(PoolMode::Session, 12).await.expect("a pooler");
    for technique in ["session", "for-update"] {
        let url = format!("{}?technique={technique}&table={}", pooler.url(), technique.replace('-', "_"));
        let locks = leasehold::Locks::builder().ttl(LASTING).open(&url).await.expect("an engine");
        assert!(locks.mutex("a").lock().await.expect("a lock").is_held());
    }
}

/// Names with the same key only exclude each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_names_of_one_key_exclude_each_other() {
    let table = Fixture::new(DatabaseKind::Postgres).await.techniques().swap_remove(0);
    let (locks, other) = (table.open_locks(LASTING).await, table.open_locks(LASTING).await);
    let guard = locks.mutex("a").lock().await.expect("a lock");
    let sql = "SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks WHERE locktype = 'advisory' \
               AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let keys = table.fixture.query_as_admin(sql).await;
    let key = keys[0][0].clone().expect("a key");
    let _ = guard.release().await.expect("a release");
    // Another session holds the key, as a lock with a colliding name would.
    let other_session =
        ManualTransaction::begin(&table.fixture.database, &format!("SELECT pg_advisory_xact_lock({key})")).await;
    assert!(locks.mutex("a").try_lock().await.expect("an answer").is_none(), "the key is held");
    assert!(other.mutex("b").try_lock().await.expect("an answer").is_some(), "other names are not affected");
    let waiting = tokio::spawn(async move { acquire(&other, "a").await });
    table.fixture.until_connection("waits", is_waiting).await;
    other_session.commit().await;
    assert!(waiting.await.expect("no panic").is_held());
}

crate::sql_session_faults::on_both! { a_server_crash_loses_all_locks }
