//! Calls that are dropped or not polled in the middle of a step, or whose session is replaced.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::engine::{AcquireReply, Engine, Step};
use leasehold::{Claim, Mode, Owner};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::{Proxy, eventually};
use leasehold_zookeeper::{Acls, CreateMode};

use crate::zookeeper_faults::fixture::{Fixture, LONG_TTL, SHORT, attempt_once, claim, spawn_waiter};

const EXCLUSIVE: Mode = Mode::Exclusive;

fn attempt(engine: &Arc<dyn Engine>, claim: &Arc<Claim>, queue: bool) -> Step<AcquireReply> {
    Arc::clone(engine).attempt(Arc::clone(claim), queue)
}

fn wait(engine: &Arc<dyn Engine>, claim: &Arc<Claim>) -> Step<AcquireReply> {
    Arc::clone(engine).wait(Arc::clone(claim), TEST_TIMEOUT)
}

async fn release(engine: &Arc<dyn Engine>, claim: &Arc<Claim>) {
    let _ = Arc::clone(engine).release(Arc::clone(claim)).await.expect("a release");
}

fn permits(n: u32, limit: u32) -> Mode {
    Mode::Permits { n, limit }
}

/// The delay of each request, and of each reply.
const ONE_WAY_DELAY: Duration = Duration::from_millis(5);

/// Calls are dropped after 0, 1, 2 ... of these steps, so that each request and each reply is hit
/// in flight.
const DROP_STEP: Duration = Duration::from_millis(4);

/// An engine on a slow connection.
async fn open_on_slow_connection(fixture: &Fixture) -> (Arc<dyn Engine>, Proxy) {
    let proxy = Proxy::start(fixture.client_addr()).await.expect("a proxy");
    let url = fixture.url().replace(&fixture.client_addr().to_string(), &proxy.addr().to_string());
    let engine = leasehold::registry::open(&url, &Clock::system()).await.expect("an engine");
    // Opens the session before the connection is slow.
    let first = claim("first", EXCLUSIVE, None, LONG_TTL);
    attempt_once(&engine, &first).await.expect("a grant");
    release(&engine, &first).await;
    proxy.delay(ONE_WAY_DELAY);
    (engine, proxy)
}

/// Drops a call after this many steps. Returns whether it was done before.
async fn drop_after<T>(step: Step<T>, steps: u32) -> bool {
    tokio::time::timeout(DROP_STEP * steps, step).await.is_ok()
}

/// Wherever a call is dropped, nothing of the claim is left after its release.
#[tokio::test]
async fn a_dropped_call_leaves_no_node() {
    let fixture = Fixture::new().await;
    let (engine, _proxy) = open_on_slow_connection(&fixture).await;
    let owner = Some(Owner::new());
    let first = claim("a", EXCLUSIVE, owner, LONG_TTL);
    attempt_once(&engine, &first).await.expect("a grant");
    // A waiter, which the owner's next claim has to pass.
    let waiter = claim("a", EXCLUSIVE, None, LONG_TTL);
    assert_eq!(attempt_once(&engine, &waiter).await, None);
    for (whose, left) in [(owner, 2), (None, 2)] {
        for steps in 0.. {
            let again = claim("a", EXCLUSIVE, whose, LONG_TTL);
            let done = drop_after(attempt(&engine, &again, true), steps).await;
            release(&engine, &again).await;
            let nodes = fixture.nodes("a").await;
            assert_eq!(nodes.len(), left, "dropped after {steps} steps: {nodes:?}");
            if done {
                break;
            }
        }
    }
}

/// An owner whose call was dropped retries and re-enters past the waiters, as it would have.
#[tokio::test]
async fn an_owner_re_enters_after_a_dropped_call() {
    let fixture = Fixture::new().await;
    let (engine, _proxy) = open_on_slow_connection(&fixture).await;
    let owner = Some(Owner::new());
    let token = attempt_once(&engine, &claim("a", EXCLUSIVE, owner, LONG_TTL)).await.expect("a grant");
    assert_eq!(attempt_once(&engine, &claim("a", EXCLUSIVE, None, LONG_TTL)).await, None);
    for steps in 0.. {
        let again = claim("a", EXCLUSIVE, owner, LONG_TTL);
        let done = drop_after(attempt(&engine, &again, true), steps).await;
        assert_eq!(attempt_once(&engine, &again).await, Some(token), "dropped after {steps} steps");
        assert_eq!(fixture.nodes("a").await.len(), 3, "dropped after {steps} steps");
        release(&engine, &again).await;
        if done {
            break;
        }
    }
}

/// Two claims of one owner wait. The first is granted, and the second's call is dropped anywhere
/// while it joins. It waits again and is granted; after both releases nothing is left.
#[tokio::test]
async fn a_dropped_wait_can_be_resumed() {
    let fixture = Fixture::new().await;
    let (engine, (other, _proxy)) = (fixture.engine().await, open_on_slow_connection(&fixture).await);
    for steps in 0.. {
        let owner = Some(Owner::new());
        let holder = claim("a", EXCLUSIVE, None, LONG_TTL);
        attempt_once(&engine, &holder).await.expect("a grant");
        let (first, second) = (claim("a", EXCLUSIVE, owner, LONG_TTL), claim("a", EXCLUSIVE, owner, LONG_TTL));
        assert_eq!((attempt_once(&engine, &first).await, attempt_once(&other, &second).await), (None, None));
        release(&engine, &holder).await;
        let Ok(AcquireReply::Granted(grant)) = wait(&engine, &first).await else {
            panic!("the first claim must be granted")
        };
        let done = drop_after(wait(&other, &second), steps).await;
        match tokio::time::timeout(TEST_TIMEOUT, wait(&other, &second)).await.expect("in time").expect("an answer") {
            AcquireReply::Granted(again) => assert_eq!(again.token, grant.token, "dropped after {steps} steps"),
            answer => panic!("dropped after {steps} steps: {answer:?}"),
        }
        release(&engine, &first).await;
        release(&other, &second).await;
        let nodes = fixture.nodes("a").await;
        assert!(nodes.is_empty(), "dropped after {steps} steps: {nodes:?}");
        if done {
            break;
        }
    }
}

/// The client considers a claim's session expired before the servers do. The claim queues again on
/// a new session while its first node still exists, ahead of another claim's.
#[tokio::test]
async fn a_node_of_an_earlier_session_grants_nothing() {
    let fixture = Fixture::new().await;
    let engine = fixture.engine().await;
    let (holder, between, again) = (
        claim("a", EXCLUSIVE, None, LONG_TTL),
        claim("a", EXCLUSIVE, None, LONG_TTL),
        claim("a", EXCLUSIVE, None, LONG_TTL),
    );
    attempt_once(&engine, &holder).await.expect("a grant");
    assert_eq!(attempt_once(&engine, &again).await, None);
    let earlier = fixture.nodes("a").await[1].clone();
    release(&engine, &again).await;
    let prefix = &earlier[..earlier.len() - 10];
    let ephemeral = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let (_, seq) = fixture.client.create(prefix, b"", &ephemeral).await.expect("a node of another session");
    let earlier = format!("{prefix}{seq}");
    assert_eq!(attempt_once(&engine, &between).await, None);
    assert_eq!(attempt_once(&engine, &again).await, None);
    release(&engine, &holder).await;
    // The claim is attempted again when the node of another session is the first.
    assert_eq!(attempt_once(&engine, &again).await, None, "granted by a node of another session");
    let behind = tokio::spawn(wait(&engine, &again));
    fixture.client.delete(&earlier, None).await.expect("a deleted node");
    let Ok(AcquireReply::Granted(grant)) = wait(&engine, &between).await else {
        panic!("the next claim must be granted")
    };
    assert!(!behind.is_finished(), "granted beside the holder");
    release(&engine, &between).await;
    let reply =
        tokio::time::timeout(TEST_TIMEOUT, behind).await.expect("the waiter is granted the lock").expect("no panic");
    let Ok(AcquireReply::Granted(last)) = reply else { panic!("the last claim must be granted") };
    assert!(last.token > grant.token);
}

/// A waiter retries instead of waiting, as after a reconnect, and is granted: the next waiter,
/// which also fits, is notified.
#[tokio::test]
async fn a_waiter_granted_on_retry_notifies_the_next() {
    let fixture = Fixture::new().await;
    let engine = fixture.engine().await;
    let [all, one, other] = [permits(2, 2), permits(1, 2), permits(1, 2)].map(|mode| claim("a", mode, None, LONG_TTL));
    attempt_once(&engine, &all).await.expect("a grant");
    assert_eq!((attempt_once(&engine, &one).await, attempt_once(&engine, &other).await), (None, None));
    let behind = tokio::spawn(wait(&engine, &other));
    release(&engine, &all).await;
    attempt_once(&engine, &one).await.expect("granted on retry");
    let reply =
        tokio::time::timeout(TEST_TIMEOUT, behind).await.expect("the next waiter is notified").expect("no panic");
    assert!(matches!(reply, Ok(AcquireReply::Granted(_))), "{reply:?}");
}

/// A waiter's call is neither polled nor dropped: after a TTL the waiter is skipped.
#[tokio::test]
async fn an_unpolled_waiter_is_skipped() {
    let fixture = Fixture::new().await;
    let engine = fixture.engine().await;
    let (holder, unpolled) = (claim("a", EXCLUSIVE, None, LONG_TTL), claim("a", EXCLUSIVE, None, SHORT));
    attempt_once(&engine, &holder).await.expect("a grant");
    assert_eq!(attempt_once(&engine, &unpolled).await, None);
    let mut call = wait(&engine, &unpolled);
    poll_fn(|cx| {
        assert!(Pin::new(&mut call).poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
    let ahead = fixture.nodes("a").await;
    let next = spawn_waiter(&fixture.open_locks(LONG_TTL).await, "a");
    // The unpolled waiter may be skipped earlier.
    eventually(TEST_TIMEOUT, || async {
        let nodes = fixture.nodes("a").await;
        if nodes.iter().any(|node| !ahead.contains(node)) {
            Ok(())
        } else {
            Err(format!("no waiter behind: {nodes:?}"))
        }
    })
    .await;
    release(&engine, &holder).await;
    let (_, guard) = tokio::time::timeout(TEST_TIMEOUT, next).await.expect("the lock is stuck").expect("no panic");
    drop((call, guard));
}

/// An attempt on a session whose state is unknown reports that the lock is not free: then it must
/// not acquire it.
#[cfg(feature = "nightly")]
#[tokio::test]
async fn a_busy_attempt_acquires_nothing() {
    let fixture = Fixture::new().await;
    let (engine, proxy) = open_on_slow_connection(&fixture).await;
    let ttl = Duration::from_secs(2);
    let first = claim("a", EXCLUSIVE, None, ttl);
    attempt_once(&engine, &first).await.expect("a grant");
    release(&engine, &first).await;
    // Pings continue, but no reply arrives for most of the session timeout.
    let clock = Clock::system();
    eventually(TEST_TIMEOUT, || async {
        proxy.freeze(true);
        clock.sleep_until(clock.now().saturating_add(ttl * 17 / 20)).await;
        let again = claim("a", EXCLUSIVE, None, ttl);
        let call = tokio::spawn(attempt(&engine, &again, false));
        proxy.freeze(false);
        match call.await.expect("no panic") {
            Ok(AcquireReply::Busy { .. }) => {
                let nodes = fixture.nodes("a").await;
                assert!(nodes.is_empty(), "busy, but with a node: {nodes:?}");
                Ok(())
            }
            answer => {
                release(&engine, &again).await;
                Err(format!("{answer:?}"))
            }
        }
    })
    .await;
}
