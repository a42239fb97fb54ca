//! Several locks at once on `redis:`: one script takes them all, or none.

use std::sync::atomic::{AtomicU32, Ordering};

use leasehold::{Locks, Mode, Outcome, Owner};
use leasehold_conformance::world::{LONG, SOON};
use leasehold_testbed::redis::{Reply, Resp};
use leasehold_testbed::{Server, eventually, redis};

use crate::redis_faults::site::Site;

async fn open(server: &Server) -> Locks {
    Locks::builder().ttl(LONG).open(&server.url()).await.expect("the engine")
}

/// How many scripts the server has run.
async fn scripts(server: &Server) -> u64 {
    let mut raw = Resp::connect(server.addr()).await.expect("a raw connection");
    let Reply::Bulk(stats) = raw.command(&["INFO", "commandstats"]).await.expect("an answer") else {
        panic!("no statistics")
    };
    let calls = |line: &str| line.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next()?.parse().ok();
    stats.lines().find_map(calls).unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn free_locks_are_taken_by_one_script() {
    let server = redis::start().await.expect("a server");
    let locks = open(&server).await;
    let before = scripts(&server).await;
    let all = locks.all(["c", "a", "b"]).lock().await.expect("all of them");
    assert_eq!(scripts(&server).await - before, 1, "one script for three locks");
    let tokens: Vec<_> = ["a", "b", "c"].map(|name| all.token(name).expect("a token")).to_vec();
    for (name, token) in ["a", "b", "c"].into_iter().zip(&tokens) {
        let view = locks.inspect(name).await.expect("a view");
        assert_eq!(view.holders[0].token, Some(*token));
    }
    for (_, outcome) in all.release().await.expect("a release") {
        assert_eq!(outcome, Outcome::Released);
    }
    let again = locks.all(["a", "b", "c"]).try_lock().await.expect("an answer").expect("free");
    for (name, token) in ["a", "b", "c"].into_iter().zip(tokens) {
        assert!(again.token(name).expect("a token") > token);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn if_one_is_not_free_none_is_taken() {
    let site = Site::shared().await;
    let (locks, other) = (site.locks(LONG).await, site.locks(LONG).await);
    let held = other.mutex("b").lock().await.expect("a lock");
    assert!(locks.all(["a", "b", "c"]).try_lock().await.expect("an answer").is_none());
    eventually(SOON, || async {
        let left = locks.list("").await.map_err(|error| error.to_string())?;
        let names: Vec<_> = left.iter().map(|view| view.name.as_str()).collect();
        if names == ["b"] { Ok(()) } else { Err(format!("{names:?}")) }
    })
    .await;
    let waits = tokio::spawn({
        let all = locks.all(["a", "b", "c"]).wait(SOON);
        async move { all.lock().await }
    });
    eventually(SOON, || async {
        let view = other.inspect("b").await.map_err(|error| error.to_string())?;
        if view.waiters.len() == 1 { Ok(()) } else { Err(format!("{view:?}")) }
    })
    .await;
    let _ = held.release().await.expect("a release");
    assert!(waits.await.expect("no panic").expect("all of them").is_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn modes_owners_and_limits_are_kept_in_one_script_too() {
    let site = Site::shared().await;
    let (locks, other) = (site.locks(LONG).await, site.locks(LONG).await);
    let owner = Owner::new();
    let outer = locks.mutex("mine").owner(&owner).lock().await.expect("a lock");
    let reader = other.rwlock("read").read().await.expect("a lock");
    let permit = other.semaphore("slots", 3).acquire(2).await.expect("permits");
    let wanted = [("mine", Mode::Exclusive), ("read", Mode::Shared), ("slots", Mode::Permits { n: 1, limit: 3 })];
    let all = locks.all(wanted).owner(&owner).try_lock().await.expect("an answer").expect("all fit");
    assert_eq!(all.token("mine"), Some(outer.token()), "re-entered");
    assert!(other.semaphore("slots", 3).try_acquire(1).await.expect("an answer").is_none(), "none is left");
    drop(all);
    let two = [("free", Mode::Exclusive), ("slots", Mode::Permits { n: 2, limit: 3 })];
    assert!(locks.all(two).try_lock().await.expect("an answer").is_none(), "two do not fit");
    let other_limit = [("free", Mode::Exclusive), ("slots", Mode::Permits { n: 1, limit: 4 })];
    assert!(locks.all(other_limit).try_lock().await.is_err(), "another limit is refused");
    drop((reader, permit, outer));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_want_several_never_meet_and_never_wait_for_each_other() {
    let site = Site::shared().await;
    static INSIDE: [AtomicU32; 3] = [AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0)];
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..6_usize {
        let locks = site.locks(LONG).await;
        tasks.spawn(async move {
            for turn in 0..30 {
                let pair = [number % 3, (number + 1 + turn % 2) % 3];
                let names = pair.map(|at| format!("lock {at}"));
                let all = locks.all(names).wait(SOON).lock().await.expect("both");
                for at in pair {
                    assert_eq!(INSIDE[at].fetch_add(1, Ordering::SeqCst), 0, "somebody else is inside");
                }
                for _ in 0..20 {
                    tokio::task::yield_now().await;
                }
                for at in pair {
                    INSIDE[at].fetch_sub(1, Ordering::SeqCst);
                }
                let _ = all.release().await.expect("a release");
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("no panic");
    }
}
