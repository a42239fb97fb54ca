//! Records in Redis: how they are stored, and what happens when other programs change them.

use leasehold::engine::Record;
use leasehold::{ErrorKind, Records};
use leasehold_internals::redis::wire::StoredRecord;
use leasehold_internals::redis::{Rest, Stored};
use leasehold_testbed::redis::Reply;

use crate::redis_deployments::deployment::{LONG_TTL, raw_command};
use crate::redis_faults::fixture::Fixture;

async fn compare_and_set(records: &Records, over: u64, value: &str) -> Record {
    records.compare_and_set("a", over, value).await.expect("an answer").expect("the version is unchanged")
}

/// A record has no expiry; a removed one keeps its version for a day.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_persists_and_a_removed_one_expires_after_a_day() {
    let fixture = Fixture::shared().await;
    let (records, key) = (fixture.locks(LONG_TTL).await.records().expect("records"), &*fixture.record_key("a"));
    let ttl = async || match raw_command(fixture.server.addr(), &["TTL", key]).await {
        Reply::Integer(seconds) => seconds,
        other => panic!("{other:?}"),
    };
    let made = compare_and_set(&records, 0, "x").await;
    assert_eq!(ttl().await, -1, "no expiry");
    compare_and_set(&records, made.version, "").await;
    let left = ttl().await;
    assert!((3600..=86_400).contains(&left), "{left}");
    let again = compare_and_set(&records, 0, "y").await;
    assert!(again.version > made.version);
    assert_eq!(ttl().await, -1, "the new record has no expiry");
}

/// The record was written or removed while the server's clock was an hour ahead: versions continue
/// from there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versions_rise_while_the_clock_is_behind() {
    let fixture = Fixture::shared().await;
    let (records, key) = (fixture.locks(LONG_TTL).await.records().expect("records"), &*fixture.record_key("a"));
    let now = records.get("a").await.expect("a record").engine_time;
    let ahead = u64::try_from(now.as_micros()).expect("a time") + 3_600_000_000;
    for value in ["", "x"] {
        let left = StoredRecord { version: ahead, value: Rest(value.into()) }.write();
        let set: [&[u8]; 3] = [b"SET", key.as_bytes(), &left];
        assert_eq!(raw_command(fixture.server.addr(), &set).await, Reply::Simple("OK".to_owned()));
        let over = records.get("a").await.expect("a record").version;
        assert_eq!(over, if value == "x" { ahead } else { 0 });
        assert_eq!(compare_and_set(&records, over, "y").await.version, ahead + 1);
    }
}

/// A record deleted by hand is gone, and a client that read it before gets a conflict.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_deleted_by_hand_never_repeats_a_version() {
    let fixture = Fixture::shared().await;
    let (records, key) = (fixture.locks(LONG_TTL).await.records().expect("records"), &*fixture.record_key("a"));
    let made = compare_and_set(&records, 0, "x").await;
    assert_eq!(raw_command(fixture.server.addr(), &["DEL", key]).await, Reply::Integer(1));
    assert_eq!(records.get("a").await.expect("a record").version, 0);
    assert!(records.compare_and_set("a", made.version, "late").await.expect("an answer").is_none());
    assert!(compare_and_set(&records, 0, "x").await.version > made.version);
}

/// Another program's key causes an error and is not overwritten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_key_is_an_error_and_is_not_overwritten() {
    let fixture = Fixture::shared().await;
    let (records, key) = (fixture.locks(LONG_TTL).await.records().expect("records"), &*fixture.record_key("a"));
    for command in [["SET", key, "short"], ["SET", key, "no number, but long enough"]] {
        raw_command(fixture.server.addr(), &command).await;
        let error = records.get("a").await.expect_err("not a record");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
    raw_command(fixture.server.addr(), &["DEL", key]).await;
    raw_command(fixture.server.addr(), &["HSET", key, "field", "value"]).await;
    let errors = [records.get("a").await.map(drop), records.compare_and_set("a", 0, "x").await.map(drop)];
    for error in errors {
        let error = error.expect_err("not a record");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
    assert_eq!(raw_command(fixture.server.addr(), &["HLEN", key]).await, Reply::Integer(1));
}
