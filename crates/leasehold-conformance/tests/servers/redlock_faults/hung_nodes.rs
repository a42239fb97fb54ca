//! Servers that hang (SIGSTOP) and go on: who hangs is waited for once, and takes part again afterwards.

use std::sync::Arc;
use std::time::Duration;

use leasehold::Locks;
use leasehold::engine::Engine;
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::eventually;
use tokio::time::timeout;

use crate::redlock_faults::fixture::{
    Fixture, LASTING, NODES, PATIENT, ShiftedClock, attempt, await_guard, claim, connected_client, lock, release,
    spawn_lock, until_all_respond,
};

/// How long a node is waited for by those who have to find out that it hangs.
const NODE_TIMEOUT: &str = "node-timeout=2s";

/// Three cycles that waited for who hangs, a minute each, would take longer than any test waits.
const CYCLES: u32 = 3;

/// Once a client knows who hangs, it does not wait for it, also where it asks all because it does not get the lock.
pub(super) async fn assert_hung_nodes_cost_one_timeout(hung: &[usize]) {
    let mut site = Fixture::new().await;
    let (engine, theirs) = (site.engine(PATIENT).await, site.engine(PATIENT).await);
    let of = |engine: &Arc<dyn Engine>| Locks::builder().ttl(LASTING).open_engine(Arc::clone(engine));
    let (locks, other) = (of(&engine), of(&theirs));
    release(lock(&locks, "a").await).await;
    site.pause(hung);
    for engine in [&engine, &theirs] {
        wait_detected(&site, engine, hung).await;
    }
    let cycles = async {
        for _ in 0..CYCLES {
            let held = lock(&locks, "a").await;
            assert!(other.mutex("a").try_lock().await.expect("an answer").is_none());
            release(held).await;
        }
        release(lock(&other, "a").await).await;
    };
    timeout(TEST_TIMEOUT, cycles).await.expect("nobody waits for who hangs each time");
    site.until_claim_counts("a", 0).await;
    site.resume(hung);
    // It was told of all these claims and of their ends, each in time or later.
    site.until_claim_counts("a", 0).await;
    until_all_respond(&engine).await;
    let held = lock(&locks, "a").await;
    site.until_claim_counts("a", 1).await;
    release(held).await;
    site.until_claim_counts("a", 0).await;
}

/// Waits until an engine knows that these hang, and that the others answer. A short lease waits for no node as long as a lasting one.
async fn wait_detected(site: &Fixture, engine: &Arc<dyn Engine>, hung: &[usize]) {
    let short = claim("short", None, Duration::from_secs(1));
    eventually(TEST_TIMEOUT, || async {
        let shown = format!("{engine:?}");
        let silent = |at: usize| shown.contains(&format!("Node({}, silent)", site.server(at).addr()));
        let wrong: Vec<_> = (0..NODES).filter(|at| silent(*at) != hung.contains(at)).collect();
        if wrong.iter().any(|at| hung.contains(at)) {
            // Whatever the answer is.
            let _ = attempt(engine, &short).await;
        }
        if wrong.is_empty() { Ok(()) } else { Err(shown) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_node_is_waited_for_once() {
    assert_hung_nodes_cost_one_timeout(&[1]).await;
}

/// A holder goes on through hanging servers, with somebody who waits, and so do the waiter and the servers afterwards.
pub(super) async fn assert_holds_through(hung: &[usize]) {
    // The clock of who waits is not moved meanwhile: its pauses would be as long.
    let (mut site, ahead, theirs) = (Fixture::new().await, ShiftedClock::new(), ShiftedClock::new());
    let locks = site.locks_with_clock(&ahead).await;
    let other = connected_client(&site.url(NODE_TIMEOUT), LASTING, &theirs.clock()).await;
    let held = lock(&locks, "a").await;
    let waits = spawn_lock(&other, "a");
    site.pause(hung);
    ahead.renew_now(&[&held], LASTING).await;
    // Taken while they hang.
    let late = lock(&locks, "late").await;
    assert!(!waits.is_finished(), "somebody else got it");
    site.resume(hung);
    ahead.renew_now(&[&held, &late], LASTING).await;
    site.until_claim_counts("late", 1).await;
    site.pause(hung);
    let token = held.token();
    release(held).await;
    let next = await_guard(waits).await;
    assert!(next.token() > token);
    theirs.renew_now(&[&next], LASTING).await;
    site.resume(hung);
    release(late).await;
    site.until_claim_counts("a", 1).await;
    release(next).await;
    for name in ["a", "late"] {
        site.until_claim_counts(name, 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_keeps_its_lock_while_two_nodes_hang() {
    assert_holds_through(&[1, 3]).await;
}
