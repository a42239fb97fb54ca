//! The blocking API: every call outside a tokio runtime, inside one of each kind, and from many
//! threads.
#![cfg(feature = "memory")]
#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use leasehold::blocking::Locks;
use leasehold::clock::ManualClock;
use leasehold::{ErrorKind, LostReason, Mode, Owner, ReleaseOutcome};

use crate::{LONG_TTL, TEST_TIMEOUT};

const TTL: Duration = Duration::from_secs(30);

fn open() -> Locks {
    Locks::builder().ttl(LONG_TTL).open("memory:").unwrap()
}

/// Waits until `condition` holds; panics after [`TEST_TIMEOUT`].
fn wait_until(description: &str, mut condition: impl FnMut() -> bool) {
    let clock = leasehold::clock::Clock::system();
    let start = clock.now();
    while !condition() {
        if clock.now().duration_since(start) >= TEST_TIMEOUT {
            panic!("not within {TEST_TIMEOUT:?}: {description}");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Calls everything in the blocking API once.
fn use_whole_api() {
    use_mutexes();
    use_rwlocks_and_semaphores();
    use_multi_locks();
    use_elections();
    inspect_and_force_release();
}

fn use_mutexes() {
    let locks = Locks::builder().ttl(LONG_TTL).open("memory:").unwrap();
    let owner = Owner::new();
    let mutex = locks.mutex("a").ttl(LONG_TTL * 2).owner(&owner).describe("me");
    let guard = mutex.timeout(TEST_TIMEOUT).lock().unwrap();
    assert_eq!((guard.name().as_str(), guard.token().0, guard.is_held()), ("a", 1, true));
    assert!(guard.remaining() > LONG_TTL && guard.deadline() > locks.clock().now());
    assert_eq!((guard.lost_reason(), guard.wait_for_loss(Duration::from_millis(1))), (None, None));
    assert_eq!(guard.protect(|| 7).unwrap(), 7);
    let again = locks.mutex("a").owner(&owner).try_lock().unwrap().unwrap();
    assert_eq!(again.token(), guard.token());
    assert!(locks.mutex("a").try_lock().unwrap().is_none());
    let error = locks.mutex("a").timeout(Duration::from_millis(5)).lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(again.release().unwrap(), ReleaseOutcome::Released);
    let watch = guard.watcher();
    assert!(watch.is_held() && watch.deadline() == guard.deadline());
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
    assert!(!watch.is_held() && watch.wait_for_loss(Duration::from_millis(1)).is_none());
    let short = locks.mutex("a").max_hold(Duration::from_millis(20)).lock().unwrap();
    assert_eq!(short.lost(), LostReason::MaxHold);
    assert_eq!(short.wait_for_loss(TEST_TIMEOUT), Some(LostReason::MaxHold));
    assert_eq!(short.protect(|| unreachable!("it is lost")).unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(short.release().unwrap(), ReleaseOutcome::AlreadyLost(LostReason::MaxHold));
}

fn use_rwlocks_and_semaphores() {
    let locks = open();
    let lock = locks.rwlock("a");
    let (one, two) = (lock.read().unwrap(), lock.try_read().unwrap().unwrap());
    assert!(lock.try_write().unwrap().is_none());
    drop((one, two));
    assert_eq!(lock.write().unwrap().release().unwrap(), ReleaseOutcome::Released);
    let semaphore = locks.semaphore("b", 2);
    let (one, two) = (semaphore.acquire(1).unwrap(), semaphore.try_acquire(1).unwrap());
    assert!(two.is_some() && semaphore.try_acquire(1).unwrap().is_none());
    assert_eq!(locks.semaphore("b", 3).acquire(1).unwrap_err().kind(), ErrorKind::Conflict);
    drop((one, two));
    assert_eq!(semaphore.acquire(3).unwrap_err().kind(), ErrorKind::InvalidOption);
}

fn use_multi_locks() {
    let locks = open();
    let wanted = [(&locks.mutex("c")).into(), locks.rwlock("a").read_spec(), locks.semaphore("b", 3).permits_spec(2)];
    let guard = locks.multi_lock(wanted).timeout(TEST_TIMEOUT).lock().unwrap();
    assert_eq!(guard.names().map(|name| name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    assert!(guard.is_held() && guard.token("c").is_some());
    assert!(guard.wait_for_loss(Duration::from_millis(1)).is_none());
    assert!(locks.multi_lock(["c", "d"]).try_lock().unwrap().is_none());
    let view = locks.inspect("b").unwrap();
    let claim = view.holders[0].claim;
    assert_eq!(view.holders[0].mode, Mode::Permits { n: 2, limit: 3 });
    locks.force_release("b", claim).unwrap();
    let (name, reason) = guard.lost().unwrap();
    assert_eq!((name.as_str(), reason), ("b", LostReason::Revoked));
    assert_eq!(guard.release().unwrap().len(), 3);
    let nothing: [&str; 0] = [];
    assert!(locks.multi_lock(nothing).lock().unwrap().lost().is_none());
}

fn use_elections() {
    let locks = open();
    let election = locks.election("boss").describe("first");
    let mut observer = election.observe().unwrap();
    assert!(observer.next().unwrap().is_none());
    let leadership = election.campaign().unwrap();
    assert_eq!(&*observer.next().unwrap().unwrap().holder.description, "first");
    assert!(leadership.is_leader() && election.try_campaign().unwrap().is_none());
    assert_eq!(election.leader().unwrap().map(|leader| leader.token), Some(leadership.token()));
    assert_eq!(leadership.wait_for_loss(Duration::from_millis(1)), None);
    assert_eq!(leadership.resign().unwrap(), ReleaseOutcome::Released);
    assert!(observer.next().unwrap().is_none());
    let short = election.max_hold(Duration::from_millis(20)).campaign().unwrap();
    assert_eq!(short.lost(), LostReason::MaxHold);
}

fn inspect_and_force_release() {
    let locks = open();
    assert_eq!((locks.capabilities().engine, locks.url().as_str()), ("memory", "memory:"));
    let guard = locks.mutex("x/a").describe("me").lock().unwrap();
    let view = locks.inspect("x/a").unwrap();
    assert_eq!((&*view.holders[0].holder.description, view.holders.len(), locks.held_count()), ("me", 1, 1));
    let listed = locks.list("x/").unwrap();
    assert!(listed.len() == 1 && listed[0].name == view.name, "{listed:?}");
    assert!(locks.list("y").unwrap().is_empty());
    let force_released = locks.force_release("x/a", view.holders[0].claim).unwrap();
    assert!(
        force_released.fence_token > Some(guard.token())
            && locks.last_token("x/a").unwrap() >= force_released.fence_token
    );
    assert_eq!(guard.lost(), LostReason::Revoked);
    assert_eq!(locks.inspect("").unwrap_err().kind(), ErrorKind::InvalidName);
    drop(guard);
    locks.flush().unwrap();
    locks.close().unwrap();
}

#[test]
fn outside_a_runtime() {
    use_whole_api();
}

#[tokio::test]
async fn inside_an_async_fn_of_a_current_thread_runtime() {
    use_whole_api();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn inside_the_only_worker_of_a_multi_thread_runtime() {
    tokio::spawn(async { use_whole_api() }).await.unwrap();
}

#[tokio::test]
async fn inside_a_task_that_has_used_its_tokio_budget() {
    // tokio suspends the futures of a task that ran for too long; the blocking calls run on the
    // background thread instead.
    tokio::spawn(async {
        let semaphore = tokio::sync::Semaphore::new(1);
        while tokio::task::coop::has_budget_remaining() {
            let _ = semaphore.acquire().await;
        }
        use_whole_api();
    })
    .await
    .unwrap();
}

#[test]
fn opening_reports_what_is_wrong() {
    assert_eq!(Locks::open("nonsense:").unwrap_err().kind(), ErrorKind::UnknownScheme);
    assert_eq!(Locks::open("memory").unwrap_err().kind(), ErrorKind::InvalidUrl);
}

#[test]
fn eight_threads_exclude_each_other_in_turn() {
    let locks = open();
    let (inside, last) = (AtomicU32::new(0), Mutex::new(0));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mutex = locks.mutex("a").timeout(TEST_TIMEOUT);
                for _ in 0..50 {
                    let guard = mutex.lock().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "alone");
                    let before = std::mem::replace(&mut *last.lock().unwrap(), guard.token().0);
                    assert!(before < guard.token().0, "tokens rise");
                    std::thread::yield_now();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
                }
            });
        }
    });
    assert!(locks.list("").unwrap().is_empty());
}

#[test]
fn a_waiting_thread_gets_the_lock_when_another_drops_it() {
    let locks = open();
    let guard = locks.mutex("a").lock().unwrap();
    let (sender, receiver) = mpsc::channel();
    let waiter = std::thread::spawn({
        let mutex = locks.mutex("a");
        move || sender.send(mutex.lock().unwrap().token().0).unwrap()
    });
    wait_until("the thread waits for the lock", || locks.inspect("a").unwrap().waiters.len() == 1);
    assert!(receiver.try_recv().is_err());
    drop(guard);
    assert_eq!(receiver.recv_timeout(TEST_TIMEOUT).unwrap(), 2);
    waiter.join().unwrap();
}

#[test]
fn a_panic_while_holding_a_guard_releases_the_lock() {
    let locks = open();
    let thread = std::thread::spawn({
        let locks = locks.clone();
        move || {
            let guard = locks.mutex("a").lock().unwrap();
            guard.protect(|| panic!("on purpose")).unwrap();
        }
    });
    assert!(thread.join().is_err());
    assert_eq!(locks.mutex("a").timeout(TEST_TIMEOUT).lock().unwrap().token().0, 2);
}

#[test]
fn protect_fails_if_the_lock_was_lost_during_the_work() {
    let manual_clock = ManualClock::new();
    let locks = Locks::builder().clock(manual_clock.clock()).ttl(TTL).open("memory:").unwrap();
    let guard = locks.mutex("a").max_hold(TTL / 2).lock().unwrap();
    let done = AtomicBool::new(false);
    let error = guard
        .protect(|| {
            manual_clock.advance(TTL / 2);
            done.store(true, Ordering::SeqCst);
        })
        .unwrap_err();
    assert!(done.load(Ordering::SeqCst), "a blocking thread runs to its end");
    assert_eq!((error.kind(), error.engine()), (ErrorKind::Lost, Some("memory")));
    assert_eq!(error.name().map(|name| name.as_str()), Some("a"));
}

#[test]
fn waiting_for_a_loss_ends_at_the_deadline_of_the_injected_clock() {
    let manual_clock = ManualClock::new();
    let locks = Locks::builder().clock(manual_clock.clock()).ttl(TTL).open("memory:").unwrap();
    let guard = Arc::new(locks.mutex("a").max_hold(TTL / 2).lock().unwrap());
    let (sender, receiver) = mpsc::channel();
    let waiter = std::thread::spawn({
        let guard = Arc::clone(&guard);
        move || sender.send((guard.wait_for_loss(TTL / 4), guard.lost())).unwrap()
    });
    // The waiter may not have started yet, so the test advances time until both waits of it have
    // ended. Until the deadline the lock stays held.
    let mut passed = Duration::ZERO;
    while passed < TTL / 2 - Duration::from_secs(1) {
        manual_clock.advance(Duration::from_secs(1));
        passed += Duration::from_secs(1);
        assert!(receiver.try_recv().is_err(), "still held");
    }
    manual_clock.advance(Duration::from_secs(1));
    let (first, then) = loop {
        match receiver.recv_timeout(Duration::from_millis(5)) {
            Ok(received) => break received,
            Err(_) => manual_clock.advance(Duration::from_secs(1)),
        }
    };
    assert!(matches!(first, None | Some(LostReason::MaxHold)));
    assert_eq!(then, LostReason::MaxHold);
    waiter.join().unwrap();
}

#[cfg(feature = "nightly")]
#[test]
fn a_caller_that_makes_no_calls_keeps_its_lock_because_the_thread_renews_it() {
    let ttl = Duration::from_secs(30);
    let locks = Locks::builder().ttl(ttl).open("memory:").unwrap();
    let guard = locks.mutex("a").lock().unwrap();
    let first = guard.deadline();
    wait_until("renewed for two TTLs", || {
        assert!(guard.is_held());
        guard.deadline() > first.saturating_add(ttl * 2)
    });
}
