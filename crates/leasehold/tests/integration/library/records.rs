//! Records of the memory engine: their versions, their time, and updates.

use std::time::Duration;

use leasehold::clock::ManualClock;
use leasehold::{ErrorKind, Locks};

/// The engine's time starts at the wall clock, and the clock that the builder sets advances it.
#[tokio::test]
async fn the_engine_time_follows_the_clock() {
    let manual_clock = ManualClock::new();
    let records = Locks::builder().clock(manual_clock.clock()).open("memory:").await.unwrap().records().unwrap();
    let start = records.get("a").await.unwrap().engine_time;
    assert!(start > Duration::from_secs(1_700_000_000), "{start:?}");
    let hour = Duration::from_secs(3600);
    manual_clock.advance(hour);
    let written = records.update("a", |_, now| Some(format!("{now:?}"))).await.unwrap();
    assert_eq!(written.engine_time, start + hour);
    assert_eq!(written.value, format!("{:?}", start + hour));
    manual_clock.advance(hour);
    assert_eq!(records.get("a").await.unwrap().engine_time, start + 2 * hour);
}

/// Versions rise even if records are written faster than the clock ticks, also across removals.
#[tokio::test]
async fn versions_rise_while_the_clock_is_stopped() {
    let manual_clock = ManualClock::new();
    let records = Locks::builder().clock(manual_clock.clock()).open("memory:").await.unwrap().records().unwrap();
    let mut last = 0;
    for _ in 0..100 {
        let written = records.compare_and_set("a", 0, "x").await.unwrap().unwrap();
        let changed = records.compare_and_set("a", written.version, "y").await.unwrap().unwrap();
        assert!(last < written.version && written.version < changed.version);
        last = changed.version;
        assert_eq!(records.compare_and_set("a", last, "").await.unwrap().unwrap().version, 0);
    }
}

#[tokio::test]
async fn an_update_may_leave_a_record_unchanged_or_remove_it() {
    let records = Locks::open("memory:").await.unwrap().records().unwrap();
    let written = records.update("a", |value, _| Some(format!("{value}x"))).await.unwrap();
    let kept = records.update("a", |_, _| None).await.unwrap();
    assert_eq!((kept.version, kept.value.as_str()), (written.version, "x"));
    let removed = records.update("a", |_, _| Some(String::new())).await.unwrap();
    assert_eq!((removed.version, removed.value.as_str()), (0, ""));
    assert!(records.list("").await.unwrap().is_empty());
}

#[tokio::test]
async fn closed_locks_read_and_write_no_records() {
    let locks = Locks::open("memory:").await.unwrap();
    let records = locks.records().unwrap();
    locks.close().await.unwrap();
    for error in [
        records.get("a").await.map(drop),
        records.compare_and_set("a", 0, "x").await.map(drop),
        records.list("").await.map(drop),
        records.update("a", |_, _| Some("x".to_owned())).await.map(drop),
    ] {
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Closed);
    }
}
