//! Servers that hang (SIGSTOP) and go on: who hangs is waited for once, and takes part again afterwards.

use std::sync::Arc;

use leasehold::Locks;
use leasehold_conformance::world::SOON;
use tokio::time::timeout;

use crate::redlock_faults::site::{Ahead, LASTING, Site, client, give_back, guard, lock, spawn_lock, until_in_touch};

/// Had each of so many cycles waited for who hangs, as long as for any node, they would take longer than any test waits.
const NODE_TIMEOUT: &str = "node-timeout=2s";
const CYCLES: u32 = 61;

/// Who hangs is waited for by each client once, by those who do not get the lock: they ask all.
pub(super) async fn costs_one_node_timeout(hang: &[usize]) {
    let mut site = Site::new().await;
    let (engine, other) = (site.engine(NODE_TIMEOUT).await, site.locks_with(LASTING, NODE_TIMEOUT).await);
    let locks = Locks::builder().ttl(LASTING).open_engine(Arc::clone(&engine));
    give_back(lock(&locks, "a").await).await;
    site.pause(hang);
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_who_hangs_is_waited_for_once() {
    costs_one_node_timeout(&[1]).await;
}

/// A holder goes on through hanging servers, with somebody who waits, and so do the waiter and the servers afterwards.
pub(super) async fn holds_through(hang: &[usize]) {
    // The clock of who waits is not moved meanwhile: its pauses would be as long.
    let (mut site, ahead, theirs) = (Site::new().await, Ahead::new(), Ahead::new());
    let url = site.url(NODE_TIMEOUT);
    let (locks, other) = (client(&url, LASTING, &ahead.clock()).await, client(&url, LASTING, &theirs.clock()).await);
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
