//! Locks and records that another version stored in another format.

use leasehold::LostReason;
use leasehold::clock::ManualClock;
use leasehold_conformance::formats::{assert_lock_format_refused, assert_record_format_refused};
use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT};
use leasehold_testbed::Server;
use leasehold_testbed::redis::Reply;
use tokio::time::timeout;

use crate::redis_faults::fixture::Fixture;

/// The stored value of the lock, or of the record, with another format number.
async fn set_format(fixture: &Fixture<&'static Server>, key: &str, is_lock: bool) {
    let command = if is_lock { ["HGET", key, "m"].to_vec() } else { ["GET", key].to_vec() };
    let Reply::Bulk(stored) = fixture.command(&command).await else { panic!("no value") };
    assert!(stored.starts_with('1'), "{stored}");
    let newer = format!("2{}", &stored[1..]);
    let command = if is_lock { ["HSET", key, "m", &newer].to_vec() } else { ["SET", key, &newer].to_vec() };
    fixture.command(&command).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_or_record_in_another_format_is_an_error() {
    let fixture = Fixture::shared().await;
    let locks = fixture.locks(LONG_TTL).await;
    let _ = locks.mutex("a").lock().await.expect("the lock").release().await.expect("a release");
    let records = locks.records().expect("records");
    assert!(records.compare_and_set("a", 0, "x").await.expect("an answer").is_some());
    set_format(&fixture, &fixture.key("a"), true).await;
    set_format(&fixture, &fixture.record_key("a"), false).await;
    assert_lock_format_refused(&locks).await;
    assert_record_format_refused(&locks).await;
    let listed = locks.list("").await.expect("a list");
    assert!(listed.iter().any(|view| view.damage.is_some()), "{listed:?}");
}

/// The other locks of the same client are renewed all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_lock_that_gets_another_format_is_lost_alone() {
    let fixture = Fixture::shared().await;
    let clock = ManualClock::running();
    let locks = fixture.locks_with_clock(LONG_TTL, clock.clock()).await;
    let other = locks.mutex("b").lock().await.expect("the lock");
    let guard = locks.mutex("a").lock().await.expect("the lock");
    set_format(&fixture, &fixture.key("a"), true).await;
    clock.advance(LONG_TTL / 3);
    assert_eq!(timeout(TEST_TIMEOUT, guard.lost()).await.expect("a loss"), LostReason::Revoked);
    assert!(other.is_held());
}
