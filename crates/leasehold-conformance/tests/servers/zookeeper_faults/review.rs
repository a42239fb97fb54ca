//! What goes wrong in the middle of a step: calls that are dropped, or not polled, or whose session is replaced.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::engine::{Answer, Engine, Step};
use leasehold::{Claim, Mode, Owner};
use leasehold_conformance::world::SOON;
use leasehold_testbed::{Proxy, eventually};
use leasehold_zookeeper::{Acls, CreateMode};

use crate::zookeeper_faults::site::{LONG, SHORT, Site, ask, claim, contender};

const X: Mode = Mode::Exclusive;

fn attempt(engine: &Arc<dyn Engine>, claim: &Arc<Claim>, queue: bool) -> Step<Answer> {
    Arc::clone(engine).attempt(Arc::clone(claim), queue)
}

fn wait(engine: &Arc<dyn Engine>, claim: &Arc<Claim>) -> Step<Answer> {
    Arc::clone(engine).wait(Arc::clone(claim), SOON)
}

async fn release(engine: &Arc<dyn Engine>, claim: &Arc<Claim>) {
    let _ = Arc::clone(engine).release(Arc::clone(claim)).await.expect("a release");
}

fn permits(n: u32, limit: u32) -> Mode {
    Mode::Permits { n, limit }
}

/// How long a request takes on its way, and its answer.
const WAY: Duration = Duration::from_millis(5);

/// Calls are dropped after none, one, two... of these: each of their requests is met on its way, and its answer, too.
const BEAT: Duration = Duration::from_millis(4);

/// An engine on a slow line.
async fn slow(site: &Site) -> (Arc<dyn Engine>, Proxy) {
    let proxy = Proxy::start(site.client_addr()).await.expect("a proxy");
    let url = site.url().replace(&site.client_addr().to_string(), &proxy.addr().to_string());
    let engine = leasehold::engine::open(&url, &Clock::system()).await.expect("an engine");
    // Its session is there before the line is slow.
    let first = claim("first", X, None, LONG);
    ask(&engine, &first).await.expect("a grant");
    release(&engine, &first).await;
    proxy.delay(WAY);
    (engine, proxy)
}

/// Drops a call after so many beats. `true`: it was done before.
async fn dropped_after<T>(step: Step<T>, beats: u32) -> bool {
    tokio::time::timeout(BEAT * beats, step).await.is_ok()
}

/// Wherever a call is dropped: after the claim was given back, nothing of it is left.
#[tokio::test]
async fn a_call_that_is_dropped_anywhere_leaves_nothing() {
    let site = Site::new().await;
    let (engine, _line) = slow(&site).await;
    let owner = Some(Owner::new());
    let first = claim("a", X, owner, LONG);
    ask(&engine, &first).await.expect("a grant");
    // Somebody waits, so that the owner's next claim has to pass it.
    let waiter = claim("a", X, None, LONG);
    assert_eq!(ask(&engine, &waiter).await, None);
    for (whose, left) in [(owner, 2), (None, 2)] {
        for beats in 0.. {
            let again = claim("a", X, whose, LONG);
            let done = dropped_after(attempt(&engine, &again, true), beats).await;
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
    let site = Site::new().await;
    let (engine, _line) = slow(&site).await;
    let owner = Some(Owner::new());
    let token = ask(&engine, &claim("a", X, owner, LONG)).await.expect("a grant");
    assert_eq!(ask(&engine, &claim("a", X, None, LONG)).await, None);
    for beats in 0.. {
        let again = claim("a", X, owner, LONG);
        let done = dropped_after(attempt(&engine, &again, true), beats).await;
        assert_eq!(ask(&engine, &again).await, Some(token), "dropped after {beats} beats");
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
    let site = Site::new().await;
    let (engine, (other, _line)) = (site.engine().await, slow(&site).await);
    for beats in 0.. {
        let owner = Some(Owner::new());
        let holder = claim("a", X, None, LONG);
        ask(&engine, &holder).await.expect("a grant");
        let (first, second) = (claim("a", X, owner, LONG), claim("a", X, owner, LONG));
        assert_eq!((ask(&engine, &first).await, ask(&other, &second).await), (None, None));
        release(&engine, &holder).await;
        let Ok(Answer::Granted(grant)) = wait(&engine, &first).await else { panic!("the first is let in") };
        let done = dropped_after(wait(&other, &second), beats).await;
        match tokio::time::timeout(SOON, wait(&other, &second)).await.expect("in time").expect("an answer") {
            Answer::Granted(again) => assert_eq!(again.token, grant.token, "dropped after {beats} beats"),
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
    let site = Site::new().await;
    let engine = site.engine().await;
    let (holder, between, again) = (claim("a", X, None, LONG), claim("a", X, None, LONG), claim("a", X, None, LONG));
    ask(&engine, &holder).await.expect("a grant");
    assert_eq!(ask(&engine, &again).await, None);
    let earlier = site.nodes("a").await[1].clone();
    release(&engine, &again).await;
    let prefix = &earlier[..earlier.len() - 10];
    let ephemeral = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let (_, seq) = site.client.create(prefix, b"", &ephemeral).await.expect("a node of another session");
    let earlier = format!("{prefix}{seq}");
    assert_eq!(ask(&engine, &between).await, None);
    assert_eq!(ask(&engine, &again).await, None);
    release(&engine, &holder).await;
    // It is asked again and answered, when the node of another session is the first.
    assert_eq!(ask(&engine, &again).await, None, "it holds by a node of another session");
    let behind = tokio::spawn(wait(&engine, &again));
    site.client.delete(&earlier, None).await.expect("a deleted node");
    let Ok(Answer::Granted(grant)) = wait(&engine, &between).await else { panic!("the next is let in") };
    assert!(!behind.is_finished(), "it holds beside the one before it");
    release(&engine, &between).await;
    let told = tokio::time::timeout(SOON, behind).await.expect("its turn").expect("no panic");
    let Ok(Answer::Granted(last)) = told else { panic!("the last is let in") };
    assert!(last.token > grant.token);
}

/// Somebody asks again instead of waiting, as after a broken line, and is let in: the one behind, who fits, too, hears of it.
#[tokio::test]
async fn who_is_let_in_by_asking_again_tells_the_one_behind() {
    let site = Site::new().await;
    let engine = site.engine().await;
    let [all, one, other] = [permits(2, 2), permits(1, 2), permits(1, 2)].map(|mode| claim("a", mode, None, LONG));
    ask(&engine, &all).await.expect("a grant");
    assert_eq!((ask(&engine, &one).await, ask(&engine, &other).await), (None, None));
    let behind = tokio::spawn(wait(&engine, &other));
    release(&engine, &all).await;
    ask(&engine, &one).await.expect("it asks again, and is let in");
    let told = tokio::time::timeout(SOON, behind).await.expect("nobody told it").expect("no panic");
    assert!(matches!(told, Ok(Answer::Granted(_))), "{told:?}");
}

/// Nobody polls a waiter's call any more, and nobody drops it: after a TTL it is passed over.
#[tokio::test]
async fn a_waiter_that_nobody_polls_is_passed_over() {
    let site = Site::new().await;
    let engine = site.engine().await;
    let (holder, silent) = (claim("a", X, None, LONG), claim("a", X, None, SHORT));
    ask(&engine, &holder).await.expect("a grant");
    assert_eq!(ask(&engine, &silent).await, None);
    let mut call = wait(&engine, &silent);
    poll_fn(|cx| {
        assert!(Pin::new(&mut call).poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
    let ahead = site.nodes("a").await;
    let next = contender(&site.locks(LONG).await, "a");
    // The silent one may be passed over before.
    eventually(SOON, || async {
        let nodes = site.nodes("a").await;
        if nodes.iter().any(|node| !ahead.contains(node)) { Ok(()) } else { Err(format!("nobody behind: {nodes:?}")) }
    })
    .await;
    release(&engine, &holder).await;
    let (_, guard) = tokio::time::timeout(SOON, next).await.expect("the lock is stuck").expect("a contender");
    drop((call, guard));
}

/// An attempt of a session of which too little is known says that the lock is not free: then it is not taken, either.
#[cfg(feature = "nightly")]
#[tokio::test]
async fn a_try_that_is_told_busy_has_taken_nothing() {
    let site = Site::new().await;
    let (engine, proxy) = slow(&site).await;
    let ttl = Duration::from_secs(2);
    let first = claim("a", X, None, ttl);
    ask(&engine, &first).await.expect("a grant");
    release(&engine, &first).await;
    // Pings go on, but nothing is answered for most of a session.
    let clock = Clock::system();
    eventually(SOON, || async {
        proxy.freeze(true);
        clock.sleep_until(clock.now().after(ttl * 17 / 20)).await;
        let again = claim("a", X, None, ttl);
        let call = tokio::spawn(attempt(&engine, &again, false));
        proxy.freeze(false);
        match call.await.expect("no panic") {
            Ok(Answer::Busy { .. }) => {
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
