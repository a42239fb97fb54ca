//! What goes wrong in the middle of a step: calls that are dropped, or not polled, or whose session is replaced.

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

/// How long a request takes on its way, and its answer.
const ONE_WAY_DELAY: Duration = Duration::from_millis(5);

/// Calls are dropped after none, one, two... of these: each of their requests is met on its way, and its answer, too.
const DROP_STEP: Duration = Duration::from_millis(4);

/// An engine on a slow line.
async fn open_on_slow_connection(site: &Fixture) -> (Arc<dyn Engine>, Proxy) {
    let proxy = Proxy::start(site.client_addr()).await.expect("a proxy");
    let url = site.url().replace(&site.client_addr().to_string(), &proxy.addr().to_string());
    let engine = leasehold::registry::open(&url, &Clock::system()).await.expect("an engine");
    // Its session is there before the line is slow.
    let first = claim("first", EXCLUSIVE, None, LONG_TTL);
    attempt_once(&engine, &first).await.expect("a grant");
    release(&engine, &first).await;
    proxy.delay(ONE_WAY_DELAY);
    (engine, proxy)
}

/// Drops a call after so many beats. `true`: it was done before.
async fn drop_after<T>(step: Step<T>, beats: u32) -> bool {
    tokio::time::timeout(DROP_STEP * beats, step).await.is_ok()
}

/// Wherever a call is dropped: after the claim was given back, nothing of it is left.
#[tokio::test]
async fn a_call_that_is_dropped_anywhere_leaves_nothing() {
    let site = Fixture::new().await;
    let (engine, _line) = open_on_slow_connection(&site).await;
    let owner = Some(Owner::new());
    let first = claim("a", EXCLUSIVE, owner, LONG_TTL);
    attempt_once(&engine, &first).await.expect("a grant");
    // Somebody waits, so that the owner's next claim has to pass it.
    let waiter = claim("a", EXCLUSIVE, None, LONG_TTL);
    assert_eq!(attempt_once(&engine, &waiter).await, None);
    for (whose, left) in [(owner, 2), (None, 2)] {
        for beats in 0.. {
            let again = claim("a", EXCLUSIVE, whose, LONG_TTL);
            let done = drop_after(attempt(&engine, &again, true), beats).await;
            release(&engine, &again).await;
            let nodes = site.nodes("a").await;
            assert_eq!(nodes.len(), left, "dropped after {beats} beats: {nodes:?}");
            if done {
                break;
            }
        }
    }
}

/// An owner whose call was dropped asks again, and enters past those who wait, as it would have.
#[tokio::test]
async fn an_owner_enters_again_after_a_call_that_was_dropped_anywhere() {
    let site = Fixture::new().await;
    let (engine, _line) = open_on_slow_connection(&site).await;
    let owner = Some(Owner::new());
    let token = attempt_once(&engine, &claim("a", EXCLUSIVE, owner, LONG_TTL)).await.expect("a grant");
    assert_eq!(attempt_once(&engine, &claim("a", EXCLUSIVE, None, LONG_TTL)).await, None);
    for beats in 0.. {
        let again = claim("a", EXCLUSIVE, owner, LONG_TTL);
        let done = drop_after(attempt(&engine, &again, true), beats).await;
        assert_eq!(attempt_once(&engine, &again).await, Some(token), "dropped after {beats} beats");
        assert_eq!(site.nodes("a").await.len(), 3, "dropped after {beats} beats");
        release(&engine, &again).await;
        if done {
            break;
        }
    }
}

/// Two claims of an owner wait; the first is let in, and the second's call is dropped anywhere while it joins. It waits again, and
/// is let in; and when both are given back, nothing is left.
#[tokio::test]
async fn a_wait_that_is_dropped_anywhere_goes_on_where_it_was() {
    let site = Fixture::new().await;
    let (engine, (other, _line)) = (site.engine().await, open_on_slow_connection(&site).await);
    for beats in 0.. {
        let owner = Some(Owner::new());
        let holder = claim("a", EXCLUSIVE, None, LONG_TTL);
        attempt_once(&engine, &holder).await.expect("a grant");
        let (first, second) = (claim("a", EXCLUSIVE, owner, LONG_TTL), claim("a", EXCLUSIVE, owner, LONG_TTL));
        assert_eq!((attempt_once(&engine, &first).await, attempt_once(&other, &second).await), (None, None));
        release(&engine, &holder).await;
        let Ok(AcquireReply::Granted(grant)) = wait(&engine, &first).await else { panic!("the first is let in") };
        let done = drop_after(wait(&other, &second), beats).await;
        match tokio::time::timeout(TEST_TIMEOUT, wait(&other, &second)).await.expect("in time").expect("an answer") {
            AcquireReply::Granted(again) => assert_eq!(again.token, grant.token, "dropped after {beats} beats"),
            answer => panic!("dropped after {beats} beats: {answer:?}"),
        }
        release(&engine, &first).await;
        release(&other, &second).await;
        let nodes = site.nodes("a").await;
        assert!(nodes.is_empty(), "dropped after {beats} beats: {nodes:?}");
        if done {
            break;
        }
    }
}

/// A claim's session is over for its client, and not yet for the servers: the claim comes anew, on another session, while its first
/// node is still there, ahead of somebody else's.
#[tokio::test]
async fn a_claim_s_node_of_an_earlier_session_does_not_hold_for_it() {
    let site = Fixture::new().await;
    let engine = site.engine().await;
    let (holder, between, again) = (
        claim("a", EXCLUSIVE, None, LONG_TTL),
        claim("a", EXCLUSIVE, None, LONG_TTL),
        claim("a", EXCLUSIVE, None, LONG_TTL),
    );
    attempt_once(&engine, &holder).await.expect("a grant");
    assert_eq!(attempt_once(&engine, &again).await, None);
    let earlier = site.nodes("a").await[1].clone();
    release(&engine, &again).await;
    let prefix = &earlier[..earlier.len() - 10];
    let ephemeral = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let (_, seq) = site.client.create(prefix, b"", &ephemeral).await.expect("a node of another session");
    let earlier = format!("{prefix}{seq}");
    assert_eq!(attempt_once(&engine, &between).await, None);
    assert_eq!(attempt_once(&engine, &again).await, None);
    release(&engine, &holder).await;
    // It is asked again and answered, when the node of another session is the first.
    assert_eq!(attempt_once(&engine, &again).await, None, "it holds by a node of another session");
    let behind = tokio::spawn(wait(&engine, &again));
    site.client.delete(&earlier, None).await.expect("a deleted node");
    let Ok(AcquireReply::Granted(grant)) = wait(&engine, &between).await else { panic!("the next is let in") };
    assert!(!behind.is_finished(), "it holds beside the one before it");
    release(&engine, &between).await;
    let told = tokio::time::timeout(TEST_TIMEOUT, behind).await.expect("its turn").expect("no panic");
    let Ok(AcquireReply::Granted(last)) = told else { panic!("the last is let in") };
    assert!(last.token > grant.token);
}

/// Somebody asks again instead of waiting, as after a broken line, and is let in: the one behind, who fits, too, hears of it.
#[tokio::test]
async fn a_waiter_granted_on_retry_notifies_the_next() {
    let site = Fixture::new().await;
    let engine = site.engine().await;
    let [all, one, other] = [permits(2, 2), permits(1, 2), permits(1, 2)].map(|mode| claim("a", mode, None, LONG_TTL));
    attempt_once(&engine, &all).await.expect("a grant");
    assert_eq!((attempt_once(&engine, &one).await, attempt_once(&engine, &other).await), (None, None));
    let behind = tokio::spawn(wait(&engine, &other));
    release(&engine, &all).await;
    attempt_once(&engine, &one).await.expect("it asks again, and is let in");
    let told = tokio::time::timeout(TEST_TIMEOUT, behind).await.expect("nobody told it").expect("no panic");
    assert!(matches!(told, Ok(AcquireReply::Granted(_))), "{told:?}");
}

/// Nobody polls a waiter's call any more, and nobody drops it: after a TTL it is passed over.
#[tokio::test]
async fn an_unpolled_waiter_is_skipped() {
    let site = Fixture::new().await;
    let engine = site.engine().await;
    let (holder, silent) = (claim("a", EXCLUSIVE, None, LONG_TTL), claim("a", EXCLUSIVE, None, SHORT));
    attempt_once(&engine, &holder).await.expect("a grant");
    assert_eq!(attempt_once(&engine, &silent).await, None);
    let mut call = wait(&engine, &silent);
    poll_fn(|cx| {
        assert!(Pin::new(&mut call).poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
    let ahead = site.nodes("a").await;
    let next = spawn_waiter(&site.open_locks(LONG_TTL).await, "a");
    // The silent one may be passed over before.
    eventually(TEST_TIMEOUT, || async {
        let nodes = site.nodes("a").await;
        if nodes.iter().any(|node| !ahead.contains(node)) { Ok(()) } else { Err(format!("nobody behind: {nodes:?}")) }
    })
    .await;
    release(&engine, &holder).await;
    let (_, guard) = tokio::time::timeout(TEST_TIMEOUT, next).await.expect("the lock is stuck").expect("a contender");
    drop((call, guard));
}

/// An attempt of a session of which too little is known says that the lock is not free: then it is not taken, either.
#[cfg(feature = "nightly")]
#[tokio::test]
async fn a_busy_attempt_acquires_nothing() {
    let site = Fixture::new().await;
    let (engine, proxy) = open_on_slow_connection(&site).await;
    let ttl = Duration::from_secs(2);
    let first = claim("a", EXCLUSIVE, None, ttl);
    attempt_once(&engine, &first).await.expect("a grant");
    release(&engine, &first).await;
    // Pings go on, but nothing is answered for most of a session.
    let clock = Clock::system();
    eventually(TEST_TIMEOUT, || async {
        proxy.freeze(true);
        clock.sleep_until(clock.now().saturating_add(ttl * 17 / 20)).await;
        let again = claim("a", EXCLUSIVE, None, ttl);
        let call = tokio::spawn(attempt(&engine, &again, false));
        proxy.freeze(false);
        match call.await.expect("no panic") {
            Ok(AcquireReply::Busy { .. }) => {
                let nodes = site.nodes("a").await;
                assert!(nodes.is_empty(), "busy, and yet it has {nodes:?}");
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
