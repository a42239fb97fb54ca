//! Claims of one client hand a lock off locally, without a statement in between.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use leasehold::{ErrorKind, Locks, ReleaseOutcome};
use leasehold_conformance::test_context::TEST_TIMEOUT;

use crate::sql_faults::fixture::{BOTH, Fixture, LASTING, ShiftedClock, acquire, until_queued};

/// Logs the holders in order, with their tokens.
#[derive(Default)]
struct HolderLog {
    holders: AtomicU32,
    highest_token: AtomicU64,
    grants: Mutex<Vec<(usize, u64)>>,
}

impl HolderLog {
    /// Holds the lock once, and asserts exclusion and a token above all earlier ones.
    async fn hold_once(&self, locks: &Locks, who: usize) {
        let guard = acquire(locks, "a").await;
        assert_eq!(self.holders.fetch_add(1, Ordering::SeqCst), 0, "two at once");
        let before = self.highest_token.swap(guard.token().0, Ordering::SeqCst);
        assert!(before < guard.token().0, "tokens do not rise: {before}, then {}", guard.token());
        self.grants.lock().expect("no panic").push((who, guard.token().0));
        tokio::task::yield_now().await;
        self.holders.fetch_sub(1, Ordering::SeqCst);
        let _ = guard.release().await.expect("a release");
    }
}

/// Waiters are served in order while no statement reaches the server, with far fewer writes than
/// holders.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_handed_off_locally_with_few_writes() {
    const MANY: usize = 40;
    for kind in BOTH {
        let fixture = Fixture::new(kind).await;
        let (locks, proxy) = fixture.open_through_proxy(LASTING).await;
        let first = acquire(&locks, "a").await;
        let log = Arc::new(HolderLog::default());
        let mut tasks = tokio::task::JoinSet::new();
        for who in 0..MANY {
            let (log, client) = (Arc::clone(&log), locks.clone());
            tasks.spawn(async move { log.hold_once(&client, who).await });
            until_queued(&locks, "a", who + 1).await;
        }
        let version = format!("SELECT version FROM {} WHERE name = 'a'", fixture.table());
        let before = fixture.number(&version).await;
        let token = first.token().0;
        proxy.freeze(true);
        let releasing = tokio::spawn(first.release());
        leasehold_testbed::eventually(TEST_TIMEOUT, || async {
            let seen = log.grants.lock().expect("no panic").len();
            if seen == MANY { Ok(()) } else { Err(format!("{seen} have held it")) }
        })
        .await;
        proxy.freeze(false);
        let _ = releasing.await.expect("no panic").expect("a release");
        tasks.join_all().await;
        let seen = log.grants.lock().expect("no panic").clone();
        assert!(seen.iter().map(|(who, _)| *who).eq(0..MANY), "{kind:?}: {seen:?}");
        assert!(seen[0].1 > token, "{kind:?}");
        // Everything is written in the end, and the next token is above all.
        let writes = fixture.number(&version).await - before;
        assert!(writes < MANY as u64 / 2, "{kind:?}: {writes} writes for {MANY} holders");
        let other = fixture.open_locks(LASTING).await;
        assert!(acquire(&other, "a").await.token().0 > log.highest_token.load(Ordering::SeqCst), "{kind:?}");
    }
}

/// Two clients with many waiters each: no two holders overlap, and all tokens rise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_hand_offs_of_two_clients_exclude_each_other() {
    for kind in BOTH {
        let fixture = Fixture::new(kind).await;
        let log = Arc::new(HolderLog::default());
        let mut tasks = tokio::task::JoinSet::new();
        for client in 0..2 {
            let locks = fixture.open_locks(LASTING).await;
            for _ in 0..16 {
                let (log, locks) = (Arc::clone(&log), locks.clone());
                tasks.spawn(async move {
                    for _ in 0..8 {
                        log.hold_once(&locks, client).await;
                    }
                });
            }
        }
        tasks.join_all().await;
        assert_eq!(log.grants.lock().expect("no panic").len(), 256, "{kind:?}");
    }
}

/// Another client sees the current holder and can force-release it, and the holder learns of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_local_holder_can_be_inspected_and_force_released() {
    for kind in BOTH {
        let fixture = Fixture::new(kind).await;
        let ahead = ShiftedClock::new();
        let (locks, other) = (ahead.open_locks(&fixture.url(), LASTING).await, fixture.open_locks(LASTING).await);
        let first = acquire(&locks, "a").await;
        let waiting = |locks: &Locks| {
            let locks = locks.clone();
            tokio::spawn(async move { acquire(&locks, "a").await })
        };
        let second = waiting(&locks);
        until_queued(&locks, "a", 1).await;
        let third = waiting(&locks);
        until_queued(&locks, "a", 2).await;
        let other_waiter = waiting(&other);
        until_queued(&locks, "a", 3).await;
        let _ = first.release().await.expect("a release");
        let _ = second.await.expect("no panic").release().await.expect("a release");
        let third = third.await.expect("no panic");
        // The hand-off is written a moment later.
        let holder = leasehold_testbed::eventually(TEST_TIMEOUT, || async {
            let view = other.inspect("a").await.map_err(|error| error.to_string())?;
            let held = view.holders.first().filter(|held| held.token == Some(third.token()));
            held.map(|held| held.claim).ok_or_else(|| format!("{view:?}"))
        })
        .await;
        let force_released = other.force_release("a", holder).await.expect("a force release");
        let fence = force_released.fence_token.expect("a token");
        assert!(force_released.contender.is_some() && fence > third.token(), "{kind:?}");
        assert!(other_waiter.await.expect("no panic").token() > fence, "{kind:?}");
        // By a notification, or because the client detects the changed row: no renewal is due.
        tokio::time::timeout(TEST_TIMEOUT, third.lost()).await.expect("the holder learns of the loss");
    }
}

/// A claim's maximum hold time counts from its own grant, not from its predecessor's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_max_hold_counts_from_each_holders_own_grant() {
    for kind in BOTH {
        let fixture = Fixture::new(kind).await;
        let ahead = ShiftedClock::new();
        let locks = ahead.open_locks(&fixture.url(), LASTING).await;
        let first = acquire(&locks, "a").await;
        let most = LASTING / 8;
        let second_client = locks.clone();
        let second = tokio::spawn(async move {
            let guard = second_client.mutex("a").max_hold(most).lock().await.expect("a lock");
            let left = guard.deadline().duration_since(second_client.clock().now());
            let _ = guard.release().await.expect("a release");
            left
        });
        until_queued(&locks, "a", 1).await;
        // Longer than the second claim may hold the lock.
        ahead.advance(most * 2);
        let _ = first.release().await.expect("a release");
        assert!(!second.await.expect("the second claim was granted").is_zero(), "{kind:?}");
    }
}

/// Another client force-releases a local waiter that may already be the next holder: it gets an
/// error or learns that it lost the lock. The others are served in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_force_released_local_successor_does_not_keep_the_lock() {
    for kind in BOTH {
        let fixture = Fixture::new(kind).await;
        let (locks, other) = (fixture.open_locks(LASTING).await, fixture.open_locks(LASTING).await);
        let first = acquire(&locks, "a").await;
        let mut waiting = Vec::new();
        for place in 1..=3 {
            let client = locks.clone();
            waiting.push(tokio::spawn(async move { client.mutex("a").timeout(LASTING).lock().await }));
            until_queued(&locks, "a", place).await;
        }
        let second = other.inspect("a").await.expect("a view").waiters[1].claim;
        let force_released = other.force_release("a", second).await.expect("a force release");
        assert!(
            force_released.contender.is_some() && force_released.fence_token.is_none(),
            "{kind:?}: a waiter has nothing to fence"
        );
        let mut last = first.token();
        let _ = first.release().await.expect("a release");
        for (place, waiter) in waiting.into_iter().enumerate() {
            let ended = tokio::time::timeout(TEST_TIMEOUT, waiter).await.expect("the call returns").expect("no panic");
            match ended {
                Err(error) => assert_eq!((place, error.kind()), (1, ErrorKind::ForceReleased), "{kind:?}: {error}"),
                Ok(guard) => {
                    assert!(guard.token() > last, "{kind:?}");
                    last = guard.token();
                    if place == 1 {
                        tokio::time::timeout(TEST_TIMEOUT, guard.lost()).await.expect("the holder learns of the loss");
                    } else {
                        assert_eq!(guard.release().await.expect("a release"), ReleaseOutcome::Released, "{kind:?}");
                    }
                }
            }
        }
        assert!(acquire(&locks, "a").await.token() > last, "{kind:?}");
    }
}

/// The server is killed during local hand-offs: no two holders overlap, and later tokens are above
/// all granted ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_crash_repeats_no_token_of_local_hand_offs() {
    for kind in BOTH {
        let mut fixture = Fixture::on_own_server(kind).await;
        let log = Arc::new(HolderLog::default());
        let mut tasks = tokio::task::JoinSet::new();
        let locks = fixture.open_locks(LASTING).await;
        for who in 0..32 {
            let (log, locks) = (Arc::clone(&log), locks.clone());
            tasks.spawn(async move {
                for _ in 0..20 {
                    log.hold_once(&locks, who).await;
                }
            });
        }
        leasehold_testbed::eventually(TEST_TIMEOUT, || async {
            let seen = log.grants.lock().expect("no panic").len();
            if seen > 100 { Ok(()) } else { Err(format!("{seen} have held it")) }
        })
        .await;
        fixture.database.crash_and_restart().await;
        // Tasks whose call failed have ended; the others continue.
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended {
                assert!(!format!("{error:?}").contains("two at once"), "{kind:?}: {error:?}");
            }
        }
        let other = fixture.open_locks(LASTING).await;
        let written = fixture.number(&format!("SELECT token FROM {} WHERE name = 'a'", fixture.table())).await;
        assert!(written >= log.highest_token.load(Ordering::SeqCst), "{kind:?}: a token was granted but not written");
        drop((other, locks));
    }
}
