//! A cluster's slots move, partly and completely, while locks are held and awaited.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::clock::ManualClock;
use leasehold::engine::{AcquireReply, ReleaseReply, RenewReply};
use leasehold::{Guard, Mode, ReleaseOutcome, Token};
use leasehold_internals::redis::{Epoch, Rest, Stored};
use leasehold_testbed::redis::{Cluster, Reply, slot_of};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

use crate::redis_deployments::deployment::{
    LONG_TTL, TEST_TIMEOUT, WaiterQueue, client, numbers_up_to, patient_url, raw_command, text, until_free,
    until_waiting,
};
use crate::redis_faults::fixture::claim;
use crate::redis_faults::manual_time::{pass_and_renew, patient_client};

/// Masters without replicas, shared by the tests that only move slots. They run one after another,
/// each with its own number.
pub(super) async fn shared_masters() -> (MutexGuard<'static, Cluster>, u32) {
    static CLUSTER: OnceCell<Mutex<Cluster>> = OnceCell::const_new();
    static NEXT_NUMBER: AtomicU32 = AtomicU32::new(0);
    let cluster = CLUSTER.get_or_init(|| async { Mutex::new(Cluster::start(3, 0).await.expect("a cluster")) }).await;
    (cluster.lock().await, NEXT_NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// A name whose lock is in a slot of this node.
pub(super) async fn lock_name_on(cluster: &Cluster, node: usize, about: &str) -> String {
    for number in 0.. {
        let name = format!("{about}-{number}");
        if cluster.owner_of(slot_of(&name)).await.expect("an owner") == node {
            return name;
        }
    }
    unreachable!("every node has slots")
}

/// The lock's key.
fn key(name: &str) -> String {
    if name.contains('{') { format!("leasehold:l={name}") } else { format!("leasehold:l{{{name}}}") }
}

async fn has_key(cluster: &Cluster, node: usize, name: &str) -> bool {
    let keys = raw_command(
        cluster.nodes()[node].addr(),
        &["CLUSTER", "GETKEYSINSLOT", &slot_of(&key(name)).to_string(), "1000"],
    )
    .await;
    let Reply::Array(keys) = keys else { panic!("no keys: {keys:?}") };
    keys.contains(&Reply::Bulk(key(name)))
}

pub(super) async fn assert_released(guard: Guard) {
    assert_eq!(guard.release().await.expect("an answer"), ReleaseOutcome::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_seed_node_is_enough() {
    let (cluster, run) = shared_masters().await;
    let locks = client(&format!("redis+cluster://{}", cluster.addrs()[run as usize % 3]), LONG_TTL).await;
    let mut names = Vec::new();
    for node in 0..3 {
        names.push(lock_name_on(&cluster, node, "each").await);
    }
    names.extend(["{tag}:a".to_owned(), "{tag}:b".to_owned()]);
    let all = locks.multi_lock(names.clone()).timeout(TEST_TIMEOUT).lock().await.expect("all locks");
    for (node, name) in names.iter().take(3).enumerate() {
        assert!(has_key(&cluster, node, name).await, "{name} is on the node of its slot");
    }
    let owner = cluster.owner_of(slot_of("tag")).await.expect("an owner");
    assert!(has_key(&cluster, owner, "{tag}:a").await && has_key(&cluster, owner, "{tag}:b").await, "on the same node");
    let listed = locks.list("").await.expect("a list");
    let listed: BTreeSet<_> = listed.iter().map(|view| view.name.as_str()).collect();
    assert!(names.iter().all(|name| listed.contains(name.as_str())), "listed from all nodes: {listed:?}");
    let other = client(&cluster.url(), LONG_TTL).await;
    for name in &names {
        assert!(other.mutex(name).try_lock().await.expect("an answer").is_none(), "{name}");
    }
    assert!(other.multi_lock(names.clone()).try_lock().await.expect("an answer").is_none());
    assert_eq!(all.release().await.expect("an answer").len(), names.len());
    let all = other.multi_lock(names.clone()).try_lock().await.expect("an answer").expect("all locks are free");
    assert_eq!(all.release().await.expect("an answer").len(), names.len());
}

/// Clients learn of a moved slot only from their next request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_moves_between_two_requests() {
    let (mut cluster, run) = shared_masters().await;
    let manual_clock = ManualClock::running();
    let (one, two) =
        (patient_client(&cluster.url(), LONG_TTL, manual_clock.clock()).await, client(&cluster.url(), LONG_TTL).await);
    let name = format!("moved-{run}");
    let slot = slot_of(&name);
    let from = cluster.owner_of(slot).await.expect("an owner");
    let held = one.mutex(&name).lock().await.expect("a lock");
    let mut queue = WaiterQueue::default();
    queue.add_waiter(&two, &name).await;
    cluster.migrate_slot(slot, (from + 1) % 3).await.expect("a migrated slot");
    pass_and_renew([&held], |by| manual_clock.advance(by)).await;
    queue.add_waiter(&two, &name).await;
    cluster.migrate_slot(slot, (from + 2) % 3).await.expect("a migrated slot");
    assert!(two.mutex(&name).try_lock().await.expect("an answer").is_none());
    until_waiting(&one, &name, 2).await;
    cluster.migrate_slot(slot, from).await.expect("a migrated slot");
    pass_and_renew([&held], |by| manual_clock.advance(by)).await;
    assert_released(held).await;
    assert_eq!(queue.wait_all_served().await.0, numbers_up_to(2));
    until_free(&one, &name).await;
}

/// During a migration, the source node serves the keys that it still has; the target serves all
/// others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_moved_slot_serves_every_lock() {
    let (mut cluster, run) = shared_masters().await;
    let manual_clock = ManualClock::running();
    let (one, two) =
        (patient_client(&cluster.url(), LONG_TTL, manual_clock.clock()).await, client(&cluster.url(), LONG_TTL).await);
    let name = |about: &str| format!("{about}{{half-{run}}}");
    let slot = slot_of(&format!("half-{run}"));
    let from = cluster.owner_of(slot).await.expect("an owner");
    let to = (from + 1) % 3;
    let held = one.mutex(name("old")).lock().await.expect("a lock");
    let mut queue = WaiterQueue::default();
    queue.add_waiter(&two, &name("old")).await;
    let migration = cluster.begin_migration(slot, to).await.expect("a started migration");

    // The old lock is on the source node, and a new one on the target.
    let new = two.mutex(name("new")).lock().await.expect("a lock");
    assert!(has_key(&cluster, from, &name("old")).await && has_key(&cluster, to, &name("new")).await);
    assert!(one.mutex(name("new")).try_lock().await.expect("an answer").is_none());
    let mut behind = WaiterQueue::default();
    behind.add_waiter(&one, &name("new")).await;
    pass_and_renew([&held], |by| manual_clock.advance(by)).await;
    assert_released(new).await;
    assert_eq!(behind.wait_all_served().await.0, numbers_up_to(1));

    // The old lock's key has moved, but the slot has not.
    cluster.move_keys(&migration).await.expect("moved keys");
    assert!(has_key(&cluster, to, &name("old")).await && !has_key(&cluster, from, &name("old")).await);
    pass_and_renew([&held], |by| manual_clock.advance(by)).await;
    queue.add_waiter(&two, &name("old")).await;
    assert!(two.mutex(name("old")).try_lock().await.expect("an answer").is_none());
    assert_eq!(two.inspect(name("old")).await.expect("a view").holders.len(), 1);
    assert_released(held).await;
    assert_eq!(queue.wait_all_served().await.0, numbers_up_to(2));
    let again = two.mutex(name("old")).lock().await.expect("a lock");

    cluster.finish_migration(migration).await.expect("a finished migration");
    assert!(one.mutex(name("old")).try_lock().await.expect("an answer").is_none());
    assert_released(again).await;
    until_free(&one, &name("old")).await;
}

/// Strict mode has a key beside the lock's. While the slot moves, the two may be on different
/// nodes; held locks stay held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strict_mode_keeps_held_locks_in_a_half_moved_slot() {
    for lock_first in [false, true] {
        let (mut cluster, run) = shared_masters().await;
        let name = format!("strict-{run}");
        let slot = slot_of(&name);
        let from = cluster.owner_of(slot).await.expect("an owner");
        let to = (from + 1) % 3;
        let (addr, port) = (cluster.nodes()[from].addr(), cluster.nodes()[to].port().to_string());
        let beside = old_epoch_record(addr, slot).await;
        let url = format!("{}?strict={}s", cluster.url(), LONG_TTL.as_secs());
        let engine =
            leasehold::registry::open(&patient_url(&url), &leasehold::clock::Clock::system()).await.expect("an engine");
        let held = claim(&name, Mode::Exclusive, LONG_TTL);
        let answer = Arc::clone(&engine).attempt(Arc::clone(&held), false).await.expect("an answer");
        assert!(matches!(answer, AcquireReply::Granted(_)), "{answer:?}");
        let waits = claim(&name, Mode::Exclusive, LONG_TTL);
        let answer = Arc::clone(&engine).attempt(Arc::clone(&waits), true).await.expect("an answer");
        assert!(matches!(answer, AcquireReply::Queued { .. }), "{answer:?}");

        let migration = cluster.begin_migration(slot, to).await.expect("a started migration");
        let moves = if lock_first { key(&name) } else { beside };
        let moved = raw_command(addr, &["MIGRATE", "127.0.0.1", &port, &moves, "0", "5000"]).await;
        assert_eq!(moved, Reply::Simple("OK".to_owned()));
        let renewed = Arc::clone(&engine).renew(vec![Arc::clone(&held)]).await.expect("an answer");
        assert!(matches!(renewed[..], [RenewReply::Renewed(_)]), "{renewed:?}");
        // The lock can be released, but no new claim is granted yet.
        assert_eq!(Arc::clone(&engine).release(held).await.expect("an answer"), ReleaseReply::Released);
        let answer = Arc::clone(&engine).wait(waits, Duration::ZERO).await.expect("an answer");
        assert!(matches!(answer, AcquireReply::Queued { ahead: 0, .. }), "{answer:?}");
        cluster.finish_migration(migration).await.expect("a finished migration");
    }
}

/// Writes strict mode's record of a slot as on a server that has been up for long.
async fn old_epoch_record(addr: SocketAddr, slot: u16) -> String {
    let tag = (0..).find(|tag: &u32| slot_of(&tag.to_string()) == slot).expect("every slot has one");
    let key = format!("leasehold:e{{{tag}}}");
    let info = text(raw_command(addr, &["INFO", "server"]).await);
    let run = info.lines().find_map(|line| line.strip_prefix("run_id:")).expect("a run").trim().to_owned();
    let longest = LONG_TTL.as_micros() as u64;
    let Reply::Array(time) = raw_command(addr, &["TIME"]).await else { panic!("no time") };
    let seconds: u64 = time.into_iter().next().map(text).and_then(|text| text.parse().ok()).expect("seconds");
    let now = seconds * 1_000_000;
    let start = now - 2 * longest;
    let (min_token, run) = (Token(start + longest), Rest(run.into_bytes()));
    let epoch = Epoch { start, longest, refreshed: now, min_token, run }.write();
    let set: [&[u8]; 5] = [b"SET", key.as_bytes(), &epoch, b"PX", b"86400000"];
    assert_eq!(raw_command(addr, &set).await, Reply::Simple("OK".to_owned()));
    key
}

/// Locks of one slot are split over two nodes: a request for all of them fails, single requests
/// work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_of_a_half_moved_slot_are_renewed_on_both_nodes() {
    let (mut cluster, run) = shared_masters().await;
    let manual_clock = ManualClock::running();
    let locks = patient_client(&cluster.url(), LONG_TTL, manual_clock.clock()).await;
    let name = |about: &str| format!("{about}{{split-{run}}}");
    let slot = slot_of(&format!("split-{run}"));
    let from = cluster.owner_of(slot).await.expect("an owner");
    let to = (from + 1) % 3;
    let names: Vec<_> = ["a", "b", "c", "d", "e", "f", "g", "h"].map(name).into();
    let all = locks.multi_lock(names.clone()).lock().await.expect("all locks");
    let migration = cluster.begin_migration(slot, to).await.expect("a started migration");
    let port = cluster.nodes()[to].port().to_string();
    for name in names.iter().step_by(2) {
        let moved =
            raw_command(cluster.nodes()[from].addr(), &["MIGRATE", "127.0.0.1", &port, &key(name), "0", "5000"]).await;
        assert_eq!(moved, Reply::Simple("OK".to_owned()));
    }
    // For longer than a TTL.
    for _ in 0..4 {
        pass_and_renew(all.guards(), |by| manual_clock.advance(by)).await;
    }
    assert!(all.is_held());
    let both = [name("a"), name("new")];
    assert!(locks.multi_lock(both.clone()).try_lock().await.expect("an answer").is_none());
    cluster.finish_migration(migration).await.expect("a finished migration");
    assert!(all.release().await.expect("an answer").iter().all(|(_, outcome)| *outcome == ReleaseOutcome::Released));
}
