//! Servers that hang (SIGSTOP) and go on: who hangs is waited for once, and takes part again afterwards.

use std::sync::Arc;
use std::time::Duration;

use leasehold::Locks;
use leasehold::engine::Engine;
use leasehold_conformance::world::SOON;
use leasehold_testbed::eventually;
use tokio::time::timeout;

use crate::redlock_faults::site::{
    Ahead, LASTING, NODES, PATIENT, Site, attempt, claim, client, give_back, guard, lock, spawn_lock, until_in_touch,
};

/// How long a node is waited for by those who have to find out that it hangs.
const NODE_TIMEOUT: &str = "node-timeout=2s";

/// Three cycles that waited for who hangs, a minute each, would take longer than any test waits.
const CYCLES: u32 = 3;

/// Once a client knows who hangs, it does not wait for it, also where it asks all because it does not get the lock.
pub(super) async fn costs_one_node_timeout(hang: &[usize]) {
    let mut site = Site::new().await;
    let (engine, theirs) = (site.engine(PATIENT).await, site.engine(PATIENT).await);
    let of = |engine: &Arc<dyn Engine>| Locks::builder().ttl(LASTING).open_engine(Arc::clone(engine));
    let (locks, other) = (of(&engine), of(&theirs));
    give_back(lock(&locks, "a").await).await;
    site.pause(hang);
    for engine in [&engine, &theirs] {
        until_known(&site, engine, hang).await;
    }
    let cycles = async {
        for _ in 0..CYCLES {
            let held = lock(&locks, "a").await;
            assert!(other.mutex("a").try_lock().await.expect("an answer").is_none());
            give_back(held).await;
        }
        give_back(lock(&other, "a").await).await;
    };
    timeout(SOON, cycles).await.expect("nobody waits for who hangs each time");
    site.until_claims("a", 0).await;
    site.resume(hang);
    // It was told of all these claims and of their ends, each in time or later.
    site.until_claims("a", 0).await;
    until_in_touch(&engine).await;
    let held = lock(&locks, "a").await;
    site.until_claims("a", 1).await;
    give_back(held).await;
    site.until_claims("a", 0).await;
}

/// Waits until an engine knows that these hang, and that the others answer. A short lease waits for no node as long as a lasting one.
async fn until_known(site: &Site, engine: &Arc<dyn Engine>, hang: &[usize]) {
    let short = claim("short", None, Duration::from_secs(1));
    eventually(SOON, || async {
        let shown = format!("{engine:?}");
        let silent = |at: usize| shown.contains(&format!("Node({}, silent)", site.server(at).addr()));
        let wrong: Vec<_> = (0..NODES).filter(|at| silent(*at) != hang.contains(at)).collect();
        if wrong.iter().any(|at| hang.contains(at)) {
            // Whatever the answer is.
            let _ = attempt(engine, &short).await;
        }
        if wrong.is_empty() { Ok(()) } else { Err(shown) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_who_hangs_is_waited_for_once() {
    costs_one_node_timeout(&[1]).await;
}

/// A holder goes on through hanging servers, with somebody who waits, and so do the waiter and the servers afterwards.
pub(super) async fn holds_through(hang: &[usize]) {
    // The clock of who waits is not moved meanwhile: its pauses would be as long.
    let (mut site, ahead, theirs) = (Site::new().await, Ahead::new(), Ahead::new());
    let locks = site.locks_on(&ahead).await;
    let other = client(&site.url(NODE_TIMEOUT), LASTING, &theirs.clock()).await;
    let held = lock(&locks, "a").await;
    let waits = spawn_lock(&other, "a");
    site.pause(hang);
    ahead.renewed(&[&held], LASTING).await;
    // Taken while they hang.
    let late = lock(&locks, "late").await;
    assert!(!waits.is_finished(), "somebody else got it");
    site.resume(hang);
    ahead.renewed(&[&held, &late], LASTING).await;
    site.until_claims("late", 1).await;
    site.pause(hang);
    let token = held.token();
    give_back(held).await;
    let next = guard(waits).await;
    assert!(next.token() > token);
    theirs.renewed(&[&next], LASTING).await;
    site.resume(hang);
    give_back(late).await;
    site.until_claims("a", 1).await;
    give_back(next).await;
    for name in ["a", "late"] {
        site.until_claims(name, 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_goes_on_while_two_hang() {
    holds_through(&[1, 3]).await;
}
