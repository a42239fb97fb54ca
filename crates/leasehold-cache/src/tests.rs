//! Reads and writes on `memory:`, in orders that a test determines by holding back loads.

use std::collections::BTreeSet;
use std::io::Error as Io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::*;
use crate::logic::Data;
use leasehold::Token;

const LONG_TTL: Duration = Duration::from_secs(3600);

fn builder_without_timeouts() -> Builder {
    ReadThrough::builder().ttl(LONG_TTL).load_lease(LONG_TTL).max_load_time(LONG_TTL).early_reload(0.0)
}

/// A database with one number. Each read ends only when the test adds a permit to the gate.
#[derive(Clone)]
struct GatedDatabase {
    value: Arc<AtomicU64>,
    /// The number of loads that have read the number; they may still wait at the gate.
    started_loads: Arc<AtomicU32>,
    gate: Arc<Semaphore>,
}

impl GatedDatabase {
    fn new() -> Self {
        Self { value: Arc::new(AtomicU64::new(1)), started_loads: Arc::default(), gate: Arc::new(Semaphore::new(0)) }
    }

    async fn load(&self) -> Result<Option<Row>, Io> {
        let value = self.value.load(Ordering::SeqCst);
        self.started_loads.fetch_add(1, Ordering::SeqCst);
        self.gate.acquire().await.map_err(Io::other)?.forget();
        Ok(Some(Row::from(value.to_string())))
    }

    fn read(&self, cache: &ReadThrough) -> JoinHandle<Result<Data, CacheError>> {
        let (slow, cache) = (self.clone(), cache.clone());
        tokio::spawn(async move { cache.get_or_load("k", || slow.load()).await })
    }

    async fn wait_for_loads(&self, count: u32) {
        while self.started_loads.load(Ordering::SeqCst) < count {
            tokio::task::yield_now().await;
        }
    }
}

async fn run_until_idle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

fn text(data: Result<Data, CacheError>) -> String {
    String::from_utf8(data.unwrap().unwrap()).unwrap()
}

#[tokio::test]
async fn many_misses_are_one_load() {
    let (cache, slow) = (builder_without_timeouts().open("memory:").await.unwrap(), GatedDatabase::new());
    let reads: Vec<_> = (0..500).map(|_| slow.read(&cache)).collect();
    slow.wait_for_loads(1).await;
    run_until_idle().await;
    slow.gate.add_permits(1);
    for read in reads {
        assert_eq!(text(read.await.unwrap()), "1");
    }
    assert_eq!(cache.stats().loads, 1);
}

#[tokio::test]
async fn an_overtaken_strong_read_loads_again_and_later_reads_do_not_join_it() {
    let (cache, slow) = (builder_without_timeouts().open("memory:").await.unwrap(), GatedDatabase::new());
    let early = slow.read(&cache);
    slow.wait_for_loads(1).await;
    slow.value.store(2, Ordering::SeqCst);
    cache.invalidate("k").await.unwrap();
    let late = slow.read(&cache);
    slow.wait_for_loads(2).await;
    slow.gate.add_permits(2);
    assert_eq!(text(late.await.unwrap()), "2");
    assert_eq!(text(early.await.unwrap()), "2", "it loaded again, or used the other load");
    assert_eq!(cache.stats().rejected, 1);
}

#[tokio::test]
async fn a_stale_value_is_served_during_a_load() {
    let builder = builder_without_timeouts().freshness(Freshness::ServeStale).stale_for(LONG_TTL);
    let (cache, slow) = (builder.open("memory:").await.unwrap(), GatedDatabase::new());
    slow.gate.add_permits(1);
    slow.read(&cache).await.unwrap().unwrap();
    slow.value.store(2, Ordering::SeqCst);
    cache.invalidate("k").await.unwrap();
    let loads = slow.read(&cache);
    slow.wait_for_loads(2).await;
    assert_eq!(text(slow.read(&cache).await.unwrap()), "1");
    slow.gate.add_permits(1);
    assert_eq!(text(loads.await.unwrap()), "2");
    assert_eq!(text(slow.read(&cache).await.unwrap()), "2");
    // The same if it cannot be loaded.
    cache.invalidate("k").await.unwrap();
    let failed = cache.get_or_load("k", || async { Err::<Option<Row>, _>(Io::other("down")) }).await;
    assert_eq!(text(failed), "2");
}

#[tokio::test]
async fn not_found_is_cached_too() {
    let cache = builder_without_timeouts().open("memory:").await.unwrap();
    for _ in 0..3 {
        assert_eq!(cache.get_or_load("k", || async { Ok::<Option<Row>, Io>(None) }).await.unwrap(), None);
    }
    assert_eq!((cache.stats().loads, cache.stats().hits), (1, 2));
}

#[tokio::test]
async fn one_reader_reloads_a_value_before_it_expires() {
    // A load takes long compared with the TTL, so a reload before the end is certain.
    let cache = builder_without_timeouts()
        .early_reload(100.0)
        .ttl(Duration::from_millis(200))
        .jitter(0.0)
        .open("memory:")
        .await
        .unwrap();
    let loads = AtomicU32::new(0);
    let load = || async {
        loads.fetch_add(1, Ordering::SeqCst);
        leasehold::clock::Clock::system().sleep(Duration::from_millis(20)).await;
        Ok::<_, Io>(Some("v"))
    };
    let mut reads = 0;
    while cache.stats().loads < 2 {
        cache.get_or_load("k", load).await.unwrap();
        reads += 1;
        assert!(reads < 1_000_000, "never early");
    }
    assert_eq!(cache.stats().waits, 0, "no read waited for it");
}

#[tokio::test]
async fn a_failed_load_reaches_all_waiters_and_the_next_read_retries() {
    let cache = builder_without_timeouts().open("memory:").await.unwrap();
    let gate = Arc::new(Semaphore::new(0));
    let read = || {
        let (cache, gate) = (cache.clone(), Arc::clone(&gate));
        tokio::spawn(async move {
            let gate = &gate;
            let load = || async move {
                gate.acquire().await.unwrap().forget();
                Err::<Option<Row>, _>(Io::other("the database is down"))
            };
            cache.get_or_load("k", load).await
        })
    };
    let reads: Vec<_> = (0..20).map(|_| read()).collect();
    run_until_idle().await;
    gate.add_permits(1);
    let mut own = 0;
    for read in reads {
        let error = read.await.unwrap().unwrap_err();
        assert!(error.to_string().contains("the database is down"), "{error}");
        own += u32::from(matches!(error, CacheError::Loader(_)));
    }
    assert_eq!((own, cache.stats().loads), (1, 1));
    assert_eq!(text(cache.get_or_load("k", || async { Ok::<_, Io>(Some("back")) }).await), "back");
}

#[tokio::test]
async fn a_cancelled_reader_leaves_its_load_to_another() {
    let (cache, slow) = (builder_without_timeouts().open("memory:").await.unwrap(), GatedDatabase::new());
    let first = slow.read(&cache);
    slow.wait_for_loads(1).await;
    let second = slow.read(&cache);
    run_until_idle().await;
    first.abort();
    slow.wait_for_loads(2).await;
    slow.gate.add_permits(1);
    assert_eq!(text(second.await.unwrap()), "1");
}

#[tokio::test]
async fn a_late_value_is_rejected_although_the_tombstone_was_evicted() {
    let (cache, slow) =
        (builder_without_timeouts().max_reloads(0).open("memory:").await.unwrap(), GatedDatabase::new());
    let late = slow.read(&cache);
    slow.wait_for_loads(1).await;
    slow.value.store(2, Ordering::SeqCst);
    cache.invalidate("k").await.unwrap();
    cache.shared.store.evict("k");
    slow.gate.add_permits(1);
    late.await.unwrap().unwrap();
    assert_eq!(cache.stats().rejected, 1);
    slow.gate.add_permits(1);
    assert_eq!(text(slow.read(&cache).await.unwrap()), "2");
}

#[tokio::test]
async fn during_a_write_reads_bypass_the_cache_and_find_the_value_afterwards() {
    let (cache, slow) = (builder_without_timeouts().open("memory:").await.unwrap(), GatedDatabase::new());
    slow.gate.add_permits(100);
    slow.read(&cache).await.unwrap().unwrap();
    cache
        .write_with("k", Token(5), |_| async {
            assert_eq!(text(slow.read(&cache).await.unwrap()), "1");
            slow.value.store(2, Ordering::SeqCst);
            assert_eq!(text(slow.read(&cache).await.unwrap()), "2");
            Ok::<_, Io>(Row::from("2"))
        })
        .await
        .unwrap();
    let loads = cache.stats().loads;
    assert_eq!(text(slow.read(&cache).await.unwrap()), "2");
    assert_eq!((cache.stats().loads, cache.stats().bypasses), (loads, 2));
    // An older writer may not begin.
    let older = cache.write_with("k", Token(4), |_| async { panic!("it must not write") as Result<(), Io> }).await;
    assert!(matches!(older, Err(CacheError::Superseded { newest: Token(5), .. })), "{older:?}");
}

#[tokio::test]
async fn a_writer_that_dies_leaves_no_stale_value() {
    let builder = builder_without_timeouts().max_write_time(Duration::from_millis(50));
    let (cache, slow) = (builder.open("memory:").await.unwrap(), GatedDatabase::new());
    slow.gate.add_permits(1 << 40);
    slow.read(&cache).await.unwrap().unwrap();
    let (committed, value) = (Arc::new(Semaphore::new(0)), Arc::clone(&slow.value));
    let writer = tokio::spawn({
        let (cache, committed) = (cache.clone(), Arc::clone(&committed));
        async move {
            let commit = |_| async {
                value.store(2, Ordering::SeqCst);
                committed.add_permits(1);
                std::future::pending::<Result<(), Io>>().await
            };
            cache.write_with("k", Token(1), commit).await
        }
    });
    committed.acquire().await.unwrap().forget();
    writer.abort();
    // Until the mark expires, and afterwards.
    let mut hits = 0;
    while hits == 0 {
        assert_eq!(text(slow.read(&cache).await.unwrap()), "2");
        hits = cache.stats().hits;
    }
}

/// The reply to the writer's COMMIT is lost, and the database applies it later.
#[tokio::test]
async fn a_commit_applied_after_its_failure_leaves_no_stale_value() {
    // The mark is still set when the commit fails, or it is gone and a reader has stored the old
    // value.
    for gone in [false, true] {
        let (cache, slow) =
            (builder_without_timeouts().max_write_time(LONG_TTL).open("memory:").await.unwrap(), GatedDatabase::new());
        slow.gate.add_permits(1 << 40);
        let commit = |_| async {
            if gone {
                cache.shared.store.evict("k");
                assert_eq!(text(slow.read(&cache).await.unwrap()), "1");
            }
            Err::<(), _>(Io::other("no reply to COMMIT"))
        };
        let failed = cache.write_with("k", Token(1), commit).await;
        assert!(matches!(failed, Err(CacheError::Commit(_))), "{failed:?}");
        assert_eq!(text(slow.read(&cache).await.unwrap()), "1");
        slow.value.store(2, Ordering::SeqCst);
        assert_eq!(text(slow.read(&cache).await.unwrap()), "2");
        assert_eq!(cache.stats().hits, 0);
    }
}

/// A writer that fails late does not disturb a newer one, but the newer one's value is no longer
/// trusted.
#[tokio::test]
async fn a_commit_that_fails_after_a_newer_one_sets_no_mark() {
    let (cache, slow) = (builder_without_timeouts().open("memory:").await.unwrap(), GatedDatabase::new());
    slow.gate.add_permits(1 << 40);
    let newer = || cache.write_with("k", Token(2), |_| async { Ok::<_, Io>(Row::from("newer")) });
    let older = cache.write_with("k", Token(1), |_| async {
        newer().await.unwrap();
        Err::<(), _>(Io::other("refused"))
    });
    assert!(matches!(older.await, Err(CacheError::Commit(_))));
    slow.value.store(3, Ordering::SeqCst);
    for _ in 0..2 {
        assert_eq!(text(slow.read(&cache).await.unwrap()), "3");
    }
    assert_eq!((cache.stats().bypasses, cache.stats().hits), (0, 1));
}

#[tokio::test]
async fn a_row_older_than_a_known_one_is_rejected() {
    let cache = builder_without_timeouts().open("memory:").await.unwrap();
    cache.invalidate_below("k", 7).await.unwrap();
    let versions = AtomicU64::new(5);
    let load = || async { Ok::<_, Io>(Some(("row", versions.fetch_add(1, Ordering::SeqCst)))) };
    assert_eq!(text(cache.get_or_load("k", load).await), "row");
    assert_eq!(cache.stats().loads, 3, "5 and 6 were too old");
    cache.invalidate_below("k", 100).await.unwrap();
    let behind = cache.get_or_load("k", || async { Ok::<_, Io>(Some(("row", 9))) }).await;
    assert!(matches!(behind, Err(CacheError::LoaderBehind)), "{behind:?}");
}

#[tokio::test]
async fn not_found_is_rejected_after_an_announced_row() {
    let cache = builder_without_timeouts().open("memory:").await.unwrap();
    cache.invalidate_below("k", 1).await.unwrap();
    // The replica gets the row between the first load and the second.
    let loads = AtomicU64::new(0);
    let load = || async { Ok::<_, Io>((loads.fetch_add(1, Ordering::SeqCst) > 0).then_some(("row", 1))) };
    assert_eq!(text(cache.get_or_load("k", load).await), "row");
    // A deleted row is not an error, and is not in the cache.
    cache.invalidate_below("k", 2).await.unwrap();
    for _ in 0..2 {
        assert_eq!(cache.get_or_load("k", || async { Ok::<Option<Row>, Io>(None) }).await.unwrap(), None);
    }
    assert_eq!((cache.stats().loads, cache.stats().hits), (2 + 2 * 4, 0));
}

#[tokio::test]
async fn invalid_options_and_keys_are_refused_at_once() {
    let refused = |builder: Builder| async move { builder.open("memory:").await.map(drop).unwrap_err().to_string() };
    assert!(refused(builder_without_timeouts().jitter(2.0)).await.contains("jitter"));
    assert!(refused(builder_without_timeouts().load_lease(LONG_TTL * 2)).await.contains("max_load_time"));
    assert!(refused(builder_without_timeouts().ttl(Duration::ZERO)).await.contains("1 ms"));
    assert!(ReadThrough::open("file:").await.unwrap_err().to_string().contains("redis:"));
    let strict = ReadThrough::open("redis://127.0.0.1:1/?strict=1s").await.unwrap_err();
    assert!(strict.to_string().contains("for locks"), "{strict}");
    let cache = ReadThrough::open("memory:").await.unwrap();
    for key in [String::new(), "k".repeat(MAX_KEY + 1)] {
        assert!(matches!(cache.invalidate(&key).await, Err(CacheError::Invalid(_))));
    }
}

/// The metrics that a text names between these marks.
fn metrics_in(text: &'static str, mark: char) -> BTreeSet<&'static str> {
    text.split(mark).filter(|word| word.starts_with("leasehold_cache_")).collect()
}

#[test]
fn the_documented_metrics_are_reported() {
    let (documented, reported) = (metrics_in(include_str!("lib.rs"), '`'), metrics_in(include_str!("stats.rs"), '"'));
    assert_eq!(documented, reported);
    assert!(!reported.is_empty());
}
