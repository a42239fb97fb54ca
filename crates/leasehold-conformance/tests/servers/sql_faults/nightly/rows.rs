//! Long interference with the lease table.

use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::engine::RenewReply;
use leasehold_conformance::test_context::{TEST_TIMEOUT, acquire_claim};
use leasehold_testbed::eventually;
use leasehold_testbed::postgres::{PgBouncer, PoolMode, Postgres};

use super::assert_stay_held;
use crate::sql_faults::fixture::{BOTH, DatabaseKind, Fixture, LASTING, ManualTransaction, SHORT, acquire, open_locks};

/// However many statements are stuck on locked rows, and however soon the client gives up on them,
/// it never opens more connections than the URL allows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locked_rows_never_exceed_the_connection_limit() {
    for kind in BOTH {
        let fixture = Fixture::new(kind).await;
        let locks = open_locks(&format!("{}?connections=4&wake=poll", fixture.url()), SHORT).await;
        let names = ["a", "b", "c", "d", "e", "f"];
        for name in names {
            let guard = locks.mutex(name).ttl(LASTING).lock().await.expect("a lock");
            let _ = guard.release().await.expect("a release");
        }
        let blocker = ManualTransaction::begin(&fixture.database, "SELECT * FROM leasehold FOR UPDATE").await;
        let mut tries = tokio::task::JoinSet::new();
        for name in names {
            let locks = locks.clone();
            tries.spawn(async move {
                for _ in 0..4 {
                    let _ = locks.mutex(name).try_lock().await.expect_err("the row is locked");
                }
            });
        }
        let mut most = 0;
        while !tries.is_empty() {
            if let Some(ended) = tries.try_join_next() {
                ended.expect("no panic");
            }
            // The client's connections, and the manual one.
            most = most.max(fixture.assert_at_most(4, 4 + 1).await);
        }
        assert!(most > 0, "{kind:?}: no statement was seen");
        blocker.commit().await;
        for name in names {
            let guard = locks.mutex(name).ttl(LASTING).lock().await.expect("a lock");
            assert!(guard.is_held(), "{kind:?}");
        }
    }
}

/// One row stays locked for longer than its holder's renewals wait: only that lease is lost, and in
/// time. MySQL's lock timeout is too long for this TTL, and behind a pooler PostgreSQL has none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_row_loses_no_other_lease() {
    for (kind, ttl) in
        [(DatabaseKind::MariaDb, Duration::from_millis(3500)), (DatabaseKind::Postgres, Duration::from_secs(9))]
    {
        let fixture = Fixture::on_own_server(kind).await;
        let pooler = match kind {
            DatabaseKind::MariaDb => None,
            DatabaseKind::Postgres => {
                let pooler = PgBouncer::new(fixture.server(), PoolMode::Transaction).pool_size(8);
                Some(pooler.start().await.expect("a pooler"))
            }
        };
        let url =
            pooler.as_ref().map_or_else(|| fixture.url(), |pooler| format!("{}?pooler=transaction", pooler.url()));
        let locks = open_locks(&url, ttl).await;
        let stuck = acquire(&locks, "a").await;
        let mut kept = Vec::new();
        for name in ["b", "c", "d", "e", "f", "g"] {
            kept.push(acquire(&locks, name).await);
        }
        let blocker =
            ManualTransaction::begin(&fixture.database, "SELECT * FROM leasehold WHERE name = 'a' FOR UPDATE").await;
        tokio::time::timeout(TEST_TIMEOUT, stuck.lost()).await.expect("the lease cannot be renewed");
        assert_stay_held(&kept, ttl * 2).await;
        blocker.commit().await;
        assert!(acquire(&locks, "a").await.is_held(), "{kind:?}");
    }
}

/// One renewal covers several leases, as the keeper's do: the others get a result while one row is
/// still locked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_does_not_wait_for_a_locked_row_of_another() {
    let ttl = Duration::from_secs(15);
    let fixture = Fixture::on_own_server(DatabaseKind::Postgres).await;
    let pooler = PgBouncer::new(fixture.server(), PoolMode::Transaction).pool_size(8).start().await.expect("a pooler");
    let url = format!("{}?pooler=transaction", pooler.url());
    let engine = leasehold::registry::open(&url, &Clock::system()).await.expect("an engine");
    let (stuck, kept) = (acquire_claim(&engine, "a", ttl).await, acquire_claim(&engine, "b", ttl).await);
    let blocker =
        ManualTransaction::begin(&fixture.database, "SELECT * FROM leasehold WHERE name = 'a' FOR UPDATE").await;
    let renewals = tokio::time::timeout(TEST_TIMEOUT, engine.renew(vec![stuck, kept])).await;
    // The row is still locked.
    let renewals = renewals.expect("an answer").expect("answers");
    assert!(matches!(renewals[..], [RenewReply::Unknown, RenewReply::Renewed(_)]), "{renewals:?}");
    blocker.commit().await;
}

/// Statements that fail with a serialisation error (40001) are retried without an effect on the
/// caller.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conflicting_statements_are_retried() {
    let strict = Postgres::new().setting("default_transaction_isolation", "repeatable read");
    let fixture = Fixture::on_server(DatabaseKind::Postgres, strict.start().await.expect("a server"));
    // No session settings with this option, so the server's own isolation level applies.
    let url = format!("{}?pooler=transaction&poll=1ms", fixture.url());
    let refused = async || fixture.number("SELECT xact_rollback FROM pg_stat_database WHERE datname = 'test'").await;
    let before = refused().await;
    eventually(TEST_TIMEOUT, || async {
        let mut clients = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let url = url.clone();
            clients.spawn(async move {
                let locks = open_locks(&url, LASTING).await;
                for _ in 0..10 {
                    let _ = acquire(&locks, "a").await.release().await.expect("a release");
                }
            });
        }
        clients.join_all().await;
        if refused().await > before { Ok(()) } else { Err("no conflict so far") }
    })
    .await;
}

/// PostgreSQL reports a locked row in time even for a short TTL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_row_is_reported_in_time_for_a_short_ttl() {
    crate::sql_faults::rows::check_locked_row(DatabaseKind::Postgres, Duration::from_secs(5)).await;
}
