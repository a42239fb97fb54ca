//! A cluster's slots move, half and whole, and its masters are replaced: what holders and waiters see of it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use leasehold::fence::Fence;
use leasehold::{Locks, LostReason, Outcome};
use leasehold_conformance::probe::Room;
use leasehold_testbed::eventually;
use leasehold_testbed::redis::{Cluster, Reply, slot_of};
use tokio::sync::{Mutex, MutexGuard, OnceCell};
use tokio::task::JoinSet;

use crate::redis_deployments::deployment::{
    BOUND, LONG, Line, client, in_order, raw, soon, until_answering, until_free, until_listening, until_renewed,
    until_waiting,
};

/// A TTL of which a test sees several renewals.
const SHORT: Duration = Duration::from_secs(4);

/// Masters without replicas, which the tests that only move slots share, one after the other; and a number for each of them.
async fn masters() -> (MutexGuard<'static, Cluster>, u32) {
    static CLUSTER: OnceCell<Mutex<Cluster>> = OnceCell::const_new();
    static USED: AtomicU32 = AtomicU32::new(0);
    let cluster = CLUSTER.get_or_init(|| async { Mutex::new(Cluster::start(3, 0).await.expect("a cluster")) }).await;
    (cluster.lock().await, USED.fetch_add(1, Ordering::Relaxed))
}

/// A name whose lock is in a slot of this node.
async fn name_at(cluster: &Cluster, node: usize, about: &str) -> String {
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
    let keys =
        raw(cluster.nodes()[node].addr(), &["CLUSTER", "GETKEYSINSLOT", &slot_of(&key(name)).to_string(), "1000"])
            .await;
    let Reply::Array(keys) = keys else { panic!("no keys: {keys:?}") };
    keys.contains(&Reply::Bulk(key(name)))
}

async fn released(guard: leasehold::Guard) {
    assert_eq!(guard.release().await.expect("an answer"), Outcome::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_knows_the_others() {
    let (cluster, run) = masters().await;
    let locks = client(&format!("redis+cluster://{}", cluster.addrs()[run as usize % 3]), LONG).await;
    let mut names = Vec::new();
    for node in 0..3 {
        names.push(name_at(&cluster, node, "each").await);
    }
    names.extend(["{tag}:a".to_owned(), "{tag}:b".to_owned()]);
    let all = locks.all(names.clone()).wait(BOUND).lock().await.expect("all of them");
    for (node, name) in names.iter().take(3).enumerate() {
        assert!(has_key(&cluster, node, name).await, "{name} is where its slot is");
    }
    let owner = cluster.owner_of(slot_of("tag")).await.expect("an owner");
    assert!(has_key(&cluster, owner, "{tag}:a").await && has_key(&cluster, owner, "{tag}:b").await, "side by side");
    let listed = locks.list("").await.expect("a list");
    let listed: BTreeSet<_> = listed.iter().map(|view| view.name.as_str()).collect();
    assert!(names.iter().all(|name| listed.contains(name.as_str())), "from all nodes: {listed:?}");
    let other = client(&cluster.url(), LONG).await;
    for name in &names {
        assert!(other.mutex(name).try_lock().await.expect("an answer").is_none(), "{name}");
    }
    assert!(other.all(names.clone()).try_lock().await.expect("an answer").is_none());
    assert_eq!(all.release().await.expect("an answer").len(), names.len());
    let all = other.all(names.clone()).try_lock().await.expect("an answer").expect("all are free");
    assert_eq!(all.release().await.expect("an answer").len(), names.len());
}

/// Clients learn only from their next request that a slot has moved.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_moves_between_two_requests() {
    let (mut cluster, run) = masters().await;
    let (one, two) = (client(&cluster.url(), SHORT).await, client(&cluster.url(), LONG).await);
    let name = format!("moved-{run}");
    let slot = slot_of(&name);
    let from = cluster.owner_of(slot).await.expect("an owner");
    let held = one.mutex(&name).lock().await.expect("a lock");
    let mut line = Line::default();
    line.join(&two, &name).await;
    cluster.migrate_slot(slot, (from + 1) % 3).await.expect("a move");
    until_renewed(&held).await;
    line.join(&two, &name).await;
    cluster.migrate_slot(slot, (from + 2) % 3).await.expect("a move");
    assert!(two.mutex(&name).try_lock().await.expect("an answer").is_none());
    until_waiting(&one, &name, 2).await;
    cluster.migrate_slot(slot, from).await.expect("a move");
    until_renewed(&held).await;
    released(held).await;
    assert_eq!(line.served().await.0, in_order(2));
    until_free(&one, &name).await;
}

/// A slot on its way: what is there is served there, everything else at its new node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_is_half_way() {
    let (mut cluster, run) = masters().await;
    let (one, two) = (client(&cluster.url(), SHORT).await, client(&cluster.url(), LONG).await);
    let name = |about: &str| format!("{about}{{half-{run}}}");
    let slot = slot_of(&format!("half-{run}"));
    let from = cluster.owner_of(slot).await.expect("an owner");
    let to = (from + 1) % 3;
    let held = one.mutex(name("old")).lock().await.expect("a lock");
    let mut line = Line::default();
    line.join(&two, &name("old")).await;
    let migration = cluster.begin_migration(slot, to).await.expect("the beginning of a move");

    // The old lock is where it was, a new one where it will be.
    let new = two.mutex(name("new")).lock().await.expect("a lock");
    assert!(has_key(&cluster, from, &name("old")).await && has_key(&cluster, to, &name("new")).await);
    assert!(one.mutex(name("new")).try_lock().await.expect("an answer").is_none());
    let mut behind = Line::default();
    behind.join(&one, &name("new")).await;
    until_renewed(&held).await;
    released(new).await;
    assert_eq!(behind.served().await.0, in_order(1));

    // The old one has moved, too, but the slot has not.
    cluster.move_keys(&migration).await.expect("moved keys");
    assert!(has_key(&cluster, to, &name("old")).await && !has_key(&cluster, from, &name("old")).await);
    until_renewed(&held).await;
    line.join(&two, &name("old")).await;
    assert!(two.mutex(name("old")).try_lock().await.expect("an answer").is_none());
    assert_eq!(two.inspect(name("old")).await.expect("a view").holders.len(), 1);
    released(held).await;
    assert_eq!(line.served().await.0, in_order(2));
    let again = two.mutex(name("old")).lock().await.expect("a lock");

    cluster.finish_migration(migration).await.expect("the end of a move");
    assert!(one.mutex(name("old")).try_lock().await.expect("an answer").is_none());
    released(again).await;
    until_free(&one, &name("old")).await;
}

/// Locks of one slot, some on either side: a request for all cannot be served, one for each can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_of_one_slot_on_both_sides_are_renewed() {
    let (mut cluster, run) = masters().await;
    let locks = client(&cluster.url(), SHORT).await;
    let name = |about: &str| format!("{about}{{split-{run}}}");
    let slot = slot_of(&format!("split-{run}"));
    let from = cluster.owner_of(slot).await.expect("an owner");
    let to = (from + 1) % 3;
    let names: Vec<_> = ["a", "b", "c", "d", "e", "f", "g", "h"].map(name).into();
    let all = locks.all(names.clone()).lock().await.expect("all of them");
    let migration = cluster.begin_migration(slot, to).await.expect("the beginning of a move");
    let port = cluster.nodes()[to].port().to_string();
    for name in names.iter().step_by(2) {
        let moved = raw(cluster.nodes()[from].addr(), &["MIGRATE", "127.0.0.1", &port, &key(name), "0", "5000"]).await;
        assert_eq!(moved, Reply::Simple("OK".to_owned()));
    }
    // Longer than a TTL.
    for guard in all.guards() {
        until_renewed(guard).await;
    }
    assert!(all.is_held());
    let both = [name("a"), name("new")];
    assert!(locks.all(both.clone()).try_lock().await.expect("an answer").is_none());
    cluster.finish_migration(migration).await.expect("the end of a move");
    assert!(all.release().await.expect("an answer").iter().all(|(_, outcome)| *outcome == Outcome::Released));
}

/// A slot moves round and round while everything goes on in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_moves_under_load() {
    let (mut cluster, run) = masters().await;
    let slot = slot_of(&format!("load-{run}"));
    let name = |about: &str| format!("{about}{{load-{run}}}");
    let (one, two) = (client(&cluster.url(), LONG).await, client(&cluster.url(), SHORT).await);
    let held = two.mutex(name("held")).lock().await.expect("a lock");
    let mut line = Line::default();
    for locks in [&one, &two, &one] {
        line.join(locks, &name("held")).await;
    }
    let (stop, rooms) = (Arc::new(AtomicBool::new(false)), Arc::new([Room::default(), Room::default()]));
    let mut cycles = JoinSet::new();
    for task in 0..6 {
        let (locks, room) = ([one.clone(), two.clone()][task % 2].clone(), task / 3);
        let (stop, rooms, name) = (Arc::clone(&stop), Arc::clone(&rooms), name(["x", "y"][room]));
        cycles.spawn(async move { cycle(&locks, &name, &rooms[room], &stop).await });
    }
    for turn in 0..6 {
        let from = cluster.owner_of(slot).await.expect("an owner");
        let before = rooms[0].entered() + rooms[1].entered();
        cluster.migrate_slot(slot, (from + 1) % 3).await.expect("a move");
        eventually(BOUND, || async {
            let entered = rooms[0].entered() + rooms[1].entered() - before;
            if entered > 20 { Ok(()) } else { Err(format!("only {entered} grants after move {turn}")) }
        })
        .await;
    }
    stop.store(true, Ordering::SeqCst);
    let visits = soon("all come to an end", cycles.join_all()).await;
    assert_eq!(rooms.iter().map(Room::most).max(), Some(1), "never two at once");
    assert_eq!(rooms[0].entered() + rooms[1].entered(), visits.iter().sum::<u32>());
    assert!(held.is_held(), "the long holder holds");
    released(held).await;
    assert_eq!(line.served().await.0.len(), 3);
}

/// Takes the lock and gives it back, until told to stop; how often.
async fn cycle(locks: &Locks, name: &str, room: &Room, stop: &AtomicBool) -> u32 {
    let mut visits = 0;
    while !stop.load(Ordering::SeqCst) {
        let guard = locks.mutex(name).lock().await.expect("a lock");
        room.visit(1).await;
        visits += 1;
        released(guard).await;
    }
    visits
}

/// Whoever watches an election sees the next leader, wherever the slot is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_observer_follows_a_moving_slot() {
    let (mut cluster, run) = masters().await;
    let name = format!("led-{run}");
    let slot = slot_of(&name);
    let (one, two) = (client(&cluster.url(), LONG).await, client(&cluster.url(), LONG).await);
    let mut observer = two.election(&name).observe().expect("an observer");
    assert_eq!(observer.next().await.expect("an answer"), None);
    for _ in 0..3 {
        let leader = one.election(&name).campaign().await.expect("elected");
        let seen = soon("the leader is seen", observer.next()).await.expect("an answer").expect("a leader");
        assert_eq!(seen.token, leader.token());
        let from = cluster.owner_of(slot).await.expect("an owner");
        let migration = cluster.begin_migration(slot, (from + 1) % 3).await.expect("the beginning of a move");
        cluster.move_keys(&migration).await.expect("moved keys");
        let quiet = tokio::time::timeout(Duration::from_millis(200), observer.next()).await;
        assert!(quiet.is_err(), "a slot on its way is no news: {quiet:?}");
        let _ = leader.resign().await.expect("an answer");
        assert_eq!(soon("the resignation is seen", observer.next()).await.expect("an answer"), None);
        let leader = one.election(&name).campaign().await.expect("elected");
        let seen = soon("the leader is seen", observer.next()).await.expect("an answer").expect("a leader");
        assert_eq!(seen.token, leader.token());
        cluster.finish_migration(migration).await.expect("the end of a move");
        let _ = leader.resign().await.expect("an answer");
        assert_eq!(soon("the resignation is seen", observer.next()).await.expect("an answer"), None);
    }
}

/// Nodes that do not know by which name they are known say only their port.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_need_not_know_their_names() {
    let (mut cluster, run) = masters().await;
    let prefer = async |cluster: &Cluster, kind: &str| {
        for addr in cluster.addrs() {
            let set = raw(addr, &["CONFIG", "SET", "cluster-preferred-endpoint-type", kind]).await;
            assert_eq!(set, Reply::Simple("OK".to_owned()));
        }
    };
    prefer(&cluster, "unknown-endpoint").await;
    let name = format!("nameless-{run}");
    let slot = slot_of(&name);
    let locks = client(&format!("redis+cluster://{}", cluster.addrs()[0]), SHORT).await;
    let held = locks.mutex(&name).lock().await.expect("a lock");
    let from = cluster.owner_of(slot).await.expect("an owner");
    cluster.migrate_slot(slot, (from + 1) % 3).await.expect("a move");
    until_renewed(&held).await;
    let migration = cluster.begin_migration(slot, (from + 2) % 3).await.expect("the beginning of a move");
    cluster.move_keys(&migration).await.expect("moved keys");
    until_renewed(&held).await;
    cluster.finish_migration(migration).await.expect("the end of a move");
    released(held).await;
    prefer(&cluster, "ip").await;
}

/// The replica had everything: whoever held holds, whoever waited is served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_master_is_replaced() {
    let mut cluster = Cluster::start(3, 1).await.expect("a cluster");
    let (one, two) = (client(&cluster.url(), LONG).await, client(&cluster.url(), LONG).await);
    let name = name_at(&cluster, 0, "kept").await;
    let held = one.mutex(&name).lock().await.expect("a lock");
    let mut line = Line::default();
    for _ in 0..2 {
        line.join(&two, &name).await;
    }
    eventually(BOUND, || async {
        // The replica's own word: WAIT speaks of the asker's writes only.
        let keys = raw(cluster.nodes()[3].addr(), &["DBSIZE"]).await;
        let links = raw(cluster.nodes()[0].addr(), &["INFO", "replication"]).await;
        match (&keys, crate::redis_deployments::deployment::text(links).contains("lag=0")) {
            (Reply::Integer(1..), true) => Ok(()),
            seen => Err(format!("{seen:?}")),
        }
    })
    .await;
    let token = held.token();
    cluster.kill_node(0).expect("a dead master");
    let new = cluster.failed_over(slot_of(&name), BOUND).await.expect("a fail-over");
    // Nobody asks for anything, and yet all find the new one.
    until_listening(cluster.nodes()[new].addr(), 2).await;
    assert_eq!(one.inspect(&name).await.expect("a view").waiters.len(), 2);
    assert!(held.is_held() && held.token() == token);
    assert!(two.mutex(&name).try_lock().await.expect("an answer").is_none());
    released(held).await;
    assert_eq!(line.served().await.0, in_order(2));
    let elsewhere = name_at(&cluster, 1, "else").await;
    released(one.mutex(elsewhere).lock().await.expect("a lock")).await;
    drop((one, two));
    a_master_that_is_cut_off_is_left(&mut cluster).await;
}

/// A master that hears nothing of the others any more, which have replaced it, still answers us.
async fn a_master_that_is_cut_off_is_left(cluster: &mut Cluster) {
    let name = name_at(cluster, 1, "island").await;
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(client(&cluster.url(), LONG).await);
    }
    for locks in &clients {
        released(locks.mutex(&name).lock().await.expect("a lock")).await;
    }
    for node in 2..6usize {
        let id =
            crate::redis_deployments::deployment::text(raw(cluster.nodes()[node].addr(), &["CLUSTER", "MYID"]).await);
        let forgotten = raw(cluster.nodes()[1].addr(), &["CLUSTER", "FORGET", &id]).await;
        assert_eq!(forgotten, Reply::Simple("OK".to_owned()));
    }
    let taken = raw(cluster.nodes()[4].addr(), &["CLUSTER", "FAILOVER", "TAKEOVER"]).await;
    assert_eq!(taken, Reply::Simple("OK".to_owned()));
    for locks in &clients {
        let guard = soon("its replica answers", locks.mutex(&name).lock()).await;
        released(guard.expect("a lock")).await;
    }
}

/// The replica had missed the grant: its holder is told, and its writes are refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_forgets_is_replaced() {
    let mut cluster = Cluster::start(3, 1).await.expect("a cluster");
    let (one, two) = (client(&cluster.url(), LONG).await, client(&cluster.url(), LONG).await);
    let name = name_at(&cluster, 0, "lost").await;
    cluster.cut_replication(0).await.expect("a cut");
    let first = one.mutex(&name).lock().await.expect("a lock");
    cluster.kill_node(0).expect("a dead master");
    cluster.resume_replicas().expect("a replica that goes on");
    cluster.failed_over(slot_of(&name), BOUND).await.expect("a fail-over");
    assert_eq!(soon("the forgotten holder is told", first.lost()).await, LostReason::Taken);
    until_answering(&two).await;
    let second = soon("a newcomer gets it", two.mutex(&name).lock()).await.expect("a lock");
    let fence = Fence::default();
    fence.admit(&name, second.token()).expect("the newest");
    fence.admit(&name, first.token()).expect_err("a stale one");
    released(second).await;
}
