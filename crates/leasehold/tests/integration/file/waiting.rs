//! Waiters sleep until they are woken.

use std::fs;
use std::process::{Child, Stdio};
use std::time::Duration;

use leasehold::Locks;

use crate::file::again;

/// Waits for the lock.
pub(crate) async fn wait(url: &str) {
    let locks = Locks::open(url).await.unwrap();
    let _ = locks.mutex("a").lock().await.unwrap().release().await.unwrap();
    std::process::exit(0);
}

/// Takes one of two permits, and keeps it until it is killed.
pub(crate) async fn permit(url: &str) {
    let locks = Locks::open(url).await.unwrap();
    let _guard = locks.semaphore("s", 2).acquire(1).await.unwrap();
    std::future::pending().await
}

#[tokio::test]
async fn the_death_of_any_holder_of_permits_is_noticed_at_once() {
    for killed in [0, 1] {
        let home = tempfile::tempdir().unwrap();
        let url = format!("file://{}", home.path().join("locks").display());
        let locks = Locks::open(&url).await.unwrap();
        let mut holders: Vec<Child> = Vec::new();
        for count in 1..=2 {
            holders.push(again("permit", &url).stdout(Stdio::null()).spawn().unwrap());
            while locks.inspect("s").await.unwrap().holders.len() < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        // Half of what the waiter's own heartbeat would take.
        let waiting = locks.semaphore("s", 2).ttl(Duration::from_secs(60)).wait(Duration::from_secs(10));
        let (granted, ()) = tokio::join!(waiting.acquire(1), async {
            while locks.inspect("s").await.unwrap().waiters.is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            holders[killed].kill().unwrap();
        });
        let _ = granted.unwrap().release().await.unwrap();
        for mut holder in holders {
            holder.kill().unwrap();
            holder.wait().unwrap();
        }
    }
}

/// How often the threads of a process gave up the processor to wait for something.
fn waits(child: &Child) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
    tasks
        .map(|task| {
            let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap_or_default();
            let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            line.map_or(0, |count| count.trim().parse::<u64>().unwrap())
        })
        .sum()
}

#[tokio::test]
async fn a_waiter_sleeps_until_it_is_woken() {
    let home = tempfile::tempdir().unwrap();
    let url = format!("file://{}", home.path().join("locks").display());
    let locks = Locks::open(&url).await.unwrap();
    let guard = locks.mutex("a").lock().await.unwrap();
    let mut waiters: Vec<Child> = (0..2).map(|_| again("wait", &url).stdout(Stdio::null()).spawn().unwrap()).collect();
    while locks.inspect("a").await.unwrap().waiters.len() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Once all is quiet, two seconds pass without a thing to do: a poll every 100 ms would show as twenty waits each.
    let mut before = waits(&waiters[0]);
    loop {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let now = waits(&waiters[0]);
        if now == before {
            break;
        }
        before = now;
    }
    let before: Vec<u64> = waiters.iter().map(waits).collect();
    tokio::time::sleep(Duration::from_secs(2)).await;
    for (waiter, before) in waiters.iter().zip(before) {
        let woken = waits(waiter) - before;
        assert!(woken <= 4, "woke {woken} times in two seconds");
    }
    let _ = guard.release().await.unwrap();
    for waiter in &mut waiters {
        assert!(waiter.wait().unwrap().success());
    }
}
