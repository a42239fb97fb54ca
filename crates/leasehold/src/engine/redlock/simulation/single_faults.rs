//! Single faults, at the moment when they matter most. The times are virtual: they do not depend on
//! the machine.

use std::sync::Arc;
use std::time::Duration;

use super::client::LOCK;
use super::world::{Plan, World};
use crate::core::guard::ReleaseOutcome;
use crate::engine::LostReason;
use crate::types::ErrorKind;
use crate::virtual_time::{self, Rng};

const TTL: Duration = Duration::from_secs(10);
/// Longer than a message and its answer take, with the rounding of timers.
const TRIP: Duration = Duration::from_millis(10);
/// The longest pause of a waiter, with its attempt.
const PAUSE: Duration = Duration::from_millis(300);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A world without random faults.
fn run_world<F: Future<Output = ()>>(adjust: fn(&mut Plan), test: impl FnOnce(Arc<World>) -> F) {
    let mut plan = Plan::without_faults(TTL);
    adjust(&mut plan);
    virtual_time::run_seed(1, async {
        let world = World::new(plan, Rng::new(1), false);
        test(Arc::clone(&world)).await;
        let report = world.checker().take_report();
        assert!(report.violations.is_empty(), "{:#?}", report.violations);
    });
}

#[test]
fn a_hung_node_is_not_waited_for() {
    run_world(
        |_| {},
        async |world| {
            let locks = world.client(0).await;
            world.hang(0, TTL * 10);
            for _ in 0..3 {
                let start = world.clock.now();
                let guard = locks.mutex(LOCK).lock().await.unwrap();
                assert!(world.clock.now().duration_since(start) <= TRIP * 2, "no longer than the others need");
                assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
                assert!(world.clock.now().duration_since(start) <= TRIP * 4);
            }
        },
    );
}

#[test]
fn a_hung_majority_is_an_error_by_the_end_of_the_wait() {
    run_world(
        |_| {},
        async |world| {
            let locks = world.client(0).await;
            world.hang(0, TTL * 10);
            world.hang(2, TTL * 10);
            let start = world.clock.now();
            let error = locks.mutex(LOCK).timeout(seconds(2)).lock().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(world.clock.now().duration_since(start) <= seconds(2) + Duration::from_millis(260));
        },
    );
}

#[test]
fn a_node_that_recovers_receives_the_releases_it_missed() {
    run_world(
        |_| {},
        async |world| {
            let locks = world.client(0).await;
            world.hang(0, seconds(5));
            let guard = locks.mutex(LOCK).lock().await.unwrap();
            assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
            // Delayed requests arrive when the node wakes, in any order; the node is probed once a
            // second at least.
            world.clock.sleep(seconds(7)).await;
            assert_eq!(world.server(0).live_claims(world.clock.now()), [], "long before the TTL");
            world.stop(1);
            let guard = locks.mutex(LOCK).timeout(seconds(1)).lock().await.unwrap();
            assert_eq!(world.server(0).live_claims(world.clock.now()).len(), 1, "it is asked again");
            drop(guard);
        },
    );
}

/// A node may respond again at any moment of an attempt that left it out.
#[test]
fn a_node_that_comes_back_during_an_attempt_learns_of_the_claim() {
    for offset in (0..1500).step_by(3) {
        run_world(
            |_| {},
            async |world| {
                let locks = world.client(0).await;
                let start = world.clock.now();
                world.hang(0, seconds(5));
                assert_eq!(locks.mutex(LOCK).lock().await.unwrap().release().await.unwrap(), ReleaseOutcome::Released);
                world.clock.sleep_until(start.saturating_add(seconds(5) + Duration::from_millis(offset))).await;
                let guard = locks.mutex(LOCK).lock().await.unwrap();
                // Before a third of the TTL has passed, and with it the first renewal.
                world.clock.sleep(seconds(3)).await;
                assert_eq!(
                    world.server(0).live_claims(world.clock.now()).len(),
                    1,
                    "asked {offset} ms after the node woke"
                );
                drop(guard);
            },
        );
    }
}

#[test]
fn a_late_renewal_still_extends_the_lease() {
    run_world(
        |_| {},
        async |world| {
            let locks = world.client(0).await;
            let start = world.clock.now();
            let guard = locks.mutex(LOCK).lock().await.unwrap();
            world.clock.sleep(seconds(1)).await;
            world.hang(0, seconds(5));
            world.hang(1, seconds(5));
            world.clock.sleep_until(start.saturating_add(seconds(8))).await;
            assert!(guard.is_held());
            assert!(
                guard.deadline() > start.saturating_add(seconds(15)),
                "extended after they woke: {:?}",
                guard.deadline()
            );
        },
    );
}

#[test]
fn a_holder_learns_of_a_lost_majority_before_its_ttl_ends() {
    run_world(
        |_| {},
        async |world| {
            let locks = world.client(0).await;
            let sent = world.clock.now();
            let guard = locks.mutex(LOCK).lock().await.unwrap();
            world.stop(1);
            world.stop(2);
            let reason = guard.lost().await;
            let loss_check = world.clock.now();
            assert_eq!(reason, LostReason::Expired);
            assert!(!guard.is_held());
            assert!(loss_check.duration_since(guard.deadline()) <= Duration::from_millis(2), "at its deadline");
            assert!(
                loss_check < sent.saturating_add(TTL).saturating_sub(TTL / 100),
                "drift before the nodes let others in"
            );
            assert!(loss_check > sent.saturating_add(TTL / 2), "and it was tried until then");
        },
    );
}

#[test]
fn a_partitioned_holder_is_succeeded_after_its_lease() {
    run_world(
        |_| {},
        async |world| {
            let (one, other) = (world.client(0).await, world.client(1).await);
            let sent = world.clock.now();
            let first = one.mutex(LOCK).lock().await.unwrap();
            let lost = tokio::spawn({
                let (watch, clock) = (first.watcher(), world.clock.clone());
                async move {
                    watch.lost().await;
                    clock.now()
                }
            });
            world.set_partitioned(0, true);
            let second = other.mutex(LOCK).timeout(TTL * 3).lock().await.unwrap();
            let followed = world.clock.now();
            assert!(lost.await.unwrap() < followed, "the first learned of it before");
            assert!(second.token() > first.token());
            // Clocks of nodes are up to a hundredth slow.
            let ended = sent.saturating_add(TTL * 101 / 100).saturating_add(TRIP);
            assert!(followed <= ended.saturating_add(PAUSE), "{followed:?} {ended:?}");
        },
    );
}

#[test]
fn a_waiter_retries_after_pauses_that_grow_to_a_quarter_of_a_second() {
    run_world(
        |_| {},
        async |world| {
            let (one, other) = (world.client(0).await, world.client(1).await);
            let guard = one.mutex(LOCK).lock().await.unwrap();
            let before = world.server(0).request_counts["acquires"];
            let error = other.mutex(LOCK).timeout(seconds(20)).lock().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
            let asked = world.server(0).request_counts["acquires"] - before;
            // Each pause but the first few is between an eighth and a quarter of a second, and an
            // attempt takes a round trip or two.
            assert!((20 * 4 * 8 / 10..20 * 8 + 10).contains(&asked), "{asked}");
            assert!(guard.is_held());
        },
    );
}

#[test]
fn nodes_that_restarted_empty_make_no_grant_until_the_longest_lease_is_over() {
    run_world(
        |plan| plan.restarts_empty = true,
        async |world| {
            let locks = world.client(0).await;
            for node in [0, 1] {
                world.stop(node);
                world.restart(node);
            }
            let start = world.clock.now();
            world.clock.sleep(seconds(1)).await;
            let error = locks.mutex(LOCK).try_lock().await.unwrap_err();
            assert!(error.to_string().contains("cools down"), "{error}");
            let guard = locks.mutex(LOCK).timeout(TTL * 2).lock().await.unwrap();
            let waited = world.clock.now().duration_since(start);
            assert!(waited >= TTL * 99 / 100 && waited <= TTL * 104 / 100 + PAUSE, "{waited:?}");
            drop(guard);
        },
    );
}

#[test]
fn a_force_released_holder_learns_of_it_at_its_next_renewal() {
    run_world(
        |_| {},
        async |world| {
            let (one, other) = (world.client(0).await, world.client(1).await);
            let guard = one.mutex(LOCK).lock().await.unwrap();
            world.clock.sleep(TRIP).await;
            let live = world.server(0).live_claims(world.clock.now());
            let start = world.clock.now();
            let force_released = other.force_release(LOCK, live[0].1).await.unwrap();
            let fence = force_released.fence_token.expect("a token");
            assert!(fence > guard.token());
            assert_eq!(guard.lost().await, LostReason::Revoked);
            assert!(world.clock.now().duration_since(start) <= TTL / 3 + TRIP);
            let next = other.mutex(LOCK).timeout(seconds(2)).lock().await.unwrap();
            assert!(next.token() > fence);
            // A force release of a claim that has ended raises no token and advises none.
            let outcome = other.force_release(LOCK, live[0].1).await.unwrap();
            assert_eq!((outcome.contender, outcome.fence_token), (None, None));
        },
    );
}

#[test]
fn a_lost_reply_leaves_no_claim_behind() {
    run_world(
        |plan| plan.nodes = 5,
        async |world| {
            let locks = world.client(0).await;
            // Two nodes serve the request, and their answers are lost with the connection.
            let cut = tokio::spawn({
                let world = Arc::clone(&world);
                async move {
                    world.clock.sleep(Duration::from_millis(1)).await;
                    world.disconnect(0, 0);
                    world.disconnect(0, 1);
                }
            });
            let guard = locks.mutex(LOCK).timeout(seconds(1)).lock().await.unwrap();
            cut.await.unwrap();
            assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
            world.clock.sleep(seconds(2)).await;
            for node in 0..5 {
                assert_eq!(world.server(node).live_claims(world.clock.now()), [], "node {node}");
            }
        },
    );
}
