//! Locks and records that another version stored in another format.

use leasehold::clock::ManualClock;
use leasehold::{ErrorKind, LostReason};
use leasehold_conformance::formats::{assert_lock_format_refused, assert_record_format_refused};
use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT};
use leasehold_testbed::{Server, eventually};
use tokio::time::timeout;

use crate::redis_faults::fixture::Fixture;

/// The stored value of the lock, or of the record, with another format number.
async fn set_format(fixture: &Fixture<&'static Server>, key: &str, is_lock: bool) {
    let (get, set) = if is_lock { ("HGET", "HSET") } else { ("GET", "SET") };
    let field = if is_lock { ", 'm'" } else { "" };
    let script = format!(
        "local stored = redis.call('{get}', KEYS[1]{field})
        redis.call('{set}', KEYS[1]{field}, '2' .. string.sub(stored, 2))
        return string.sub(stored, 1, 1)"
    );
    assert_eq!(fixture.command_text(&["EVAL", &script, "1", key]).await, "1");
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

/// Neither a byte that is no text nor a state without a letter is a free lock. The error leaves the
/// client's connection as it is: its other lock stays held, on the same connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_that_no_version_wrote_is_an_error_and_keeps_the_connection() {
    let fixture = Fixture::new().await;
    let locks = fixture.locks(LONG_TTL).await;
    let other = locks.mutex("b").lock().await.expect("the lock");
    let connections = async || fixture.command_text(&["INFO", "stats"]).await;
    let accepted = |stats: &str| {
        let line = stats.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
        line.expect("a count").trim().parse::<u64>().expect("a number")
    };
    let before = accepted(&connections().await);
    for state in ["string.char(255) .. 'S'", "'1'", "'1S'", "'1Z0000'", "''"] {
        let script = format!("return redis.call('HSET', KEYS[1], 'm', {state})");
        fixture.command(&["EVAL", &script, "1", &fixture.key("a")]).await;
        let error = locks.mutex("a").try_lock().await.expect_err("no such state");
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Corrupt, false), "{state}: {error}");
    }
    let opened_by_commands = accepted(&connections().await) - before;
    assert!(other.is_held());
    // Each command of the test has a connection of its own.
    assert_eq!(opened_by_commands, 6, "the client has opened no connection");
}

/// A lock, its contender or its group may be damaged in many ways: the client's other lease is
/// renewed by the same requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_lock_costs_no_other_lease() {
    let fixture = Fixture::shared().await;
    for (number, state) in
        ["'1Q'", "'1S'", "'12345'", "string.sub(redis.call('HGET', KEYS[1], 'm'), 1, 70)"].into_iter().enumerate()
    {
        let clock = ManualClock::running();
        let locks = fixture.locks_with_clock(LONG_TTL, clock.clock()).await;
        let (name, damaged) = (format!("a{number}"), format!("b{number}"));
        let other = locks.mutex(&name).lock().await.expect("the lock");
        let guard = locks.mutex(&damaged).lock().await.expect("the lock");
        let script = format!("return redis.call('HSET', KEYS[1], 'm', {state})");
        fixture.command(&["EVAL", &script, "1", &fixture.key(&damaged)]).await;
        let before = other.deadline();
        clock.advance(LONG_TTL * 2 / 5);
        eventually(TEST_TIMEOUT, || async {
            if other.deadline() > before { Ok(()) } else { Err("not renewed so far") }
        })
        .await;
        assert_eq!(timeout(TEST_TIMEOUT, guard.lost()).await.expect("a loss"), LostReason::Revoked, "{state}");
    }
}
