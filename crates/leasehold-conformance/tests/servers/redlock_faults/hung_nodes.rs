//! Servers that hang (SIGSTOP) and resume: a client waits for a hung server once, and uses it again
//! afterwards.

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

/// The node timeout of clients that have to detect a hung node.
const NODE_TIMEOUT: &str = "node-timeout=2s";

/// Three cycles that each wait a minute for a hung node would exceed the test's timeout.
const CYCLES: u32 = 3;

/// Once a client has detected a hung node it does not wait for it, even when it needs all nodes
/// after a failed attempt.
pub(super) async fn assert_hung_nodes_cost_one_timeout(hung: &[usize]) {
    let mut fixture = Fixture::new().await;
    let (engine, other_engine) = (fixture.engine(PATIENT).await, fixture.engine(PATIENT).await);
    let of = |engine: &Arc<dyn Engine>| Locks::builder().ttl(LASTING).open_engine(Arc::clone(engine));
    let (locks, other) = (of(&engine), of(&other_engine));
    release(lock(&locks, "a").await).await;
    fixture.pause(hung);
    for engine in [&engine, &other_engine] {
        wait_detected(&fixture, engine, hung).await;
    }
    let cycles = async {
        for _ in 0..CYCLES {
            let held = lock(&locks, "a").await;
            assert!(other.mutex("a").try_lock().await.expect("an answer").is_none());
            release(held).await;
        }
        release(lock(&other, "a").await).await;
    };
    timeout(TEST_TIMEOUT, cycles).await.expect("no cycle waits for a hung node");
    fixture.until_claim_counts("a", 0).await;
    fixture.resume(hung);
    // The resumed nodes received all claims and releases, in time or late.
    fixture.until_claim_counts("a", 0).await;
    until_all_respond(&engine).await;
    let held = lock(&locks, "a").await;
    fixture.until_claim_counts("a", 1).await;
    release(held).await;
    fixture.until_claim_counts("a", 0).await;
}

/// Waits until an engine has detected exactly these hung nodes. A short lease has a short node
/// timeout.
async fn wait_detected(fixture: &Fixture, engine: &Arc<dyn Engine>, hung: &[usize]) {
    let short = claim("short", None, Duration::from_secs(1));
    eventually(TEST_TIMEOUT, || async {
        let shown = format!("{engine:?}");
        let is_unresponsive = |at: usize| shown.contains(&format!("Node({}, unresponsive)", fixture.server(at).addr()));
        let wrong: Vec<_> = (0..NODES).filter(|at| is_unresponsive(*at) != hung.contains(at)).collect();
        if wrong.iter().any(|at| hung.contains(at)) {
            // The result does not matter.
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

/// A holder keeps its lock while servers hang, and a waiter is served afterwards.
pub(super) async fn assert_holds_through(hung: &[usize]) {
    // The waiter's clock is not moved meanwhile, or its back-off would grow as well.
    let (mut fixture, ahead, waiter_clock) = (Fixture::new().await, ShiftedClock::new(), ShiftedClock::new());
    let locks = fixture.locks_with_clock(&ahead).await;
    let other = connected_client(&fixture.url(NODE_TIMEOUT), LASTING, &waiter_clock.clock()).await;
    let held = lock(&locks, "a").await;
    let waits = spawn_lock(&other, "a");
    fixture.pause(hung);
    ahead.renew_now(&[&held], LASTING).await;
    // Acquired while the nodes hang.
    let late = lock(&locks, "late").await;
    assert!(!waits.is_finished(), "the waiter acquired a held lock");
    fixture.resume(hung);
    ahead.renew_now(&[&held, &late], LASTING).await;
    fixture.until_claim_counts("late", 1).await;
    fixture.pause(hung);
    let token = held.token();
    release(held).await;
    let next = await_guard(waits).await;
    assert!(next.token() > token);
    waiter_clock.renew_now(&[&next], LASTING).await;
    fixture.resume(hung);
    release(late).await;
    fixture.until_claim_counts("a", 1).await;
    release(next).await;
    for name in ["a", "late"] {
        fixture.until_claim_counts(name, 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_keeps_its_lock_while_two_nodes_hang() {
    assert_holds_through(&[1, 3]).await;
}
