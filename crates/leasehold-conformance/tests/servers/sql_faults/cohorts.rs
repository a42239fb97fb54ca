//! Claims of one client that have a lock one after the other without a statement in between.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use leasehold::{ErrorKind, Locks, Outcome};
use leasehold_conformance::world::SOON;

use crate::sql_faults::site::{Ahead, BOTH, LASTING, Site, lock, queued};

/// Who had the lock, in order, with its token.
#[derive(Default)]
struct Log {
    inside: AtomicU32,
    highest: AtomicU64,
    seen: Mutex<Vec<(usize, u64)>>,
}

impl Log {
    /// Holds the lock once: alone, and with a token above all before.
    async fn once(&self, locks: &Locks, who: usize) {
        let guard = lock(locks, "a").await;
        assert_eq!(self.inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
        let before = self.highest.swap(guard.token().0, Ordering::SeqCst);
        assert!(before < guard.token().0, "{before} and then {}", guard.token());
        self.seen.lock().expect("no panic").push((who, guard.token().0));
        tokio::task::yield_now().await;
        self.inside.fetch_sub(1, Ordering::SeqCst);
        let _ = guard.release().await.expect("a release");
    }
}

/// One after the other, in the order of their coming, while not one statement reaches the server; and with far fewer writes than there are holders.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_goes_down_the_line_with_few_writes() {
    const MANY: usize = 40;
    for kind in BOTH {
        let site = Site::new(kind).await;
        let (locks, proxy) = site.proxied(LASTING).await;
        let first = lock(&locks, "a").await;
        let log = Arc::new(Log::default());
        let mut tasks = tokio::task::JoinSet::new();
        for who in 0..MANY {
            let (log, its) = (Arc::clone(&log), locks.clone());
            tasks.spawn(async move { log.once(&its, who).await });
            queued(&locks, "a", who + 1).await;
        }
        let version = format!("SELECT version FROM {} WHERE name = 'a'", site.table());
        let before = site.number(&version).await;
        let token = first.token().0;
        proxy.freeze(true);
        let releasing = tokio::spawn(first.release());
        leasehold_testbed::eventually(SOON, || async {
            let seen = log.seen.lock().expect("no panic").len();
            if seen == MANY { Ok(()) } else { Err(format!("{seen} had it")) }
        })
        .await;
        proxy.freeze(false);
        let _ = releasing.await.expect("no panic").expect("a release");
        tasks.join_all().await;
        let seen = log.seen.lock().expect("no panic").clone();
        assert!(seen.iter().map(|(who, _)| *who).eq(0..MANY), "{kind:?}: {seen:?}");
        assert!(seen[0].1 > token, "{kind:?}");
        // All is written down in the end, and the next one's token is above all.
        let writes = site.number(&version).await - before;
        assert!(writes < MANY as u64 / 2, "{kind:?}: {writes} writes for {MANY} holders");
        let other = site.locks(LASTING).await;
        assert!(lock(&other, "a").await.token().0 > log.highest.load(Ordering::SeqCst), "{kind:?}");
    }
}

/// Two clients, each with many waiters: nobody of one comes in beside one of the other, and all tokens rise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cohorts_of_two_clients_take_turns() {
    for kind in BOTH {
        let site = Site::new(kind).await;
        let log = Arc::new(Log::default());
        let mut tasks = tokio::task::JoinSet::new();
        for client in 0..2 {
            let locks = site.locks(LASTING).await;
            for _ in 0..16 {
                let (log, locks) = (Arc::clone(&log), locks.clone());
                tasks.spawn(async move {
                    for _ in 0..8 {
                        log.once(&locks, client).await;
                    }
                });
            }
        }
        tasks.join_all().await;
        assert_eq!(log.seen.lock().expect("no panic").len(), 256, "{kind:?}");
    }
}

/// Another client sees who has the lock now, can put it out, and it is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_a_cohort_can_be_seen_and_put_out() {
    for kind in BOTH {
        let site = Site::new(kind).await;
        let ahead = Ahead::new();
        let (locks, other) = (ahead.locks(&site.url(), LASTING).await, site.locks(LASTING).await);
        let first = lock(&locks, "a").await;
        let waiting = |locks: &Locks| {
            let locks = locks.clone();
            tokio::spawn(async move { lock(&locks, "a").await })
        };
        let second = waiting(&locks);
        queued(&locks, "a", 1).await;
        let third = waiting(&locks);
        queued(&locks, "a", 2).await;
        let theirs = waiting(&other);
        queued(&locks, "a", 3).await;
        let _ = first.release().await.expect("a release");
        let _ = second.await.expect("no panic").release().await.expect("a release");
        let third = third.await.expect("no panic");
        // It is written down a moment later.
        let holder = leasehold_testbed::eventually(SOON, || async {
            let view = other.inspect("a").await.map_err(|error| error.to_string())?;
            let held = view.holders.first().filter(|held| held.token == Some(third.token()));
            held.map(|held| held.claim).ok_or_else(|| format!("{view:?}"))
        })
        .await;
        let evicted = other.evict("a", holder).await.expect("an eviction");
        let fence = evicted.token.expect("a token");
        assert!(evicted.party.is_some() && fence > third.token(), "{kind:?}");
        assert!(theirs.await.expect("no panic").token() > fence, "{kind:?}");
        // By a message, or because its client sees that another has written: no renewal is due.
        tokio::time::timeout(SOON, third.lost()).await.expect("it is told");
    }
}

/// A claim's longest hold counts from when it got the lock, not from when its predecessor did.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_longest_hold_begins_with_the_holder() {
    for kind in BOTH {
        let site = Site::new(kind).await;
        let ahead = Ahead::new();
        let locks = ahead.locks(&site.url(), LASTING).await;
        let first = lock(&locks, "a").await;
        let most = LASTING / 8;
        let its = locks.clone();
        let second = tokio::spawn(async move {
            let guard = its.mutex("a").max_hold(most).lock().await.expect("a lock");
            let left = guard.deadline().since(its.clock().now());
            let _ = guard.release().await.expect("a release");
            left
        });
        queued(&locks, "a", 1).await;
        // Longer than the second one may hold it.
        ahead.jump(most * 2);
        let _ = first.release().await.expect("a release");
        assert!(!second.await.expect("it was let in").is_zero(), "{kind:?}");
    }
}

/// Another client evicts one of ours that waits and may have been promised the lock: it ends with an error, or is told that it has lost it. The
/// others have it in turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_evicted_follower_does_not_hold_on_to_the_lock() {
    for kind in BOTH {
        let site = Site::new(kind).await;
        let (locks, other) = (site.locks(LASTING).await, site.locks(LASTING).await);
        let first = lock(&locks, "a").await;
        let mut waiting = Vec::new();
        for place in 1..=3 {
            let its = locks.clone();
            waiting.push(tokio::spawn(async move { its.mutex("a").wait(LASTING).lock().await }));
            queued(&locks, "a", place).await;
        }
        let second = other.inspect("a").await.expect("a view").waiters[1].claim;
        let evicted = other.evict("a", second).await.expect("an eviction");
        assert!(evicted.party.is_some() && evicted.token.is_none(), "{kind:?}: a waiter has nothing to fence");
        let mut last = first.token();
        let _ = first.release().await.expect("a release");
        for (place, waiter) in waiting.into_iter().enumerate() {
            let ended = tokio::time::timeout(SOON, waiter).await.expect("an end").expect("no panic");
            match ended {
                Err(error) => assert_eq!((place, error.kind()), (1, ErrorKind::Evicted), "{kind:?}: {error}"),
                Ok(guard) => {
                    assert!(guard.token() > last, "{kind:?}");
                    last = guard.token();
                    if place == 1 {
                        tokio::time::timeout(SOON, guard.lost()).await.expect("it is told");
                    } else {
                        assert_eq!(guard.release().await.expect("a release"), Outcome::Released, "{kind:?}");
                    }
                }
            }
        }
        assert!(lock(&locks, "a").await.token() > last, "{kind:?}");
    }
}

/// The server is killed while a cohort has the lock: nobody else comes in, and tokens go on from above all that were given.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_of_the_server_forgets_no_token_of_a_cohort() {
    for kind in BOTH {
        let mut site = Site::alone(kind).await;
        let log = Arc::new(Log::default());
        let mut tasks = tokio::task::JoinSet::new();
        let locks = site.locks(LASTING).await;
        for who in 0..32 {
            let (log, locks) = (Arc::clone(&log), locks.clone());
            tasks.spawn(async move {
                for _ in 0..20 {
                    log.once(&locks, who).await;
                }
            });
        }
        leasehold_testbed::eventually(SOON, || async {
            let seen = log.seen.lock().expect("no panic").len();
            if seen > 100 { Ok(()) } else { Err(format!("{seen} had it")) }
        })
        .await;
        site.home.crash().await;
        // Those whose call failed have left; the others go on.
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended {
                assert!(!format!("{error:?}").contains("two at once"), "{kind:?}: {error:?}");
            }
        }
        let other = site.locks(LASTING).await;
        let written = site.number(&format!("SELECT token FROM {} WHERE name = 'a'", site.table())).await;
        assert!(written >= log.highest.load(Ordering::SeqCst), "{kind:?}: a token was given that was not written");
        drop((other, locks));
    }
}
