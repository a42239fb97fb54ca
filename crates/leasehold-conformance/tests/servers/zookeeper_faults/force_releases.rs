//! A waiter is force-released while its client cannot learn of it: the request fails, and does not
//! queue again.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::engine::{AcquireReply, Engine, LossEvent, LossEvents};
use leasehold::{Claim, ErrorKind, Mode, Token};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::{Proxy, eventually};
use leasehold_zookeeper::{Acls, CreateMode, MultiWriteResult};
use tokio::time::timeout;

use crate::zookeeper_faults::fixture::{Fixture, LONG_TTL, attempt_once, claim};

/// A session that ends within a test.
const TTL: Duration = Duration::from_secs(6);

fn claim_with_ttl(ttl: Duration) -> Arc<Claim> {
    claim("a", Mode::Exclusive, None, ttl)
}

/// An engine whose connection can be broken.
async fn open_proxied(fixture: &Fixture) -> (Arc<dyn Engine>, Proxy) {
    let proxy = Proxy::start(fixture.client_addr()).await.expect("a proxy");
    let url = fixture.url().replace(&fixture.client_addr().to_string(), &proxy.addr().to_string());
    (leasehold::registry::open(&url, &Clock::system()).await.expect("an engine"), proxy)
}

/// Attempts until there is a reply.
async fn attempt_until_reply(engine: &Arc<dyn Engine>, claim: &Arc<Claim>) -> AcquireReply {
    eventually(TEST_TIMEOUT, || Arc::clone(engine).attempt(Arc::clone(claim), true)).await
}

async fn release(engine: &Arc<dyn Engine>, claim: &Arc<Claim>) {
    eventually(TEST_TIMEOUT, || Arc::clone(engine).release(Arc::clone(claim))).await;
}

/// Force-releases a waiter. Returns `false` if its node is already gone.
async fn force_release(engine: &Arc<dyn Engine>, claim: &Arc<Claim>) -> bool {
    let force_releasing = Arc::clone(engine).force_release(claim.name().clone(), claim.id, String::new());
    force_releasing.await.expect("a force release").contender.is_some()
}

/// How many marks of force releases the server has: nodes named `…%force-released`.
async fn mark_count(fixture: &Fixture) -> usize {
    fixture.nodes("%force-released").await.len()
}

/// The waiter is disconnected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_force_released_while_disconnected_gets_an_error() {
    let fixture = Fixture::new().await;
    let locks = fixture.open_locks(LONG_TTL).await;
    let (far, proxy) = fixture.open_through_proxy(LONG_TTL).await;
    let held = locks.mutex("a").lock().await.expect("a lock");
    let waits = tokio::spawn(async move { far.mutex("a").timeout(LONG_TTL).lock().await });
    fixture.until_nodes("a", 2).await;
    let force_released = locks.inspect("a").await.expect("a view").waiters[0].claim;
    proxy.refuse(true);
    proxy.cut();
    assert!(locks.force_release("a", force_released).await.expect("a force release").contender.is_some());
    proxy.refuse(false);
    let ended = timeout(TEST_TIMEOUT, waits).await.expect("the call returns").expect("no panic");
    assert_eq!(ended.map(drop).expect_err("the waiter was force-released").kind(), ErrorKind::ForceReleased);
    fixture.until_nodes("a", 1).await;
    let _ = held.release().await.expect("a release");
    // The request is over, and deletes the mark.
    eventually(TEST_TIMEOUT, || async {
        let left = mark_count(&fixture).await;
        if left == 0 { Ok(()) } else { Err(format!("{left} marks")) }
    })
    .await;
}

/// A waiter is force-released while disconnected, and retries after the reconnect: it must not
/// queue again. Another waiter keeps its position.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_is_force_released_between_two_attempts_does_not_queue_again() {
    let fixture = Fixture::new().await;
    let (near, (far, proxy)) = (fixture.engine().await, open_proxied(&fixture).await);
    let (held, waits, other) = (claim_with_ttl(LONG_TTL), claim_with_ttl(LONG_TTL), claim_with_ttl(LONG_TTL));
    attempt_once(&near, &held).await.expect("a grant");
    assert_eq!((attempt_once(&far, &waits).await, attempt_once(&far, &other).await), (None, None));
    proxy.refuse(true);
    proxy.cut();
    assert!(force_release(&near, &waits).await);
    proxy.refuse(false);
    assert_eq!(attempt_until_reply(&far, &waits).await, AcquireReply::ForceReleased);
    assert_eq!(
        attempt_until_reply(&far, &waits).await,
        AcquireReply::ForceReleased,
        "the first reply may have been lost"
    );
    let still = attempt_until_reply(&far, &other).await;
    assert!(matches!(still, AcquireReply::Queued { ahead: 0, .. }), "{still:?}");
    // A release ends the request; the next one is new.
    release(&far, &waits).await;
    assert_eq!(mark_count(&fixture).await, 0);
    let requeued = attempt_until_reply(&far, &waits).await;
    assert!(matches!(requeued, AcquireReply::Queued { ahead: 1, .. }), "{requeued:?}");
}

/// The reply to the queue request is lost, and the waiter is force-released before it retries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_force_released_before_its_queue_reply_does_not_queue_again() {
    let fixture = Fixture::new().await;
    let (near, (far, proxy)) = (fixture.engine().await, open_proxied(&fixture).await);
    let (first, held, waits) = (claim_with_ttl(LONG_TTL), claim_with_ttl(LONG_TTL), claim_with_ttl(LONG_TTL));
    attempt_once(&far, &first).await.expect("a grant, which opens a session");
    release(&far, &first).await;
    attempt_once(&near, &held).await.expect("a grant");
    proxy.drop_replies(true);
    let call = tokio::spawn(Arc::clone(&far).attempt(Arc::clone(&waits), true));
    fixture.until_nodes("a", 2).await;
    proxy.refuse(true);
    proxy.cut();
    let _ = call.await.expect("no panic").expect_err("no reply");
    assert!(force_release(&near, &waits).await);
    proxy.drop_replies(false);
    proxy.refuse(false);
    assert_eq!(attempt_until_reply(&far, &waits).await, AcquireReply::ForceReleased);
    assert_eq!(fixture.nodes("a").await.len(), 1);
}

/// Waits until the client considers the session expired and reports `held` as lost. `also` is
/// attempted meanwhile, as by waiting callers.
async fn until_session_ended(
    engine: &Arc<dyn Engine>,
    losses: &mut LossEvents,
    held: &Arc<Claim>,
    also: &[&Arc<Claim>],
) {
    let waiting = async {
        loop {
            let pulse = async {
                let attempts = also.iter().map(|claim| Arc::clone(engine).attempt(Arc::clone(claim), true));
                let renewed = Arc::clone(engine).renew(vec![Arc::clone(held)]);
                let _ = tokio::join!(renewed, futures_util::future::join_all(attempts));
                std::future::pending::<()>().await;
            };
            tokio::select! {
                events = losses.next() => if events.contains(&LossEvent::Lost(held.id)) { return },
                _ = timeout(TTL / 20, pulse) => {}
            }
        }
    };
    timeout(TEST_TIMEOUT, waiting).await.expect("the end of a session");
}

/// The session ends meanwhile, for the client alone or for the server as well, and the waiter
/// retries on a new one. Another waiter of that session queues again, with one node.
async fn check_force_release_before_session_end(for_client_alone: bool) {
    let fixture = Fixture::new().await;
    let near = fixture.engine().await;
    let held = claim_with_ttl(LONG_TTL);
    attempt_once(&near, &held).await.expect("a grant");
    eventually(TEST_TIMEOUT, || async {
        let (far, proxy) = open_proxied(&fixture).await;
        let mut losses = far.loss_events();
        let (signal, waits, other) = (claim("b", Mode::Exclusive, None, TTL), claim_with_ttl(TTL), claim_with_ttl(TTL));
        attempt_once(&far, &signal).await.expect("a lock that reports the session's end");
        assert_eq!((attempt_once(&far, &waits).await, attempt_once(&far, &other).await), (None, None));
        if for_client_alone {
            proxy.drop_replies(true);
        } else {
            proxy.refuse(true);
            proxy.cut();
        }
        let in_time = force_release(&near, &waits).await;
        until_session_ended(&far, &mut losses, &signal, &[&waits, &other]).await;
        proxy.drop_replies(false);
        proxy.refuse(false);
        if !in_time {
            return Err("the session was over before the force release".to_owned());
        }
        assert_eq!(
            attempt_until_reply(&far, &waits).await,
            AcquireReply::ForceReleased,
            "for its client alone: {for_client_alone}"
        );
        let queued = attempt_until_reply(&far, &other).await;
        assert!(matches!(queued, AcquireReply::Queued { ahead: 0, .. }), "{queued:?}");
        assert_eq!(fixture.nodes("a").await.len(), 2, "the holder and the other waiter");
        for claim in [&waits, &other] {
            release(&far, claim).await;
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_is_force_released_and_whose_session_ends_does_not_queue_again() {
    check_force_release_before_session_end(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_is_force_released_and_whose_session_ends_for_its_client_does_not_queue_again() {
    check_force_release_before_session_end(true).await;
}

/// A waiter is force-released while its client considers the session expired and has not
/// reconnected: the servers still have its node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_session_is_over_for_its_client_is_force_released_by_its_last_node() {
    let fixture = Fixture::new().await;
    let near = fixture.engine().await;
    let held = claim_with_ttl(LONG_TTL);
    attempt_once(&near, &held).await.expect("a grant");
    eventually(TEST_TIMEOUT, || async {
        let (far, proxy) = open_proxied(&fixture).await;
        let mut losses = far.loss_events();
        let (signal, waits) = (claim("b", Mode::Exclusive, None, TTL), claim_with_ttl(TTL));
        attempt_once(&far, &signal).await.expect("a lock that reports the session's end");
        assert_eq!(attempt_once(&far, &waits).await, None);
        proxy.drop_replies(true);
        until_session_ended(&far, &mut losses, &signal, &[&waits]).await;
        let in_time = force_release(&near, &waits).await;
        proxy.drop_replies(false);
        if !in_time {
            return Err("the servers ended the session as well".to_owned());
        }
        assert_eq!(attempt_until_reply(&far, &waits).await, AcquireReply::ForceReleased);
        assert_eq!(fixture.nodes("a").await.len(), 1);
        release(&far, &waits).await;
        Ok(())
    })
    .await;
}

/// A holder releases on request: a mark records this until it is read, even if the reply was lost.
/// Without a request there is no mark.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_on_request_is_noted_until_it_is_read() {
    let fixture = Fixture::new().await;
    let locks = fixture.open_locks(LONG_TTL).await;
    let (far, proxy) = fixture.open_through_proxy(LONG_TTL).await;
    for (requested, lost) in [(false, false), (true, false), (true, true)] {
        let held = far.mutex("a").timeout(TEST_TIMEOUT).lock().await.expect("a lock");
        let claim = held.claim_id();
        if requested {
            assert!(locks.request_release("a", claim, "").await.expect("a request").is_some());
            timeout(TEST_TIMEOUT, held.release_requested()).await.expect("the holder learns of the request");
        }
        if lost {
            proxy.cut_after_request();
        }
        let _ = held.release().await.expect("a release");
        fixture.until_nodes("a", 0).await;
        assert_eq!(mark_count(&fixture).await, usize::from(requested), "lost: {lost}");
        assert_eq!(locks.was_released("a", claim).await.expect("an answer"), Some(requested), "lost: {lost}");
        assert_eq!(mark_count(&fixture).await, 0, "lost: {lost}");
    }
}

/// A request for a permit arrived twice, so that the claim holds with two nodes, and its client may
/// go on with either: the token of the force release is above both, or there is none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_token_of_a_force_release_refuses_both_nodes_of_a_claim() {
    let fixture = Fixture::new().await;
    let locks = fixture.open_locks(LONG_TTL).await;
    let held = locks.semaphore("a", 3).acquire(1).await.expect("a permit");
    let node = fixture.nodes("a").await.pop().expect("a node");
    let (second, _) = node.rsplit_once('-').expect("a number at its end");
    let waiter = format!("{}/1-{:032x}-p3.3-0-0-", fixture.folder("a"), 7);
    let mode = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    // In one transaction: no number lies between the two tokens.
    let mut both = fixture.client.new_multi_writer();
    both.add_create(&format!("{second}-"), b"", &mode).expect("a valid path");
    both.add_create(&waiter, b"", &mode).expect("a valid path");
    let created = both.commit().await.expect("two nodes");
    let MultiWriteResult::Create { path, .. } = &created[0] else { panic!("{created:?}") };
    let stat = fixture.client.check_stat(path).await.expect("an answer").expect("a node");
    let second = Token(stat.czxid.cast_unsigned());
    assert!(second > held.token());
    let holder = locks.inspect("a").await.expect("a view").holders[0].claim;
    let outcome = locks.force_release("a", holder).await.expect("a force release");
    assert_eq!(outcome.contender.and_then(|contender| contender.token), Some(second));
    assert!(outcome.fence_token.is_none_or(|token| token > second), "{:?} for {second}", outcome.fence_token);
    assert_eq!(fixture.nodes("a").await.len(), 1, "only the waiter's node stays");
}

/// A waiter that is not next watches the claim ahead, and not its own node: its request ends at once
/// all the same, and not with its next heartbeat.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_further_back_learns_of_its_force_release_at_once() {
    let fixture = Fixture::new().await;
    let locks = fixture.open_locks(LONG_TTL).await;
    let held = locks.mutex("a").lock().await.expect("a lock");
    let mut waiters = Vec::new();
    for count in 1..=3 {
        let mutex = locks.mutex("a").timeout(LONG_TTL);
        waiters.push(tokio::spawn(async move { mutex.lock().await }));
        eventually(TEST_TIMEOUT, || async {
            let waiting = locks.inspect("a").await.map_err(|error| error.to_string())?.waiters.len();
            if waiting == count { Ok(()) } else { Err(format!("{waiting} waiters")) }
        })
        .await;
    }
    let last = waiters.pop().expect("three waiters");
    let claim = locks.inspect("a").await.expect("a view").waiters[2].claim;
    assert!(locks.force_release("a", claim).await.expect("a force release").contender.is_some());
    // A heartbeat is due after a third of the TTL, which is later.
    let ended = timeout(TEST_TIMEOUT, last).await.expect("the request ends").expect("no panic");
    assert_eq!(ended.map(drop).expect_err("it was force released").kind(), ErrorKind::ForceReleased);
    // The others keep their positions, and are served.
    let _ = held.release().await.expect("a release");
    for waiter in waiters {
        let guard = timeout(TEST_TIMEOUT, waiter).await.expect("served").expect("no panic").expect("a lock");
        let _ = guard.release().await.expect("a release");
    }
}
