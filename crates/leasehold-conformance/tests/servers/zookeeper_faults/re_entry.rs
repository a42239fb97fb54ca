//! An owner re-enters from another client and outlives its first claim.

#[cfg(feature = "nightly")]
use leasehold::clock::Clock;
use leasehold::{Mode, Owner};
use leasehold_conformance::test_context::TEST_TIMEOUT;
#[cfg(feature = "nightly")]
use leasehold_testbed::Proxy;

use crate::zookeeper_faults::fixture::{Fixture, LONG_TTL, attempt_once, claim};
#[cfg(feature = "nightly")]
use crate::zookeeper_faults::fixture::{SHORT, spawn_waiter};

/// The first claim's client is cut off and its session ends; the second claim of the same owner
/// still holds.
#[cfg(feature = "nightly")]
#[tokio::test]
async fn a_re_entered_claim_survives_the_first_claim() {
    let fixture = Fixture::new().await;
    let owner = Some(Owner::new());
    let proxy = Proxy::start(fixture.client_addr()).await.expect("a proxy");
    let url = fixture.url().replace(&fixture.client_addr().to_string(), &proxy.addr().to_string());
    let first = leasehold::registry::open(&url, &Clock::system()).await.expect("an engine");
    let outer = claim("a", Mode::Exclusive, owner, SHORT);
    let token = attempt_once(&first, &outer).await.expect("a grant");
    let waiter = spawn_waiter(&fixture.open_locks(LONG_TTL).await, "a");
    fixture.until_nodes("a", 2).await;
    let second = fixture.engine().await;
    let inner = claim("a", Mode::Exclusive, owner, LONG_TTL);
    assert_eq!(attempt_once(&second, &inner).await, Some(token), "the same token, past the waiter");
    proxy.refuse(true);
    proxy.cut();
    fixture.until_nodes("a", 2).await;
    // No one else is granted the lock while the second claim holds.
    let clock = Clock::system();
    let end = clock.now().saturating_add(SHORT);
    while clock.now() < end {
        assert!(!waiter.is_finished(), "two owners hold the lock");
        clock.sleep_until(clock.now().saturating_add(std::time::Duration::from_millis(20))).await;
    }
    // A third claim re-enters on the second, with the token of the first.
    let third = claim("a", Mode::Exclusive, owner, LONG_TTL);
    assert_eq!(attempt_once(&second, &third).await, Some(token));
    let _ = std::sync::Arc::clone(&second).release(inner).await.expect("a release");
    assert!(!waiter.is_finished(), "two owners hold the lock");
    let _ = std::sync::Arc::clone(&second).release(third).await.expect("a release");
    let (_, next) = tokio::time::timeout(TEST_TIMEOUT, waiter).await.expect("in time").expect("no panic");
    assert!(next.token() > token);
}

/// Two claims of one owner wait: when the first is granted, so is the second, with the same token.
#[tokio::test]
async fn two_waiting_claims_of_one_owner_are_granted_together() {
    let fixture = Fixture::new().await;
    let owner = Some(Owner::new());
    let (locks, one, two) = (fixture.open_locks(LONG_TTL).await, fixture.engine().await, fixture.engine().await);
    let guard = locks.mutex("a").lock().await.expect("a lock");
    let (first, second) = (claim("a", Mode::Exclusive, owner, LONG_TTL), claim("a", Mode::Exclusive, owner, LONG_TTL));
    assert_eq!((attempt_once(&one, &first).await, attempt_once(&two, &second).await), (None, None));
    let _ = guard.release().await.expect("a release");
    let wait = |engine: &std::sync::Arc<dyn leasehold::engine::Engine>, claim: &std::sync::Arc<leasehold::Claim>| {
        std::sync::Arc::clone(engine).wait(std::sync::Arc::clone(claim), TEST_TIMEOUT)
    };
    let (first_reply, second_reply) = tokio::join!(wait(&one, &first), wait(&two, &second));
    let token = |answer| match answer {
        Ok(leasehold::engine::AcquireReply::Granted(grant)) => grant.token,
        other => panic!("{other:?}"),
    };
    assert_eq!(token(first_reply), token(second_reply));
}
