//! What others do to our table, and for long.

use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::engine::Renewal;
use leasehold_conformance::world::{SOON, granted};
use leasehold_testbed::eventually;
use leasehold_testbed::postgres::{PgBouncer, PoolMode, Postgres};

use super::stay_held;
use crate::sql_faults::site::{BOTH, Hand, Kind, LASTING, SHORT, Site, lock, locks as open};

/// However many statements are stuck at rows that somebody keeps locked, and however soon we stop waiting for them: there are never more connections
/// than the URL says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_stay_locked_cost_no_more_connections() {
    for kind in BOTH {
        let site = Site::new(kind).await;
        let locks = open(&format!("{}?connections=4&wake=poll", site.url()), SHORT).await;
        let names = ["a", "b", "c", "d", "e", "f"];
        for name in names {
            let guard = locks.mutex(name).ttl(LASTING).lock().await.expect("a lock");
            let _ = guard.release().await.expect("a release");
        }
        let hand = Hand::lock(&site.home, "SELECT * FROM leasehold FOR UPDATE").await;
        let mut tries = tokio::task::JoinSet::new();
        for name in names {
            let locks = locks.clone();
            tries.spawn(async move {
                for _ in 0..4 {
                    let _ = locks.mutex(name).try_lock().await.expect_err("it is locked");
                }
            });
        }
        let mut most = 0;
        while !tries.is_empty() {
            if let Some(ended) = tries.try_join_next() {
                ended.expect("no panic");
            }
            // Ours, and the one by hand.
            most = most.max(site.at_most(4, 4 + 1).await);
        }
        assert!(most > 0, "{kind:?}: no statement was seen");
        hand.commit().await;
        for name in names {
            let guard = locks.mutex(name).ttl(LASTING).lock().await.expect("a lock");
            assert!(guard.is_held(), "{kind:?}");
        }
    }
}

/// One row is kept locked for longer than its holder's renewals wait: that one is lost in time, and the client's others are not. MySQL gives up
/// too late for this TTL, and behind a pooler PostgreSQL never does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_stays_locked_costs_no_other_lock() {
    for (kind, ttl) in [(Kind::MariaDb, Duration::from_millis(3500)), (Kind::Postgres, Duration::from_secs(9))] {
        let site = Site::alone(kind).await;
        let pooler = match kind {
            Kind::MariaDb => None,
            Kind::Postgres => {
                let pooler = PgBouncer::new(site.server(), PoolMode::Transaction).pool_size(8);
                Some(pooler.start().await.expect("a pooler"))
            }
        };
        let url = pooler.as_ref().map_or_else(|| site.url(), |pooler| format!("{}?pooler=transaction", pooler.url()));
        let locks = open(&url, ttl).await;
        let stuck = lock(&locks, "a").await;
        let mut kept = Vec::new();
        for name in ["b", "c", "d", "e", "f", "g"] {
            kept.push(lock(&locks, name).await);
        }
        let hand = Hand::lock(&site.home, "SELECT * FROM leasehold WHERE name = 'a' FOR UPDATE").await;
        tokio::time::timeout(SOON, stuck.lost()).await.expect("it cannot be renewed");
        stay_held(&kept, ttl * 2).await;
        hand.commit().await;
        assert!(lock(&locks, "a").await.is_held(), "{kind:?}");
    }
}

/// The same as the keeper asks: whoever is renewed together with the one whose row is locked is answered while the row is still locked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_waits_for_no_other() {
    let ttl = Duration::from_secs(15);
    let site = Site::alone(Kind::Postgres).await;
    let pooler = PgBouncer::new(site.server(), PoolMode::Transaction).pool_size(8).start().await.expect("a pooler");
    let url = format!("{}?pooler=transaction", pooler.url());
    let engine = leasehold::engine::open(&url, &Clock::system()).await.expect("an engine");
    let (stuck, kept) = (granted(&engine, "a", ttl).await, granted(&engine, "b", ttl).await);
    let hand = Hand::lock(&site.home, "SELECT * FROM leasehold WHERE name = 'a' FOR UPDATE").await;
    let renewals = tokio::time::timeout(SOON, engine.renew(vec![stuck, kept])).await;
    // The row is locked still.
    let renewals = renewals.expect("an answer").expect("answers");
    assert!(matches!(renewals[..], [Renewal::Unknown, Renewal::Renewed(_)]), "{renewals:?}");
    hand.commit().await;
}

/// Statements that the server refuses because another was first (40001) are asked again, and nobody notices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_that_meet_are_asked_again() {
    let strict = Postgres::new().setting("default_transaction_isolation", "repeatable read");
    let site = Site::of(Kind::Postgres, strict.start().await.expect("a server"));
    // Nothing is set for the session then, so that the server's own isolation level counts.
    let url = format!("{}?pooler=transaction&poll=1ms", site.url());
    let refused = async || site.number("SELECT xact_rollback FROM pg_stat_database WHERE datname = 'test'").await;
    let before = refused().await;
    eventually(SOON, || async {
        let mut clients = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let url = url.clone();
            clients.spawn(async move {
                let locks = open(&url, LASTING).await;
                for _ in 0..10 {
                    let _ = lock(&locks, "a").await.release().await.expect("a release");
                }
            });
        }
        clients.join_all().await;
        if refused().await > before { Ok(()) } else { Err("no two met") }
    })
    .await;
}

/// PostgreSQL says in time for a short TTL, too, that somebody keeps our row locked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_stays_locked_is_said_in_time_for_a_short_ttl() {
    crate::sql_faults::rows::is_said_and_waited_for(Kind::Postgres, Duration::from_secs(5)).await;
}
