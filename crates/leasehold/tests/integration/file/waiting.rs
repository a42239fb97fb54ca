//! Waiters of the file engine sleep until they are woken.

use std::fs;
use std::process::{Child, Stdio};
use std::time::Duration;

use leasehold::Locks;

use crate::file::{child_command, wait_until};
use crate::{LONG_TTL, TEST_TIMEOUT};

/// The task `wait`: waits for the lock, releases it and ends.
pub(crate) async fn wait_for_lock(url: &str) {
    let locks = Locks::open(url).await.unwrap();
    let _ = locks.mutex("a").ttl(LONG_TTL).lock().await.unwrap().release().await.unwrap();
    std::process::exit(0);
}

/// The task `permit`: acquires one of two permits, and holds it until the process is killed.
pub(crate) async fn hold_permit(url: &str) {
    let locks = Locks::open(url).await.unwrap();
    let _guard = locks.semaphore("s", 2).ttl(LONG_TTL).acquire(1).await.unwrap();
    std::future::pending().await
}

#[tokio::test]
async fn the_death_of_any_permit_holder_is_detected_at_once() {
    for killed in [0, 1] {
        let temp_dir = tempfile::tempdir().unwrap();
        let url = format!("file://{}", temp_dir.path().join("locks").display());
        let locks = Locks::open(&url).await.unwrap();
        let mut holders: Vec<Child> = Vec::new();
        for count in 1..=2 {
            holders.push(child_command("permit", &url).stdout(Stdio::null()).spawn().unwrap());
            let held = async || (locks.inspect("s").await.unwrap().holders.len() == count).then_some(());
            wait_until("a holder", held).await;
        }
        // No lease ends, and no heartbeat of the waiter (after a third of its TTL) is due, before
        // the timeout.
        let waiting = locks.semaphore("s", 2).ttl(LONG_TTL).timeout(TEST_TIMEOUT);
        let (granted, ()) = tokio::join!(waiting.acquire(1), async {
            let waits = async || locks.inspect("s").await.unwrap().waiters.first().map(drop);
            wait_until("a waiter", waits).await;
            holders[killed].kill().unwrap();
        });
        let _ = granted.unwrap().release().await.unwrap();
        for mut holder in holders {
            holder.kill().unwrap();
            holder.wait().unwrap();
        }
    }
}

/// How often the threads of a process gave up the processor to wait, since the process started.
fn voluntary_switches(child: &Child) -> u64 {
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
    let temp_dir = tempfile::tempdir().unwrap();
    let url = format!("file://{}", temp_dir.path().join("locks").display());
    let locks = Locks::builder().ttl(LONG_TTL).open(&url).await.unwrap();
    let guard = locks.mutex("a").lock().await.unwrap();
    let mut waiters: Vec<Child> =
        (0..2).map(|_| child_command("wait", &url).stdout(Stdio::null()).spawn().unwrap()).collect();
    wait_until("two waiters", async || (locks.inspect("a").await.unwrap().waiters.len() == 2).then_some(())).await;
    // No timer wakes a sleeping waiter. A poll every 100 ms would show as at least ten switches per
    // second.
    let switches = || waiters.iter().map(voluntary_switches).collect::<Vec<u64>>();
    let second = Duration::from_secs(1);
    wait_until("a second in which each waiter wakes at most four times", async || {
        let before = switches();
        tokio::time::sleep(second).await;
        switches().iter().zip(&before).all(|(after, before)| after - before <= 4).then_some(())
    })
    .await;
    let _ = guard.release().await.unwrap();
    for waiter in &mut waiters {
        assert!(waiter.wait().unwrap().success());
    }
}
