//! Without a safeguard, a fault lets two clients hold a lock at once; with it, none does.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::{Guard, Locks};
use leasehold_verify::deployment::{Deployment, DeploymentOptions, LocalEngine};
use leasehold_verify::history::FaultKind;
use leasehold_verify::rng::Rng;
use tokio::task::JoinSet;

use crate::deployment::fixture::{TEST_TIMEOUT, client, wait_for_grant};

/// The TTL of all leases: longer than a server takes to restart, and Sentinels to replace one, on a
/// busy machine.
const TTL: Duration = Duration::from_secs(6);
/// How many locks each client holds at least when the fault begins.
const MIN_HELD_LOCKS: usize = 5;
/// How many of the last locks are checked. In a cluster, a fault costs only locks on the master
/// that it hits; those acquired while it lasts are on the others.
const MAX_CHECKED_LOCKS: usize = 400;
/// The interval in which each client acquires new locks.
const LOCK_INTERVAL: Duration = Duration::from_millis(25);
/// How often the fault is repeated at most until it shows a violation: which clients do not notice
/// it is random.
const MAX_FAULTS: usize = 3;
/// The locks that a client holds: each name, and its guard.
type HeldGuards = Arc<Mutex<Vec<(String, Guard)>>>;

/// Acquires new locks, named from `name_prefix`, until `fault_has_begun` and enough are held.
async fn acquire_until_fault_begins(
    locks: Locks,
    name_prefix: String,
    held: HeldGuards,
    fault_has_begun: Arc<AtomicBool>,
) {
    let mut pace = tokio::time::interval(LOCK_INTERVAL);
    for number in 0.. {
        pace.tick().await;
        let enough = held.lock().expect("no panic").len() >= MIN_HELD_LOCKS;
        if enough && fault_has_begun.load(Ordering::SeqCst) {
            return;
        }
        let name = format!("{name_prefix}-{number}");
        if let Ok(Some(guard)) = locks.mutex(&name).try_lock().await {
            held.lock().expect("no panic").push((name, guard));
        }
    }
}

/// Waits until a client holds enough locks.
async fn wait_until_locks_are_held(held: &HeldGuards) {
    leasehold_testbed::eventually(TEST_TIMEOUT, || async {
        let count = held.lock().expect("no panic").len();
        if count >= MIN_HELD_LOCKS { Ok(()) } else { Err(format!("{count} locks")) }
    })
    .await;
}

/// Requests each of the last locks that another client holds. Each task returns whether both held
/// the lock at once.
fn wait_for_held_locks(held: &HeldGuards, locks: &Locks, waits: &mut JoinSet<bool>) {
    for (name, guard) in held.lock().expect("no panic").iter().rev().take(MAX_CHECKED_LOCKS) {
        let (watcher, mutex) = (guard.watcher(), locks.mutex(name).timeout(TTL * 3 / 2));
        waits.spawn(async move {
            let second = mutex.lock().await;
            // The first guard is checked after the second grant, and the second guard after that.
            // If both report the lock as held, both held it at once.
            watcher.is_held() && second.is_ok_and(|second| second.is_held())
        });
    }
}

/// Injects one fault; returns how many locks both clients held at once.
async fn locks_held_twice_in_one_fault(
    deployment: &mut Deployment,
    clients: [&Locks; 2],
    fault: FaultKind,
    rng: &mut Rng,
) -> usize {
    let (held, fault_has_begun) = ([HeldGuards::default(), HeldGuards::default()], Arc::<AtomicBool>::default());
    let mut acquiring = JoinSet::new();
    for (locks, held) in clients.iter().zip(&held) {
        let name_prefix = format!("{:x}", rng.next_u64());
        acquiring.spawn(acquire_until_fault_begins(
            (*locks).clone(),
            name_prefix,
            Arc::clone(held),
            Arc::clone(&fault_has_begun),
        ));
        wait_until_locks_are_held(held).await;
    }
    // With the safeguards on, the fault hits a majority of the voting servers, too, if it may.
    deployment.hit_majority_next(fault);
    let active_fault = deployment.begin_fault(fault, rng).await.expect("a fault");
    fault_has_begun.store(true, Ordering::SeqCst);
    let mut waits = JoinSet::new();
    wait_for_held_locks(&held[0], clients[1], &mut waits);
    wait_for_held_locks(&held[1], clients[0], &mut waits);
    tokio::time::sleep(active_fault.duration.min(TTL / 4)).await;
    let note = deployment.end_fault(fault).await.expect("its end");
    let checked = waits.len();
    let held_twice = waits.join_all().await.into_iter().filter(|both| *both).count();
    acquiring.join_all().await;
    println!("{} {fault}: {}: {note}: {held_twice} of {checked} held twice", deployment.engine(), active_fault.target,);
    held_twice
}

/// Starts the engine, and injects the fault (without safeguards up to [`MAX_FAULTS`] times);
/// returns how many locks two clients held at once.
async fn locks_held_twice(local: LocalEngine, fault: FaultKind, has_safeguards: bool) -> usize {
    let setup =
        DeploymentOptions { faults: vec![fault], has_safeguards, ttl: TTL, isolates_workers: false, option: None };
    let mut deployment = Deployment::start(local, &setup).await.expect("a deployment");
    assert_eq!(deployment.control_description().is_some(), !has_safeguards);
    let (one, two) = (client(deployment.url(), TTL).await, client(deployment.url(), TTL).await);
    let mut rng = Rng::new(5);
    let mut held_twice = 0;
    for _ in 0..if has_safeguards { 1 } else { MAX_FAULTS } {
        wait_for_grant(&one, "before it").await;
        wait_for_grant(&two, "before it").await;
        held_twice += locks_held_twice_in_one_fault(&mut deployment, [&one, &two], fault, &mut rng).await;
        if held_twice > 0 {
            break;
        }
    }
    held_twice
}

/// Without safeguards two clients hold a lock at once; with them none do.
async fn assert_safeguards_prevent_double_holds(local: LocalEngine, fault: FaultKind) {
    let (off, on) = tokio::join!(locks_held_twice(local, fault, false), locks_held_twice(local, fault, true));
    assert!(off > 0, "{local} {fault}: the control shows no violation");
    assert_eq!(on, 0, "{local} {fault}: two clients hold a lock");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_lose_data_break_exclusion_only_without_safeguards() {
    tokio::join!(
        assert_safeguards_prevent_double_holds(LocalEngine::Redis, FaultKind::Wipe),
        assert_safeguards_prevent_double_holds(LocalEngine::RedisSentinel, FaultKind::Failover),
        assert_safeguards_prevent_double_holds(LocalEngine::RedisCluster, FaultKind::Failover),
        assert_safeguards_prevent_double_holds(LocalEngine::Redlock, FaultKind::Wipe),
        assert_safeguards_prevent_double_holds(LocalEngine::Redis, FaultKind::Evict),
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn skewed_clocks_break_exclusion_only_without_safeguards() {
    tokio::join!(
        assert_safeguards_prevent_double_holds(LocalEngine::Redis, FaultKind::Clock),
        assert_safeguards_prevent_double_holds(LocalEngine::Redlock, FaultKind::Clock),
        assert_safeguards_prevent_double_holds(LocalEngine::Mysql, FaultKind::Clock),
        assert_safeguards_prevent_double_holds(LocalEngine::Postgres, FaultKind::Clock),
    );
}
