//! Two processes with redis-py and two clients of ours fight for one lock around a counter that is not atomic.

use leasehold::{Locks, Outcome};
use leasehold_conformance::world::{LONG, SOON};
use leasehold_testbed::redis::{Reply, Resp};
use tokio::task::JoinSet;

use super::python::Python;
use super::{ours, server};

const ROUNDS: u32 = if cfg!(feature = "nightly") { 50 } else { 15 };
const FIGHTERS: u32 = 4;

async fn read(resp: &mut Resp, key: &str) -> u32 {
    match resp.command(&["GET", key]).await.expect("a reply") {
        Reply::Bulk(text) => text.parse().expect("a number"),
        _ => 0,
    }
}

/// Adds one, again and again, in two steps that only a lock makes one.
async fn count(locks: Option<Locks>, name: &str, key: &str) {
    let mut resp = Resp::connect(server().await.addr()).await.expect("a connection");
    for _ in 0..ROUNDS {
        let guard = match &locks {
            Some(locks) => Some(locks.mutex(name).wait(SOON).lock().await.expect("the lock")),
            None => None,
        };
        let value = read(&mut resp, key).await + 1;
        resp.command(&["SET", key, &value.to_string()]).await.expect("a reply");
        if let Some(guard) = guard {
            assert_eq!(guard.release().await.expect("a release"), Outcome::Released);
        }
    }
}

/// All count together; what came of it.
async fn fight(name: &'static str, key: &'static str, locked: bool) -> u32 {
    let mut pythons = [Python::start(server().await), Python::start(server().await)];
    for python in &mut pythons {
        python.begin_count(name, key, ROUNDS, locked).await;
    }
    let mut clients = JoinSet::new();
    for _ in 0..2 {
        let locks = if locked { Some(ours(&server().await.url(), LONG).await) } else { None };
        clients.spawn(count(locks, name, key));
    }
    clients.join_all().await;
    for python in &mut pythons {
        assert_eq!(python.hear().await, "done");
    }
    read(&mut Resp::connect(server().await.addr()).await.expect("a connection"), key).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_update_is_lost_between_redis_py_and_us() {
    assert_eq!(fight("battle", "counter", true).await, FIGHTERS * ROUNDS);
}

/// The control: without the lock the counter does lose updates.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_lock_updates_are_lost() {
    let mut right = 0;
    for fights in 1..=20 {
        right = fight("unused", "control", false).await;
        if right < fights * FIGHTERS * ROUNDS {
            return;
        }
    }
    panic!("{right} is right after 20 fights: these counters do not need a lock");
}
