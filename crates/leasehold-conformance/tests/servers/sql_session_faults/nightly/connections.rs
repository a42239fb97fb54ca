//! Some of a client's connections become unresponsive.

use std::time::Duration;

use leasehold::Guard;
use leasehold::clock::Clock;
use leasehold::engine::RenewReply;
use leasehold_conformance::test_context::{TEST_TIMEOUT, acquire_claim};
use leasehold_testbed::{Proxy, eventually};

use crate::sql_session_faults::fixture::{DatabaseKind, Fixture, LASTING, acquire, assert_lost};

/// A TTL for which a busy machine may miss some renewals.
const TTL: Duration = Duration::from_secs(4);

/// One session becomes unresponsive: its lock is lost in time, and the client's other locks are
/// kept.
async fn one_unresponsive_session_loses_only_its_own_lock(kind: DatabaseKind) {
    for table in Fixture::new(kind).await.techniques() {
        let (locks, proxy) = table.open_through_proxy_with("&connections=24", TTL).await;
        let mut kept = Vec::new();
        // Enough that some are renewed together with the unresponsive one.
        for name in 0..20 {
            kept.push(locks.mutex(format!("kept-{name}")).lock().await.expect("a lock"));
        }
        // The first new connection is the session of this lock.
        let session = proxy.counts().accepted + 1;
        let guard = locks.mutex("a").lock().await.expect("a lock");
        proxy.silence(session);
        assert_lost(&guard).await;
        assert_stay_held(&kept, TTL * 2).await;
    }
}

/// One renewal covers several leases, as the keeper's do: the others get a result while one session
/// is unresponsive.
async fn a_renewal_does_not_wait_for_an_unresponsive_session(kind: DatabaseKind) {
    let ttl = Duration::from_secs(15);
    for table in Fixture::new(kind).await.techniques() {
        let proxy = Proxy::start(table.fixture.server().addr()).await.expect("a proxy");
        let url = table.url().replace(&table.fixture.server().addr().to_string(), &proxy.addr().to_string());
        let engine = leasehold::registry::open(&url, &Clock::system()).await.expect("an engine");
        let kept = acquire_claim(&engine, "b", ttl).await;
        let session = proxy.counts().accepted + 1;
        let unresponsive = acquire_claim(&engine, "a", ttl).await;
        proxy.silence(session);
        let renewals = tokio::time::timeout(TEST_TIMEOUT, engine.renew(vec![unresponsive, kept])).await;
        // The session is still unresponsive.
        let renewals = renewals.expect("an answer").expect("answers");
        assert!(
            matches!(renewals[..], [RenewReply::Unknown, RenewReply::Renewed(_)]),
            "{}: {renewals:?}",
            table.technique
        );
    }
}

/// Asserts that none of the guards is lost during this time.
async fn assert_stay_held(guards: &[Guard], time: Duration) {
    let lost = futures_util::future::select_all(guards.iter().map(|guard| Box::pin(guard.lost())));
    let lost = tokio::time::timeout(time, lost).await;
    assert!(lost.is_err() && guards.iter().all(Guard::is_held), "a lock was lost");
}

/// The connection for counters and inspections becomes unresponsive: locks are acquired all the
/// same, and holders learn of killed sessions.
async fn the_side_pool_is_unresponsive(kind: DatabaseKind) {
    for table in Fixture::new(kind).await.techniques() {
        let (locks, proxy) = table.open_through_proxy_with("&connect-timeout=2s", LASTING).await;
        let first = locks.mutex("a").lock().await.expect("a lock");
        eventually(TEST_TIMEOUT, || async {
            let open = proxy.counts().open;
            if open == 2 { Ok(()) } else { Err(format!("{open} connections")) }
        })
        .await;
        // The older connection: the session was opened after it.
        proxy.silence_half(true);
        let second = acquire(&locks, "b").await;
        assert!(first.is_held() && second.is_held(), "{}", table.technique);
        assert!(table.fixture.kill_connections(|_| true).await > 0);
        assert_lost(&first).await;
        assert_lost(&second).await;
    }
}

crate::sql_session_faults::on_both! { one_unresponsive_session_loses_only_its_own_lock a_renewal_does_not_wait_for_an_unresponsive_session the_side_pool_is_unresponsive }
