//! The background thread of blocking locks ends with the last of their users. This test is alone in
//! its process, so that it can count the library's threads.
#![cfg(all(feature = "memory", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::time::Duration;

use leasehold::blocking::Locks;
use leasehold::clock::Clock;

/// How long a test waits for an event. Only a failing test waits this long.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// A TTL that outlasts the test.
const LONG_TTL: Duration = Duration::from_secs(600);

fn open(url: &str) -> Locks {
    Locks::builder().ttl(LONG_TTL).open(url).unwrap()
}

/// How many threads of this process belong to the library.
fn thread_count() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim_end() == "leasehold").count()
}

/// Waits until the library has this many threads; `when` is for the message of a failure.
fn wait_for_thread_count(count: usize, when: &str) {
    let clock = Clock::system();
    let start = clock.now();
    while thread_count() != count {
        if clock.now().duration_since(start) >= TEST_TIMEOUT {
            panic!("{} threads {when}, not {count}", thread_count());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn one_thread_per_locks_which_ends_with_the_last_user() {
    assert_eq!(thread_count(), 0);
    let locks = open("memory:thread");
    let clone = locks.clone();
    let guards: Vec<_> = (0..20).map(|index| clone.mutex(format!("lock {index}")).lock().unwrap()).collect();
    wait_for_thread_count(1, "for any number of locks");
    let other = open("memory:thread");
    wait_for_thread_count(2, "for two");
    drop((locks, clone));
    assert!(guards.iter().all(leasehold::blocking::Guard::is_held));
    wait_for_thread_count(2, "while guards are held");
    drop(guards);
    wait_for_thread_count(1, "after the last guard");
    assert!(other.list("").unwrap().is_empty(), "the thread released the dropped guards before it ended");
    let observer = other.election("boss").observe().unwrap();
    drop(other);
    wait_for_thread_count(1, "while an observer is left");
    drop(observer);
    wait_for_thread_count(0, "after the last user");

    // A failed opening leaves no thread either, nor do locks that were opened and dropped in an
    // async fn.
    assert!(Locks::open("nonsense:").is_err());
    wait_for_thread_count(0, "after a failed opening");
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
        let locks = open("memory:");
        let guard = locks.mutex("a").lock().unwrap();
        drop(locks);
        assert!(guard.is_held());
    });
    wait_for_thread_count(0, "after an async fn");
}
