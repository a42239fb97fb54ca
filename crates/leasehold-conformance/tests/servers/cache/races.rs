//! Readers against writers.

use std::sync::Arc;
use std::time::Duration;

use leasehold_cache::Freshness;
use leasehold_cache::strategy::{InvalidateAfterCommit, Strategy};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::eventually;

use crate::cache::controls::{KeyedLoads, UncheckedLease, read_after_late_counter_store};
use crate::cache::fixture::{
    LONG_TTL, PausePoint, REPLY_TIMEOUT, TestTable, open_lock_protected, our_strategies, read, spawn_read, spawn_write,
    textbook_strategies, write,
};

/// A reader loads v1, a writer commits v2 and finishes, then the reader stores v1. Returns what the
/// next reader gets.
async fn read_after_late_set(strategy: &Arc<dyn Strategy>) -> String {
    let db = TestTable::new().await;
    let gate = db.pause_next_at(PausePoint::Loaded);
    let slow = spawn_read(strategy, &db);
    gate.wait_reached().await;
    write(strategy, &db, "v2").await;
    gate.open();
    slow.await.expect("a reader");
    read(strategy, &db).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_set_is_refused() {
    for strategy in our_strategies().await {
        assert_eq!(read_after_late_set(&strategy).await, "v2", "{}", strategy.name());
    }
    for strategy in textbook_strategies().await {
        assert_eq!(read_after_late_set(&strategy).await, "v1", "{} is the control", strategy.name());
    }
}

/// A writer has begun but not committed, a reader reads, then the writer commits. Returns what the
/// next reader gets.
async fn read_after_uncommitted_read(strategy: &Arc<dyn Strategy>) -> String {
    let db = TestTable::new().await;
    read(strategy, &db).await;
    let gate = db.pause_next_at(PausePoint::Committing);
    let writer = spawn_write(strategy, &db, "v2");
    gate.wait_reached().await;
    assert_eq!(read(strategy, &db).await, "v1", "the write is not committed yet");
    gate.open();
    writer.await.expect("a writer").expect("written");
    read(strategy, &db).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_that_was_read_before_the_commit_does_not_stay() {
    for strategy in our_strategies().await {
        assert_eq!(read_after_uncommitted_read(&strategy).await, "v2", "{}", strategy.name());
    }
    for strategy in textbook_strategies().await {
        let right = if strategy.name() == "delete-after" { "v2" } else { "v1" };
        assert_eq!(read_after_uncommitted_read(&strategy).await, right, "{} is the control", strategy.name());
    }
}

/// A paused reader's lock is force-released, and the store does not check its token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_lock_does_not_prevent_a_late_store() {
    let (db, locked) = (TestTable::new().await, open_lock_protected().await);
    let locks = locked.locks.clone();
    let strategy: Arc<dyn Strategy> = Arc::new(locked);
    let gate = db.pause_next_at(PausePoint::Loaded);
    let slow = spawn_read(&strategy, &db);
    gate.wait_reached().await;
    let view = locks.inspect("k").await.expect("a view");
    locks.force_release("k", view.holders[0].claim).await.expect("a force release");
    write(&strategy, &db, "v2").await;
    gate.open();
    slow.await.expect("a reader");
    assert_eq!(read(&strategy, &db).await, "v1", "the control: the late value was stored");
}

/// Two cache clients with the same keys, as two processes would have.
async fn cache_pair(mode: Freshness, lease: Duration) -> [Arc<dyn Strategy>; 2] {
    let url = crate::cache::fixture::redis_server().await.url();
    let prefix = format!("pair{}", leasehold::ClaimId::random().bits() as u32);
    let open = async || {
        let builder = leasehold_cache::ReadThrough::builder()
            .ttl(LONG_TTL)
            .max_load_time(LONG_TTL)
            .early_reload(0.0)
            .stale_for(LONG_TTL);
        let cache = builder.freshness(mode).load_lease(lease).timeout(REPLY_TIMEOUT);
        Arc::new(InvalidateAfterCommit(cache.open(&format!("{url}?prefix={prefix}:")).await.expect("a cache")))
    };
    [open().await, open().await]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_past_its_lease_is_taken_over_and_its_caller_still_served() {
    for mode in [Freshness::Strong, Freshness::ServeStale] {
        let (db, [slow, quick]) = (TestTable::new().await, cache_pair(mode, Duration::from_millis(100)).await);
        let gate = db.pause_next_at(PausePoint::Loaded);
        let late = spawn_read(&slow, &db);
        gate.wait_reached().await;
        // The second reader waits until the lease expires, then takes over the load.
        assert_eq!(read(&quick, &db).await, "v1");
        gate.open();
        assert_eq!(late.await.expect("a reader"), "v1", "no write happened, so the loaded value is current");
        // A load outlives its lease, and a writer commits before it ends.
        write(&quick, &db, "v2").await;
        let gate = db.pause_next_at(PausePoint::Loaded);
        let late = spawn_read(&slow, &db);
        gate.wait_reached().await;
        write(&quick, &db, "v3").await;
        assert_eq!(read(&quick, &db).await, "v3", "{mode:?}");
        gate.open();
        let (late, next) = (late.await.expect("a reader"), read(&slow, &db).await);
        assert_eq!(
            (late.as_str(), next.as_str()),
            (if mode == Freshness::Strong { "v3" } else { "v2" }, "v3"),
            "{mode:?}"
        );
    }
}

/// A loader pauses past its lease, another takes over, and a writer commits v2; then the first
/// loader resumes. Returns what the first loader's caller gets and what the next reader gets.
async fn run_load_past_its_lease([slow, quick]: &[Arc<dyn Strategy>; 2]) -> (String, String) {
    let db = TestTable::new().await;
    let gate = db.pause_next_at(PausePoint::Loaded);
    let late = spawn_read(slow, &db);
    gate.wait_reached().await;
    assert_eq!(read(quick, &db).await, "v1", "the reader waits until the lease expires");
    write(quick, &db, "v2").await;
    assert_eq!(read(quick, &db).await, "v2");
    gate.open();
    (late.await.expect("a reader"), read(slow, &db).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_loaded_past_its_lease_is_refused_after_a_write() {
    let texts = |(late, next): (String, String)| [late, next];
    for (mode, late) in [(Freshness::Strong, "v2"), (Freshness::ServeStale, "v1")] {
        let ours = cache_pair(mode, Duration::from_millis(100)).await;
        assert_eq!(texts(run_load_past_its_lease(&ours).await), [late, "v2"], "{mode:?}");
    }
    let naive: Arc<dyn Strategy> = Arc::new(UncheckedLease::new());
    let control = [Arc::clone(&naive), naive];
    assert_eq!(texts(run_load_past_its_lease(&control).await), ["v1", "v1"], "the control");
}

/// The control shares loads by key alone, so a reader joins a load that began before an
/// invalidation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_that_began_before_an_invalidation_is_not_joined_after_it() {
    for strategy in our_strategies().await {
        let db = TestTable::new().await;
        let gate = db.pause_next_at(PausePoint::Loaded);
        let early = spawn_read(&strategy, &db);
        gate.wait_reached().await;
        write(&strategy, &db, "v2").await;
        // The first load is still in progress.
        assert_eq!(read(&strategy, &db).await, "v2", "{}", strategy.name());
        gate.open();
        assert_eq!(
            early.await.expect("a reader"),
            "v2",
            "{}: the load began before the write, so it is repeated",
            strategy.name()
        );
    }
    let (db, loads) = (TestTable::new().await, KeyedLoads::default());
    let gate = db.pause_next_at(PausePoint::Loaded);
    let early = tokio::spawn(loads.clone().read(db.clone()));
    gate.wait_reached().await;
    db.write_directly("v2").await;
    let late = tokio::spawn(loads.clone().read(db.clone()));
    // The second reader has joined the load before it resumes.
    eventually(TEST_TIMEOUT, || async { if loads.waiter_count() == 2 { Ok(()) } else { Err(loads.waiter_count()) } })
        .await;
    gate.open();
    assert_eq!([early.await.expect("one"), late.await.expect("two")], ["v1", "v1"], "the control");
    // A reader that comes after the load has ended starts a new one.
    assert_eq!((loads.waiter_count(), loads.read(db).await.as_str()), (0, "v2"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_value_is_rejected_though_the_tombstone_was_evicted() {
    let server = leasehold_testbed::redis::start().await.expect("a server");
    let (db, cache) = (
        TestTable::new().await,
        crate::cache::fixture::open_cache_at(&server.url(), |builder| builder.max_reloads(0)).await,
    );
    let ours: Arc<dyn Strategy> = Arc::new(InvalidateAfterCommit(cache.clone()));
    let gate = db.pause_next_at(PausePoint::Loaded);
    let late = spawn_read(&ours, &db);
    gate.wait_reached().await;
    write(&ours, &db, "v2").await;
    let mut raw = leasehold_testbed::redis::RespClient::connect(server.addr()).await.expect("a connection");
    raw.command(&["FLUSHDB"]).await.expect("an answer");
    gate.open();
    late.await.expect("a reader");
    assert_eq!((read(&ours, &db).await.as_str(), cache.stats().rejected), ("v2", 1));
    // Without the eviction the control is right.
    assert_eq!(read_after_late_counter_store(false).await, "v2");
    assert_eq!(read_after_late_counter_store(true).await, "v1", "the control");
}

/// A Redis that has reached maxmemory evicts keys: readers load again, and get no stale value.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn evictions_by_a_full_server_cost_only_loads() {
    const ROUNDS: u32 = if cfg!(feature = "nightly") { 5 } else { 3 };
    let small = ["--maxmemory", "3mb", "--maxmemory-policy", "allkeys-random"];
    let server = leasehold_testbed::redis::Redis::new().args(&small).start().await.expect("a server");
    let cache = crate::cache::fixture::open_cache_at(&server.url(), |builder| builder).await;
    let (db, large) = (TestTable::new().await, "x".repeat(20_000));
    let ours: Arc<dyn Strategy> = Arc::new(InvalidateAfterCommit(cache.clone()));
    for round in 2..=ROUNDS {
        let gate = db.pause_next_at(PausePoint::Loaded);
        let late = spawn_read(&ours, &db);
        gate.wait_reached().await;
        let value = format!("v{round}");
        write(&ours, &db, &value).await;
        // Enough to evict every other key, whichever keys Redis chooses.
        for other in 0..400 {
            let key = format!("other {round} {other}");
            cache.get_or_load(&key, || async { Ok::<_, std::io::Error>(Some(large.clone())) }).await.expect("a value");
        }
        gate.open();
        late.await.expect("a reader");
        assert_eq!(read(&ours, &db).await, value);
        // The next round begins with a miss.
        cache.invalidate("k").await.expect("invalidated");
    }
    let stats = async || {
        let mut raw = leasehold_testbed::redis::RespClient::connect(server.addr()).await.expect("a connection");
        match raw.command(&["INFO", "stats"]).await.expect("an answer") {
            leasehold_testbed::redis::Reply::Bulk(text) => text,
            other => panic!("{other:?}"),
        }
    };
    assert!(!stats().await.contains("evicted_keys:0\r"), "no key was evicted, so the test shows nothing");
}
