//! What every engine promises of data in a format that it does not read.

use leasehold::{Error, ErrorKind, Locks};

/// Asserts that lock `a`, which is stored in format 2, is neither granted nor shown as free.
pub async fn assert_lock_format_refused(locks: &Locks) {
    assert_names_both(&locks.mutex("a").try_lock().await.expect_err("the lock is in another format"));
    let leader = locks.election("a").leader().await;
    assert!(leader.is_err(), "there may be a leader: {leader:?}");
    let damage = match locks.inspect("a").await {
        Ok(view) => view.damage.expect("damage"),
        Err(error) => error.to_string(),
    };
    assert!(damage.contains("format 2") && damage.contains("format 1"), "{damage}");
}

/// Asserts that record `a`, which is stored in format 2, is neither read nor written over.
pub async fn assert_record_format_refused(locks: &Locks) {
    let records = locks.records().expect("records");
    assert_names_both(&records.get("a").await.expect_err("the record is in another format"));
    let written = records.compare_and_set("a", 0, "mine").await;
    assert!(!matches!(written, Ok(Some(_))), "{written:?}");
}

fn assert_names_both(error: &Error) {
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::UnknownFormat, false), "{error}");
    let text = error.to_string();
    assert!(text.contains("format 2") && text.contains("format 1"), "{text}");
}
