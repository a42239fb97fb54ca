//! Records: a read returns the last write, a late write never succeeds, and all clients see one
//! clock.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use leasehold::clock::ManualClock;
use leasehold::engine::{Engine, Record};
use leasehold::{ErrorKind, Locks, MAX_RECORD, Records};
use leasehold_testbed::eventually;

use super::lock_names::confusable_names;
use crate::flaky::{Fault, FlakyEngine, Method};
use crate::short_leases::repetitions;
use crate::test_context::{LONG_TTL, TEST_TIMEOUT, TestContext};

async fn open_records(context: &TestContext) -> Records {
    records_of(&context.open_locks().await)
}

fn records_of(locks: &Locks) -> Records {
    locks.records().expect("an engine that keeps records")
}

async fn get(records: &Records, name: &str) -> Record {
    records.get(name).await.expect("a read")
}

/// A write that must succeed.
async fn compare_and_set(records: &Records, name: &str, expected_version: u64, value: &str) -> Record {
    let written = records.compare_and_set(name, expected_version, value).await.expect("a write");
    written.unwrap_or_else(|| panic!("{name:?} over {expected_version} was refused"))
}

/// One client writes, another reads; the version is the writer's.
pub async fn a_written_record_is_read_back(context: &TestContext) {
    let (one, other) = (open_records(context).await, open_records(context).await);
    let name = context.unique_name("record");
    let mut last = 0;
    for value in ["first", "second", "second"] {
        let written = compare_and_set(&one, &name, last, value).await;
        assert_eq!(written.value, value);
        assert!(written.version > last, "versions rise: {written:?} after {last}");
        let found = get(&other, &name).await;
        assert_eq!((found.version, found.value.as_str()), (written.version, value));
        last = written.version;
    }
}

/// A missing record has version zero and no value, and a read does not create it.
pub async fn an_absent_record_has_version_zero(context: &TestContext) {
    let records = open_records(context).await;
    let name = context.unique_name("absent");
    for _ in 0..2 {
        let found = get(&records, &name).await;
        assert_eq!((found.version, found.value.as_str()), (0, ""));
    }
    assert!(records.compare_and_set(&name, 7, "x").await.expect("an answer").is_none(), "there is no version 7");
    let nothing = compare_and_set(&records, &name, 0, "").await;
    assert_eq!((nothing.version, nothing.value.as_str()), (0, ""), "removing a missing record is no error");
    assert_eq!(records.list(&name).await.expect("a list"), []);
}

/// A write over an old or unknown version is rejected.
pub async fn a_write_over_an_old_version_is_refused(context: &TestContext) {
    let (one, late) = (open_records(context).await, open_records(context).await);
    let name = context.unique_name("late");
    let first = compare_and_set(&one, &name, 0, "first").await;
    let second = compare_and_set(&one, &name, first.version, "second").await;
    for over in [0, first.version, first.version - 1, second.version + 1, u64::from(u32::MAX), i64::MAX as u64] {
        for value in ["late", ""] {
            let answer = late.compare_and_set(&name, over, value).await.expect("an answer");
            assert!(answer.is_none(), "over {over}, although the version is {}", second.version);
        }
    }
    let found = get(&late, &name).await;
    assert_eq!((found.version, found.value.as_str()), (second.version, "second"));
}

/// Records are removed and recreated by any client: no version is reused, and a write over an old
/// version fails.
pub async fn versions_are_never_reused(context: &TestContext) {
    let (one, other) = (open_records(context).await, open_records(context).await);
    let name = context.unique_name("again");
    let mut seen = Vec::new();
    for round in 0..repetitions(6, 20) {
        let client = if round % 2 == 0 { &one } else { &other };
        let made = compare_and_set(client, &name, 0, "the same").await;
        assert!(seen.iter().all(|version| *version < made.version), "{made:?} after {seen:?}");
        for old in &seen {
            assert!(one.compare_and_set(&name, *old, "late").await.expect("an answer").is_none(), "over {old}");
        }
        seen.push(made.version);
        let removed = compare_and_set(client, &name, made.version, "").await;
        assert_eq!((removed.version, removed.value.as_str()), (0, ""));
        assert_eq!(get(&other, &name).await.version, 0);
        assert!(
            one.compare_and_set(&name, made.version, "late").await.expect("an answer").is_none(),
            "over a removed version"
        );
    }
}

/// Of many concurrent writes over the same version, exactly one succeeds.
pub async fn one_of_concurrent_writers_succeeds(context: &TestContext) {
    let clients = [open_records(context).await, open_records(context).await];
    let name = context.unique_name("race");
    let mut over = 0;
    for round in 0..repetitions(5, 20) {
        let writers = (0..8).map(|writer| {
            let (client, name, value) = (&clients[writer % 2], &name, format!("{round} {writer}"));
            async move { client.compare_and_set(name, over, value).await.expect("an answer") }
        });
        let written: Vec<Record> = join_all(writers).await.into_iter().flatten().collect();
        assert_eq!(written.len(), 1, "{written:?}");
        let found = get(&clients[0], &name).await;
        assert_eq!((found.version, &found.value), (written[0].version, &written[0].value));
        over = found.version;
    }
}

/// Eight clients increment many times each: no update is lost.
pub async fn every_update_counts_once(context: &TestContext) {
    let name = context.unique_name("count");
    let mut clients = Vec::new();
    for _ in 0..8 {
        let (records, name) = (open_records(context).await, name.clone());
        clients.push(tokio::spawn(async move {
            let add = |value: &str, _: Duration| Some((value.parse().unwrap_or(0) + 1).to_string());
            for _ in 0..repetitions(8, 50) {
                let _ = records.update(&name, add).await.expect("an update");
            }
        }));
    }
    for client in clients {
        client.await.expect("a client");
    }
    assert_eq!(get(&open_records(context).await, &name).await.value, (8 * repetitions(8, 50)).to_string());
}

/// More than a hundred confusable names have a record each.
pub async fn names_do_not_collide(context: &TestContext) {
    let (one, other) = (open_records(context).await, open_records(context).await);
    let names = confusable_names();
    let mut versions = Vec::new();
    for name in &names {
        versions.push(compare_and_set(&one, name, 0, &format!("of {name}")).await.version);
    }
    for name in &names {
        assert_eq!(get(&other, name).await.value, format!("of {name}"));
    }
    let mut sorted = names.clone();
    sorted.sort();
    let listed: Vec<String> = other.list("").await.expect("a list").iter().map(ToString::to_string).collect();
    assert_eq!(listed, sorted);
    for (name, version) in names.iter().zip(versions) {
        let _ = compare_and_set(&other, name, version, "").await;
    }
    assert_eq!(one.list("").await.expect("a list"), []);
}

/// A record and a lock of the same name are independent.
pub async fn a_record_and_a_lock_of_one_name_are_independent(context: &TestContext) {
    let locks = context.open_locks().await;
    let records = records_of(&locks);
    for name in ["a", "a/b", "a:b", "{a}", "records", "lock", "..", ".new", ".floor"] {
        let made = compare_and_set(&records, name, 0, "kept").await;
        let guard = locks.mutex(name).try_lock().await.expect("an answer").expect("a record holds no lock");
        assert_eq!(get(&records, name).await.version, made.version, "{name:?}: a lock writes no record");
        let again = compare_and_set(&records, name, made.version, "kept while locked").await;
        assert!(
            context.open_locks().await.mutex(name).try_lock().await.expect("an answer").is_none(),
            "{name:?} is held"
        );
        let _ = guard.release().await.expect("a release");
        assert_eq!(get(&records, name).await.version, again.version, "{name:?}: a release removes no record");
    }
    if context.capabilities().inspection {
        assert_eq!(locks.list("").await.expect("a list"), [], "records are not locks");
    }
}

/// Names that start with a literal prefix are listed in order, without removed ones.
pub async fn names_are_listed_by_prefix_in_order(context: &TestContext) {
    let records = open_records(context).await;
    let names = ["b", "a%", "a", "a_c", "a*", "a/b", "abc", "a\\b", "\u{e9}", "A"];
    for name in names {
        let _ = compare_and_set(&records, name, 0, "x").await;
    }
    let list = async |prefix: &str| -> Vec<String> {
        records.list(prefix).await.expect("a list").iter().map(ToString::to_string).collect()
    };
    for prefix in ["", "a", "a_", "a%", "a*", "a\\", "A", "\u{e9}", "ab", "z", "?", "[ab]"] {
        let mut expected: Vec<&str> = names.into_iter().filter(|name| name.starts_with(prefix)).collect();
        expected.sort_unstable();
        assert_eq!(list(prefix).await, expected, "{prefix:?}");
    }
    let there = get(&records, "abc").await;
    let _ = compare_and_set(&records, "abc", there.version, "").await;
    assert_eq!(list("ab").await, Vec::<String>::new());
}

/// All clients see one advancing clock, in reads and writes, with or without a record.
pub async fn the_clock_advances_and_all_clients_agree(context: &TestContext) {
    let (one, other) = (open_records(context).await, open_records(context).await);
    let name = context.unique_name("clock");
    let start = get(&one, &name).await.engine_time;
    assert!(start > Duration::from_secs(1_700_000_000), "since 1970: {start:?}");
    let mut last = start;
    let mut version = 0;
    for round in 0..10 {
        let written = compare_and_set(&one, &name, version, &round.to_string()).await;
        version = written.version;
        for now in [written.engine_time, get(&other, &name).await.engine_time, get(&one, "absent").await.engine_time] {
            assert!(now >= last, "{now:?} after {last:?}");
            last = now;
        }
    }
    eventually(TEST_TIMEOUT, || async {
        let now = get(&other, &name).await.engine_time;
        if now > start + Duration::from_millis(20) { Ok(()) } else { Err(format!("still {now:?}, {start:?} at first")) }
    })
    .await;
}

/// Processes with wall clocks an hour ahead and behind read the same time as all others.
pub async fn client_wall_clocks_have_no_effect(context: &TestContext) {
    let records = open_records(context).await;
    let name = context.unique_name("skewed");
    for skew in [3600, -3600] {
        let mut actor = context.spawn_skewed_actor(skew, LONG_TTL).await;
        let before = get(&records, &name).await;
        let wall = i64::try_from(actor.wall_clock_ms().await / 1000).expect("a time");
        let ahead = wall - i64::try_from(before.engine_time.as_secs()).expect("a time");
        assert!(
            (ahead - skew).abs() < 600,
            "{ahead} s instead of {skew} s: is the Debian package `faketime` installed?"
        );
        let (version, now) = actor.write_record(&name, before.version, "by a skewed process").await;
        let after = get(&records, &name).await;
        // The process reports microseconds, not nanoseconds.
        let before_us = Duration::from_micros(u64::try_from(before.engine_time.as_micros()).expect("a time"));
        assert!(
            before_us <= now && now <= after.engine_time,
            "{now:?} is not between {:?} and {:?}",
            before.engine_time,
            after.engine_time
        );
        assert!(version > before.version && version == after.version);
    }
}

/// Records and their versions outlive the client that wrote them.
pub async fn records_outlive_their_clients(context: &TestContext) {
    let name = context.unique_name("kept");
    let locks = context.open_locks().await;
    let made = compare_and_set(&records_of(&locks), &name, 0, "kept").await;
    locks.close().await.expect("a closed client");
    let records = open_records(context).await;
    let found = get(&records, &name).await;
    assert_eq!((found.version, found.value.as_str()), (made.version, "kept"));
    let next = compare_and_set(&records, &name, made.version, "changed").await;
    assert!(next.version > made.version);
}

/// Any text is stored without trimming, folding, escaping or truncation.
pub async fn any_text_is_stored_unchanged(context: &TestContext) {
    let records = open_records(context).await;
    let name = context.unique_name("text");
    let mut over = 0;
    let longest = "x".repeat(MAX_RECORD);
    let wide = "\u{1f511}".repeat(MAX_RECORD / 4);
    let all: String = ('\0'..='\u{2ff}').collect();
    for value in [
        " ",
        "a ",
        " a",
        "\n",
        "a\r\nb\n",
        "\0",
        "'",
        "\"\\",
        "%s {0} $1 ?",
        "\u{feff}\u{202e}",
        "0",
        &all,
        &longest,
        &wide,
    ] {
        over = compare_and_set(&records, &name, over, value).await.version;
        let found = get(&records, &name).await.value;
        assert!(found == value, "{} bytes became {} bytes: {:.60?}", value.len(), found.len(), found);
    }
}

/// A value that is one byte too long is rejected without an engine call.
pub async fn too_long_a_value_is_refused_before_any_call(context: &TestContext) {
    let (locks, flaky) = context.open_flaky(LONG_TTL).await;
    let value = "x".repeat(MAX_RECORD + 1);
    let error = records_of(&locks).compare_and_set("long", 0, value).await.expect_err("too long");
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    assert!(error.to_string().contains("record \"long\"") && error.to_string().contains("65536"), "{error}");
    assert_eq!(flaky.total_calls(), 0);
}

/// The rules for names are those of locks.
pub async fn a_bad_name_is_refused_before_any_call(context: &TestContext) {
    let (locks, flaky) = context.open_flaky(LONG_TTL).await;
    let records = records_of(&locks);
    for name in ["", "a\nb", &"x".repeat(513)] {
        let errors = [
            records.get(name).await.map(drop),
            records.compare_and_set(name, 0, "x").await.map(drop),
            records.update(name, |_, _| None).await.map(drop),
        ];
        for error in errors {
            assert_eq!(error.expect_err("a bad name").kind(), ErrorKind::InvalidName);
        }
    }
    assert_eq!(flaky.total_calls(), 0);
}

/// After a lost request, a lost reply or a temporary error, an update reads again and applies its
/// change.
pub async fn an_update_reads_again_after_a_lost_reply(context: &TestContext) {
    let (locks, flaky) = context.open_flaky(LONG_TTL).await;
    let records = records_of(&locks);
    for fault in [Fault::LoseRequest, Fault::LoseReply, Fault::Refuse] {
        let name = context.unique_name("lost");
        flaky.fail_next(Method::CompareAndSetRecord, [fault]);
        flaky.fail_next(Method::GetRecord, [fault]);
        let mut inputs = Vec::new();
        let set = |value: &str, _: Duration| {
            inputs.push(value.to_owned());
            (value != "set").then(|| "set".to_owned())
        };
        let record = records.update(&name, set).await.expect("an update");
        let second = if fault == Fault::LoseReply { "set" } else { "" };
        assert_eq!(inputs, ["", second], "{fault:?}");
        let found = get(&records, &name).await;
        assert_eq!((found.version, found.value.as_str()), (record.version, "set"), "{fault:?}");
    }
    flaky.fail_next(Method::CompareAndSetRecord, [Fault::Deny]);
    let error = records.update("denied", |_, _| Some("x".to_owned())).await.expect_err("a permanent error");
    assert_eq!(error.kind(), ErrorKind::Denied, "not retried: {error}");
}

/// If the engine is unreachable, an update fails with the reason after a TTL, on a clock that only
/// the case advances.
pub async fn an_unreachable_engine_ends_an_update_in_time(context: &TestContext) {
    let (manual_clock, flaky) = (ManualClock::new(), Arc::new(FlakyEngine::new(context.open_engine().await)));
    let engine: Arc<dyn Engine> = Arc::clone(&flaky) as _;
    let locks = Locks::builder().ttl(LONG_TTL).clock(manual_clock.clock()).open_engine(engine);
    flaky.disconnect();
    let records = records_of(&locks);
    let update = tokio::spawn(async move { records.update("unreachable", |_, _| Some("x".to_owned())).await });
    // Each poll advances the clock by 20 ms, until the back-off has ended and the engine is called
    // again. That is far less than the TTL.
    eventually(TEST_TIMEOUT, || async {
        manual_clock.advance(Duration::from_millis(20));
        let calls = flaky.call_count(Method::GetRecord);
        if calls > 1 { Ok(()) } else { Err(format!("{calls} attempts")) }
    })
    .await;
    assert!(!update.is_finished(), "before the timeout");
    manual_clock.advance(LONG_TTL);
    let ended = tokio::time::timeout(TEST_TIMEOUT, update).await.expect("the update times out").expect("no panic");
    let error = ended.expect_err("the engine is unreachable");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}
