//! A waiter is evicted while its client cannot learn of it: it ends all the same, and does not queue again.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::engine::{AcquireReply, Engine, LossEvent, LossEvents};
use leasehold::{Claim, ErrorKind, Mode};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::{Proxy, eventually};
use tokio::time::timeout;

use crate::zookeeper_faults::fixture::{Fixture, LONG_TTL, attempt_once, claim};

/// A session that ends within a test.
const TTL: Duration = Duration::from_secs(6);

fn of(ttl: Duration) -> Arc<Claim> {
    claim("a", Mode::Exclusive, None, ttl)
}

/// An engine whose connection can be broken.
async fn proxied(site: &Fixture) -> (Arc<dyn Engine>, Proxy) {
    let proxy = Proxy::start(site.client_addr()).await.expect("a proxy");
    let url = site.url().replace(&site.client_addr().to_string(), &proxy.addr().to_string());
    (leasehold::registry::open(&url, &Clock::system()).await.expect("an engine"), proxy)
}

/// Attempts until there is an answer.
async fn answer(engine: &Arc<dyn Engine>, claim: &Arc<Claim>) -> AcquireReply {
    eventually(TEST_TIMEOUT, || Arc::clone(engine).attempt(Arc::clone(claim), true)).await
}

async fn release(engine: &Arc<dyn Engine>, claim: &Arc<Claim>) {
    eventually(TEST_TIMEOUT, || Arc::clone(engine).release(Arc::clone(claim))).await;
}

/// Evicts a waiter; `false`: its node is gone already.
async fn evict(engine: &Arc<dyn Engine>, claim: &Arc<Claim>) -> bool {
    let evicting = Arc::clone(engine).force_release(claim.name().clone(), claim.id, String::new());
    evicting.await.expect("an eviction").contender.is_some()
}

/// The marks of evictions that the server has.
async fn marks(site: &Fixture) -> usize {
    site.nodes("%evicted").await.len()
}

/// Its connection is down, and it waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_is_evicted_without_a_connection_ends() {
    let site = Fixture::new().await;
    let locks = site.open_locks(LONG_TTL).await;
    let (far, proxy) = site.open_through_proxy(LONG_TTL).await;
    let held = locks.mutex("a").lock().await.expect("a lock");
    let waits = tokio::spawn(async move { far.mutex("a").timeout(LONG_TTL).lock().await });
    site.until_nodes("a", 2).await;
    let evicted = locks.inspect("a").await.expect("a view").waiters[0].claim;
    proxy.refuse(true);
    proxy.cut();
    assert!(locks.force_release("a", evicted).await.expect("an eviction").contender.is_some());
    proxy.refuse(false);
    let ended = timeout(TEST_TIMEOUT, waits).await.expect("it ends").expect("no panic");
    assert_eq!(ended.map(drop).expect_err("it was evicted").kind(), ErrorKind::ForceReleased);
    site.until_nodes("a", 1).await;
    let _ = held.release().await.expect("a release");
    // Its request is over, and deletes the mark.
    eventually(TEST_TIMEOUT, || async {
        let left = marks(&site).await;
        if left == 0 { Ok(()) } else { Err(format!("{left} marks")) }
    })
    .await;
}

/// The same for one that attempts again when the connection is back, as after a call that failed: it would queue anew. Another waiter keeps its position.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_is_evicted_between_two_attempts_does_not_queue_again() {
    let site = Fixture::new().await;
    let (near, (far, proxy)) = (site.engine().await, proxied(&site).await);
    let (held, waits, other) = (of(LONG_TTL), of(LONG_TTL), of(LONG_TTL));
    attempt_once(&near, &held).await.expect("a grant");
    assert_eq!((attempt_once(&far, &waits).await, attempt_once(&far, &other).await), (None, None));
    proxy.refuse(true);
    proxy.cut();
    assert!(evict(&near, &waits).await);
    proxy.refuse(false);
    assert_eq!(answer(&far, &waits).await, AcquireReply::ForceReleased);
    assert_eq!(answer(&far, &waits).await, AcquireReply::ForceReleased, "the first answer may have been lost");
    let still = answer(&far, &other).await;
    assert!(matches!(still, AcquireReply::Queued { ahead: 0, .. }), "{still:?}");
    // A release ends the request: the next one is new.
    release(&far, &waits).await;
    assert_eq!(marks(&site).await, 0);
    let anew = answer(&far, &waits).await;
    assert!(matches!(anew, AcquireReply::Queued { ahead: 1, .. }), "{anew:?}");
}

/// The reply to its request to queue is lost, and it is evicted before it attempts again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_is_evicted_before_it_knows_that_it_waits_does_not_queue_again() {
    let site = Fixture::new().await;
    let (near, (far, proxy)) = (site.engine().await, proxied(&site).await);
    let (first, held, waits) = (of(LONG_TTL), of(LONG_TTL), of(LONG_TTL));
    attempt_once(&far, &first).await.expect("a grant, so that there is a session");
    release(&far, &first).await;
    attempt_once(&near, &held).await.expect("a grant");
    proxy.drop_replies(true);
    let call = tokio::spawn(Arc::clone(&far).attempt(Arc::clone(&waits), true));
    site.until_nodes("a", 2).await;
    proxy.refuse(true);
    proxy.cut();
    let _ = call.await.expect("no panic").expect_err("no reply");
    assert!(evict(&near, &waits).await);
    proxy.drop_replies(false);
    proxy.refuse(false);
    assert_eq!(answer(&far, &waits).await, AcquireReply::ForceReleased);
    assert_eq!(site.nodes("a").await.len(), 1);
}

/// Waits until the session is over for its client, which then reports the loss of `held`. `also` is attempted meanwhile, as by
/// callers that wait.
async fn until_over(engine: &Arc<dyn Engine>, losses: &mut LossEvents, held: &Arc<Claim>, also: &[&Arc<Claim>]) {
    let waiting = async {
        loop {
            let pulse = async {
                let attempts = also.iter().map(|claim| Arc::clone(engine).attempt(Arc::clone(claim), true));
                let renewed = Arc::clone(engine).renew(vec![Arc::clone(held)]);
                let _ = tokio::join!(renewed, futures_util::future::join_all(attempts));
                std::future::pending::<()>().await;
            };
            tokio::select! {
                told = losses.next() => if told.contains(&LossEvent::Lost(held.id)) { return },
                _ = timeout(TTL / 20, pulse) => {}
            }
        }
    };
    timeout(TEST_TIMEOUT, waiting).await.expect("the end of a session");
}

/// Its session ends meanwhile, for its client alone or for the server as well: it attempts again on a new one. Another waiter of that session queues
/// again, with one node.
async fn evicted_and_its_session_over(for_client_alone: bool) {
    let site = Fixture::new().await;
    let near = site.engine().await;
    let held = of(LONG_TTL);
    attempt_once(&near, &held).await.expect("a grant");
    eventually(TEST_TIMEOUT, || async {
        let (far, proxy) = proxied(&site).await;
        let mut losses = far.loss_events();
        let (signal, waits, other) = (claim("b", Mode::Exclusive, None, TTL), of(TTL), of(TTL));
        attempt_once(&far, &signal).await.expect("a lock that reports the session's end");
        assert_eq!((attempt_once(&far, &waits).await, attempt_once(&far, &other).await), (None, None));
        if for_client_alone {
            proxy.drop_replies(true);
        } else {
            proxy.refuse(true);
            proxy.cut();
        }
        let in_time = evict(&near, &waits).await;
        until_over(&far, &mut losses, &signal, &[&waits, &other]).await;
        proxy.drop_replies(false);
        proxy.refuse(false);
        if !in_time {
            return Err("the session was over before the eviction".to_owned());
        }
        assert_eq!(answer(&far, &waits).await, AcquireReply::ForceReleased, "for its client alone: {for_client_alone}");
        let queued = answer(&far, &other).await;
        assert!(matches!(queued, AcquireReply::Queued { ahead: 0, .. }), "{queued:?}");
        assert_eq!(site.nodes("a").await.len(), 2, "the holder and the other waiter");
        for claim in [&waits, &other] {
            release(&far, claim).await;
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_is_evicted_and_whose_session_ends_does_not_queue_again() {
    evicted_and_its_session_over(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_is_evicted_and_whose_session_ends_for_its_client_does_not_queue_again() {
    evicted_and_its_session_over(true).await;
}

/// The same waiter is evicted when its session is over for its client, which has not connected again: the servers still have its node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_session_is_over_for_its_client_is_evicted_by_its_last_node() {
    let site = Fixture::new().await;
    let near = site.engine().await;
    let held = of(LONG_TTL);
    attempt_once(&near, &held).await.expect("a grant");
    eventually(TEST_TIMEOUT, || async {
        let (far, proxy) = proxied(&site).await;
        let mut losses = far.loss_events();
        let (signal, waits) = (claim("b", Mode::Exclusive, None, TTL), of(TTL));
        attempt_once(&far, &signal).await.expect("a lock that reports the session's end");
        assert_eq!(attempt_once(&far, &waits).await, None);
        proxy.drop_replies(true);
        until_over(&far, &mut losses, &signal, &[&waits]).await;
        let in_time = evict(&near, &waits).await;
        proxy.drop_replies(false);
        if !in_time {
            return Err("the servers ended the session, too".to_owned());
        }
        assert_eq!(answer(&far, &waits).await, AcquireReply::ForceReleased);
        assert_eq!(site.nodes("a").await.len(), 1);
        release(&far, &waits).await;
        Ok(())
    })
    .await;
}

/// A holder that was asked releases: that is known, also after a reply was lost, and its note is deleted when it was read. A holder that was not asked
/// leaves none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_on_request_is_noted_until_it_is_read() {
    let site = Fixture::new().await;
    let locks = site.open_locks(LONG_TTL).await;
    let (far, proxy) = site.open_through_proxy(LONG_TTL).await;
    for (asked, lost) in [(false, false), (true, false), (true, true)] {
        let held = far.mutex("a").timeout(TEST_TIMEOUT).lock().await.expect("a lock");
        let claim = held.claim_id();
        if asked {
            assert!(locks.request_release("a", claim, "").await.expect("a request").is_some());
            timeout(TEST_TIMEOUT, held.release_requested()).await.expect("it learns of it");
        }
        if lost {
            proxy.cut_after_request();
        }
        let _ = held.release().await.expect("a release");
        site.until_nodes("a", 0).await;
        assert_eq!(marks(&site).await, usize::from(asked), "lost: {lost}");
        assert_eq!(locks.was_released("a", claim).await.expect("an answer"), Some(asked), "lost: {lost}");
        assert_eq!(marks(&site).await, 0, "lost: {lost}");
    }
}
