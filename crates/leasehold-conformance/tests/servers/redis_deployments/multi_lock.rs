//! Multi-locks on `redis:`: one script acquires all locks or none.

use std::sync::atomic::{AtomicU32, Ordering};

use leasehold::{Locks, Mode, Owner, ReleaseOutcome};
use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT, patient_url};
use leasehold_testbed::redis::{Reply, RespClient};
use leasehold_testbed::{Server, eventually, redis};

use crate::redis_faults::fixture::Fixture;

async fn open(server: &Server) -> Locks {
    Locks::builder().ttl(LONG_TTL).open(&patient_url(&server.url())).await.expect("the engine")
}

/// Number of scripts that the server has run.
async fn script_calls(server: &Server) -> u64 {
    let mut raw = RespClient::connect(server.addr()).await.expect("a raw connection");
    let Reply::Bulk(stats) = raw.command(&["INFO", "commandstats"]).await.expect("an answer") else {
        panic!("no statistics")
    };
    let calls = |line: &str| line.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next()?.parse().ok();
    stats.lines().find_map(calls).unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn free_locks_are_acquired_by_one_script() {
    let server = redis::start().await.expect("a server");
    let locks = open(&server).await;
    let before = script_calls(&server).await;
    let all = locks.multi_lock(["c", "a", "b"]).lock().await.expect("all locks");
    assert_eq!(script_calls(&server).await - before, 1, "one script for three locks");
    let tokens: Vec<_> = ["a", "b", "c"].map(|name| all.token(name).expect("a token")).to_vec();
    for (name, token) in ["a", "b", "c"].into_iter().zip(&tokens) {
        let view = locks.inspect(name).await.expect("a view");
        assert_eq!(view.holders[0].token, Some(*token));
    }
    for (_, outcome) in all.release().await.expect("a release") {
        assert_eq!(outcome, ReleaseOutcome::Released);
    }
    let again = locks.multi_lock(["a", "b", "c"]).try_lock().await.expect("an answer").expect("free");
    for (name, token) in ["a", "b", "c"].into_iter().zip(tokens) {
        assert!(again.token(name).expect("a token") > token);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn if_one_lock_is_held_none_is_acquired() {
    let fixture = Fixture::shared().await;
    let (locks, other) = (fixture.locks(LONG_TTL).await, fixture.locks(LONG_TTL).await);
    let held = other.mutex("b").lock().await.expect("a lock");
    assert!(locks.multi_lock(["a", "b", "c"]).try_lock().await.expect("an answer").is_none());
    eventually(TEST_TIMEOUT, || async {
        let left = locks.list("").await.map_err(|error| error.to_string())?;
        let names: Vec<_> = left.iter().map(|view| view.name.as_str()).collect();
        if names == ["b"] { Ok(()) } else { Err(format!("{names:?}")) }
    })
    .await;
    let waits = tokio::spawn({
        let all = locks.multi_lock(["a", "b", "c"]).timeout(TEST_TIMEOUT);
        async move { all.lock().await }
    });
    eventually(TEST_TIMEOUT, || async {
        let view = other.inspect("b").await.map_err(|error| error.to_string())?;
        if view.waiters.len() == 1 { Ok(()) } else { Err(format!("{view:?}")) }
    })
    .await;
    let _ = held.release().await.expect("a release");
    assert!(waits.await.expect("no panic").expect("all locks").is_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn modes_owners_and_limits_are_kept_in_one_script_too() {
    let fixture = Fixture::shared().await;
    let (locks, other) = (fixture.locks(LONG_TTL).await, fixture.locks(LONG_TTL).await);
    let owner = Owner::new();
    let outer = locks.mutex("mine").owner(&owner).lock().await.expect("a lock");
    let reader = other.rwlock("read").read().await.expect("a lock");
    let permit = other.semaphore("slots", 3).acquire(2).await.expect("permits");
    let wanted = [("mine", Mode::Exclusive), ("read", Mode::Shared), ("slots", Mode::Permits { n: 1, limit: 3 })];
    let all = locks.multi_lock(wanted).owner(&owner).try_lock().await.expect("an answer").expect("all locks fit");
    assert_eq!(all.token("mine"), Some(outer.token()), "re-entered");
    assert!(other.semaphore("slots", 3).try_acquire(1).await.expect("an answer").is_none(), "no permit is left");
    drop(all);
    let two = [("free", Mode::Exclusive), ("slots", Mode::Permits { n: 2, limit: 3 })];
    assert!(locks.multi_lock(two).try_lock().await.expect("an answer").is_none(), "two permits do not fit");
    let other_limit = [("free", Mode::Exclusive), ("slots", Mode::Permits { n: 1, limit: 4 })];
    assert!(locks.multi_lock(other_limit).try_lock().await.is_err(), "a different limit is rejected");
    drop((reader, permit, outer));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn multi_lock_holders_exclude_each_other_and_never_deadlock() {
    let fixture = Fixture::shared().await;
    static INSIDE: [AtomicU32; 3] = [AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0)];
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..6_usize {
        let locks = fixture.locks(LONG_TTL).await;
        tasks.spawn(async move {
            for turn in 0..30 {
                let pair = [number % 3, (number + 1 + turn % 2) % 3];
                let names = pair.map(|at| format!("lock {at}"));
                let all = locks.multi_lock(names).timeout(TEST_TIMEOUT).lock().await.expect("both");
                for at in pair {
                    assert_eq!(INSIDE[at].fetch_add(1, Ordering::SeqCst), 0, "the lock has another holder");
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
