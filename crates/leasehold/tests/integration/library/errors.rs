//! Errors state what happened and where, whether to retry, and whether the effect is known.

use std::time::Duration;

use leasehold::{Effect, Error, ErrorKind, Locks};

use crate::library::renewal::locks_with_spy;
use crate::library::spy::{Call, ScriptedReply};
use crate::library::time::{TTL, advance_in_steps, locks_on_manual_clock, run_until_idle};

/// What a program can query of an error: its kind, whether to retry, its effect, engine and lock.
fn facts(error: &Error) -> (ErrorKind, bool, Effect, Option<&'static str>, Option<&str>) {
    (error.kind(), error.is_retryable(), error.effect(), error.engine(), error.name().map(|name| name.as_str()))
}

#[tokio::test]
async fn a_timeout_is_retryable_and_names_engine_and_lock() {
    let (_manual_clock, locks) = locks_on_manual_clock().await;
    let _guard = locks.mutex("a").lock().await.unwrap();
    let error = locks.mutex("a").timeout(Duration::ZERO).lock().await.unwrap_err();
    assert_eq!(facts(&error), (ErrorKind::Timeout, true, Effect::None, Some("memory"), Some("a")));
}

#[tokio::test]
async fn a_conflict_is_final_and_names_engine_and_lock() {
    let (_manual_clock, locks) = locks_on_manual_clock().await;
    let _guard = locks.semaphore("a", 3).acquire(1).await.unwrap();
    let error = locks.semaphore("a", 4).acquire(1).await.unwrap_err();
    assert_eq!(facts(&error), (ErrorKind::Conflict, false, Effect::None, Some("memory"), Some("a")));
}

#[tokio::test]
async fn invalid_options_are_final_and_make_no_engine_call() {
    let (_manual_clock, spy, locks) = locks_with_spy().await;
    for error in [
        locks.mutex("a").ttl(Duration::from_millis(1)).lock().await.unwrap_err(),
        locks.mutex("a").ttl(Duration::MAX).lock().await.unwrap_err(),
        locks.mutex("a").max_hold(Duration::ZERO).lock().await.unwrap_err(),
        locks.mutex("a").describe("x".repeat(300)).lock().await.unwrap_err(),
        locks.semaphore("a", 1).acquire(2).await.unwrap_err(),
    ] {
        let expected = (ErrorKind::InvalidOption, false, Effect::None, Some("a"));
        let (kind, is_retryable, effect, _, name) = facts(&error);
        assert_eq!((kind, is_retryable, effect, name), expected, "{error}");
    }
    assert_eq!(spy.count(Call::Attempt), 0);
}

#[tokio::test]
async fn an_invalid_name_is_refused_everywhere() {
    let (_manual_clock, locks) = locks_on_manual_clock().await;
    let long = "x".repeat(513);
    for name in ["", "a\0b", &long] {
        for error in [
            locks.mutex(name).lock().await.unwrap_err(),
            locks.rwlock(name).try_read().await.unwrap_err(),
            locks.semaphore(name, 1).acquire(1).await.unwrap_err(),
            locks.inspect(name).await.unwrap_err(),
            locks.force_release(name, leasehold::ClaimId::random()).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidName, "{error}");
        }
    }
}

#[tokio::test]
async fn an_engine_that_does_not_respond_for_a_ttl_is_unavailable_with_an_unknown_effect() {
    let (manual_clock, spy, locks) = locks_with_spy().await;
    spy.reply_always(Call::Attempt, ScriptedReply::NoResponse);
    let request = tokio::spawn({
        let mutex = locks.mutex("a");
        async move { mutex.lock().await }
    });
    advance_in_steps(&manual_clock, TTL - Duration::from_secs(1), Duration::from_millis(200)).await;
    assert!(!request.is_finished(), "it keeps trying for a TTL");
    advance_in_steps(&manual_clock, TTL, Duration::from_millis(200)).await;
    let error = request.await.unwrap().unwrap_err();
    assert_eq!(facts(&error), (ErrorKind::Unavailable, true, Effect::Unknown, Some("memory"), Some("a")));
    assert!(spy.count(Call::Attempt) > 2);
}

#[tokio::test]
async fn an_error_that_is_not_retryable_is_returned_at_once_and_needs_no_release() {
    let (_manual_clock, spy, locks) = locks_with_spy().await;
    spy.reply_next(Call::Attempt, ScriptedReply::Fail(false));
    let error = locks.mutex("a").lock().await.unwrap_err();
    assert_eq!(facts(&error), (ErrorKind::Unavailable, false, Effect::None, Some("memory"), Some("a")));
    run_until_idle().await;
    assert_eq!((spy.count(Call::Attempt), spy.count(Call::Release)), (1, 0));
}

#[tokio::test]
async fn a_try_lock_with_an_unknown_effect_is_released_and_not_repeated() {
    let (_manual_clock, spy, locks) = locks_with_spy().await;
    spy.reply_next(Call::Attempt, ScriptedReply::LoseReply);
    let error = locks.mutex("a").try_lock().await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
    run_until_idle().await;
    assert_eq!((spy.count(Call::Attempt), spy.count(Call::Release)), (1, 1));
    assert!(locks.inspect("a").await.unwrap().holders.is_empty());
}

#[tokio::test]
async fn a_failed_inspection_names_engine_and_lock() {
    let (_manual_clock, spy, locks) = locks_with_spy().await;
    spy.reply_next(Call::Inspect, ScriptedReply::Fail(true));
    let error = locks.inspect("a").await.unwrap_err();
    assert_eq!(facts(&error), (ErrorKind::Unavailable, true, Effect::None, Some("memory"), Some("a")));
}

/// The error of every call names the engine's URL, and the lock or the record.
#[tokio::test]
async fn every_call_names_engine_and_lock() {
    let (manual_clock, spy, locks) = locks_with_spy().await;
    spy.reply_next(Call::Attempt, ScriptedReply::Fail(false));
    let failed = locks.mutex("a").try_lock().await.unwrap_err();
    let guard = locks.mutex("a").max_hold(Duration::from_secs(1)).lock().await.unwrap();
    let late = locks.mutex("a").timeout(Duration::ZERO).lock().await.unwrap_err();
    spy.reply_next(Call::Inspect, ScriptedReply::Fail(false));
    let unseen = locks.inspect("a").await.unwrap_err();
    manual_clock.advance(Duration::from_secs(2));
    let lost = guard.protect(async {}).await.unwrap_err();
    drop(guard);
    let records = locks.records().unwrap();
    let record = records.compare_and_set("a", 0, "x".repeat(100_000)).await.unwrap_err();
    let closing = locks.clone();
    closing.close().await.unwrap();
    let closed = locks.mutex("a").lock().await.unwrap_err();
    for (error, what) in
        [(failed, "lock"), (late, "lock"), (unseen, "lock"), (lost, "lock"), (record, "record"), (closed, "lock")]
    {
        let message = error.to_string();
        assert!(message.starts_with(&format!("{what} \"a\" on spy: ")), "{message}");
        assert_eq!(error.url(), Some("spy:"), "{message}");
    }
}

#[tokio::test]
async fn an_error_message_has_its_location_and_its_cause() {
    let error = Error::new(ErrorKind::Denied, "may not write").at_engine("file").caused_by("permission denied");
    let error = error.about_lock(&leasehold::LockName::new("a").unwrap());
    assert_eq!(error.to_string(), "lock \"a\" on file: may not write: permission denied");
    assert_eq!(error.cause().map(|cause| cause.to_string()).as_deref(), Some("permission denied"));
    assert!(std::error::Error::source(&error).is_none(), "the text has the cause already");
    for (url, message, text) in [
        ("redis://u:***@db1:6379/0?x=1", "no memory left", "redis://u:***@db1:6379/0?x=1: no memory left"),
        ("redis://u:***@db1:6379/0", "db1:6379 cannot be reached", "redis: db1:6379 cannot be reached"),
        (
            "redis+cluster://db1,db2",
            "db1:6379 cannot be reached",
            "redis+cluster://db1,db2: db1:6379 cannot be reached",
        ),
        // A part of a longer word does not count as the address.
        ("postgres://a/shop", "has no room", "postgres://a/shop: has no room"),
        ("postgres://db/shop", "a db-like name", "postgres://db/shop: a db-like name"),
        ("postgres://db/shop", "nothing came from db.", "postgres: nothing came from db."),
        ("file:///var/lib/locks", "cannot write /var/lib/locks/x", "file: cannot write /var/lib/locks/x"),
        (
            "file:///var/lib/locks",
            "cannot write /var/lib/locks2",
            "file:///var/lib/locks: cannot write /var/lib/locks2",
        ),
        ("memory:", "closed", "memory: closed"),
    ] {
        let error = Error::new(ErrorKind::Full, message).at_url(url).at_url("redis://second");
        assert_eq!((error.to_string().as_str(), error.url()), (text, Some(url)));
    }
    let opened = Locks::open("nothing").await.unwrap_err();
    assert!(opened.engine().is_none() && opened.name().is_none());
}
