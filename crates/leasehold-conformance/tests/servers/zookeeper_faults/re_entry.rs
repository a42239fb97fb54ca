//! An owner enters again, from another client, and outlives its first claim.

#[cfg(feature = "nightly")]
use leasehold::clock::Clock;
use leasehold::{Mode, Owner};
use leasehold_conformance::test_context::TEST_TIMEOUT;
#[cfg(feature = "nightly")]
use leasehold_testbed::Proxy;

use crate::zookeeper_faults::fixture::{Fixture, LONG_TTL, attempt_once, claim};
#[cfg(feature = "nightly")]
use crate::zookeeper_faults::fixture::{SHORT, spawn_waiter};

/// The first claim's client is cut off and its session ends; the second, of the same owner, still holds.
#[cfg(feature = "nightly")]
#[tokio::test]
async fn a_re_entered_claim_survives_the_first_claim() {
    let site = Fixture::new().await;
    let owner = Some(Owner::new());
    let proxy = Proxy::start(site.client_addr()).await.expect("a proxy");
    let url = site.url().replace(&site.client_addr().to_string(), &proxy.addr().to_string());
    let first = leasehold::registry::open(&url, &Clock::system()).await.expect("an engine");
    let outer = claim("a", Mode::Exclusive, owner, SHORT);
    let token = attempt_once(&first, &outer).await.expect("a grant");
    let waiter = spawn_waiter(&site.open_locks(LONG_TTL).await, "a");
    site.until_nodes("a", 2).await;
    let second = site.engine().await;
    let inner = claim("a", Mode::Exclusive, owner, LONG_TTL);
    assert_eq!(attempt_once(&second, &inner).await, Some(token), "the same owner, the same token, past who waits");
    proxy.refuse(true);
    proxy.cut();
    site.until_nodes("a", 2).await;
    // Nobody is let in while the second claim is there.
    let clock = Clock::system();
    let end = clock.now().saturating_add(SHORT);
    while clock.now() < end {
        assert!(!waiter.is_finished(), "two owners at once");
        clock.sleep_until(clock.now().saturating_add(std::time::Duration::from_millis(20))).await;
    }
    // A third rides on the second, with the token of the first.
    let third = claim("a", Mode::Exclusive, owner, LONG_TTL);
    assert_eq!(attempt_once(&second, &third).await, Some(token));
    let _ = std::sync::Arc::clone(&second).release(inner).await.expect("a release");
    assert!(!waiter.is_finished(), "two owners at once");
    let _ = std::sync::Arc::clone(&second).release(third).await.expect("a release");
    let (_, next) = tokio::time::timeout(TEST_TIMEOUT, waiter).await.expect("in time").expect("a contender");
    assert!(next.token() > token);
}

/// Two claims of one owner wait side by side: when the first is let in, so is the second, with the same token.
#[tokio::test]
async fn two_waiting_claims_of_one_owner_are_granted_together() {
    let site = Fixture::new().await;
    let owner = Some(Owner::new());
    let (locks, one, two) = (site.open_locks(LONG_TTL).await, site.engine().await, site.engine().await);
    let guard = locks.mutex("a").lock().await.expect("a lock");
    let (first, second) = (claim("a", Mode::Exclusive, owner, LONG_TTL), claim("a", Mode::Exclusive, owner, LONG_TTL));
    assert_eq!((attempt_once(&one, &first).await, attempt_once(&two, &second).await), (None, None));
    let _ = guard.release().await.expect("a release");
    let wait = |engine: &std::sync::Arc<dyn leasehold::engine::Engine>, claim: &std::sync::Arc<leasehold::Claim>| {
        std::sync::Arc::clone(engine).wait(std::sync::Arc::clone(claim), TEST_TIMEOUT)
    };
    let (told, told_too) = tokio::join!(wait(&one, &first), wait(&two, &second));
    let token = |answer| match answer {
        Ok(leasehold::engine::AcquireReply::Granted(grant)) => grant.token,
        other => panic!("{other:?}"),
    };
    assert_eq!(token(told), token(told_too));
}
