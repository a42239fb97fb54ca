//! Records: what was written is read, a late writer never succeeds, and all read one clock.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use leasehold::clock::ManualClock;
use leasehold::engine::{Engine, Record};
use leasehold::{ErrorKind, Locks, MAX_RECORD, Records};
use leasehold_testbed::eventually;

use super::names::nasty;
use crate::brief::times;
use crate::flaky::{Fault, Flaky, Method};
use crate::world::{LONG, SOON, World};

async fn records(world: &World) -> Records {
    of(&world.locks().await)
}

fn of(locks: &Locks) -> Records {
    locks.records().expect("an engine that keeps records")
}

async fn read(records: &Records, name: &str) -> Record {
    records.get(name).await.expect("a read")
}

/// Writes, and must succeed.
async fn write(records: &Records, name: &str, over: u64, value: &str) -> Record {
    let written = records.compare_and_set(name, over, value).await.expect("a write");
    written.unwrap_or_else(|| panic!("{name:?} over {over} was refused"))
}

/// Written by one client, read by another; the version is the one that the writer got.
pub async fn what_was_written_is_read(world: &World) {
    let (one, other) = (records(world).await, records(world).await);
    let name = world.name("record");
    let mut last = 0;
    for value in ["first", "second", "second"] {
        let written = write(&one, &name, last, value).await;
        assert_eq!(written.value, value);
        assert!(written.version > last, "versions rise: {written:?} after {last}");
        let found = read(&other, &name).await;
        assert_eq!((found.version, found.value.as_str()), (written.version, value));
        last = written.version;
    }
}

/// No record: version zero, nothing in it; and reading makes none.
pub async fn where_there_is_none_nothing_is_read(world: &World) {
    let records = records(world).await;
    let name = world.name("absent");
    for _ in 0..2 {
        let found = read(&records, &name).await;
        assert_eq!((found.version, found.value.as_str()), (0, ""));
    }
    assert!(records.compare_and_set(&name, 7, "x").await.expect("an answer").is_none(), "there is no version 7");
    let nothing = write(&records, &name, 0, "").await;
    assert_eq!((nothing.version, nothing.value.as_str()), (0, ""), "to remove nothing is no mistake");
    assert_eq!(records.list(&name).await.expect("a list"), []);
}

/// Whoever read an old version, or none, writes nothing.
pub async fn a_late_writer_changes_nothing(world: &World) {
    let (one, late) = (records(world).await, records(world).await);
    let name = world.name("late");
    let first = write(&one, &name, 0, "first").await;
    let second = write(&one, &name, first.version, "second").await;
    for over in [0, first.version, first.version - 1, second.version + 1, u64::from(u32::MAX), i64::MAX as u64] {
        for value in ["late", ""] {
            let answer = late.compare_and_set(&name, over, value).await.expect("an answer");
            assert!(answer.is_none(), "over {over}, while {} is there", second.version);
        }
    }
    let found = read(&late, &name).await;
    assert_eq!((found.version, found.value.as_str()), (second.version, "second"));
}

/// Removed and made again, by anybody and however often: no version is used twice, and who read one before is late.
pub async fn a_version_never_comes_back(world: &World) {
    let (one, other) = (records(world).await, records(world).await);
    let name = world.name("again");
    let mut seen = Vec::new();
    for round in 0..times(6, 20) {
        let client = if round % 2 == 0 { &one } else { &other };
        let made = write(client, &name, 0, "the same").await;
        assert!(seen.iter().all(|version| *version < made.version), "{made:?} after {seen:?}");
        for old in &seen {
            assert!(one.compare_and_set(&name, *old, "late").await.expect("an answer").is_none(), "over {old}");
        }
        seen.push(made.version);
        let removed = write(client, &name, made.version, "").await;
        assert_eq!((removed.version, removed.value.as_str()), (0, ""));
        assert_eq!(read(&other, &name).await.version, 0);
        assert!(one.compare_and_set(&name, made.version, "late").await.expect("an answer").is_none(), "over what was removed");
    }
}

/// Many write over the same version at the same time: one of them does.
pub async fn of_two_who_write_at_once_one_succeeds(world: &World) {
    let clients = [records(world).await, records(world).await];
    let name = world.name("race");
    let mut over = 0;
    for round in 0..times(5, 20) {
        let writers = (0..8).map(|writer| {
            let (client, name, value) = (&clients[writer % 2], &name, format!("{round} {writer}"));
            async move { client.compare_and_set(name, over, value).await.expect("an answer") }
        });
        let written: Vec<Record> = join_all(writers).await.into_iter().flatten().collect();
        assert_eq!(written.len(), 1, "{written:?}");
        let found = read(&clients[0], &name).await;
        assert_eq!((found.version, &found.value), (written[0].version, &written[0].value));
        over = found.version;
    }
}

/// Eight clients add one, many times each: none is lost.
pub async fn every_update_counts_once(world: &World) {
    let name = world.name("count");
    let mut clients = Vec::new();
    for _ in 0..8 {
        let (records, name) = (records(world).await, name.clone());
        clients.push(tokio::spawn(async move {
            let add = |value: &str, _: Duration| Some((value.parse().unwrap_or(0) + 1).to_string());
            for _ in 0..times(8, 50) {
                let _ = records.update(&name, add).await.expect("an update");
            }
        }));
    }
    for client in clients {
        client.await.expect("a client");
    }
    assert_eq!(read(&records(world).await, &name).await.value, (8 * times(8, 50)).to_string());
}

/// More than a hundred nasty names have a record each, and each its own.
pub async fn names_do_not_meet(world: &World) {
    let (one, other) = (records(world).await, records(world).await);
    let names = nasty();
    let mut versions = Vec::new();
    for name in &names {
        versions.push(write(&one, name, 0, &format!("of {name}")).await.version);
    }
    for name in &names {
        assert_eq!(read(&other, name).await.value, format!("of {name}"));
    }
    let mut sorted = names.clone();
    sorted.sort();
    let listed: Vec<String> = other.list("").await.expect("a list").iter().map(ToString::to_string).collect();
    assert_eq!(listed, sorted);
    for (name, version) in names.iter().zip(versions) {
        let _ = write(&other, name, version, "").await;
    }
    assert_eq!(one.list("").await.expect("a list"), []);
}

/// A record and a lock of the same name know nothing of each other.
pub async fn they_do_not_meet_locks(world: &World) {
    let locks = world.locks().await;
    let records = of(&locks);
    for name in ["a", "a/b", "a:b", "{a}", "records", "lock", "..", ".new", ".floor"] {
        let made = write(&records, name, 0, "kept").await;
        let guard = locks.mutex(name).try_lock().await.expect("an answer").expect("a record holds no lock");
        assert_eq!(read(&records, name).await.version, made.version, "{name:?}: a lock writes no record");
        let again = write(&records, name, made.version, "kept while locked").await;
        assert!(world.locks().await.mutex(name).try_lock().await.expect("an answer").is_none(), "{name:?} is held");
        let _ = guard.release().await.expect("a release");
        assert_eq!(read(&records, name).await.version, again.version, "{name:?}: a release removes no record");
    }
    if world.capabilities().inspection {
        assert_eq!(locks.list("").await.expect("a list"), [], "records are no locks");
    }
}

/// The names that begin with a prefix, taken literally, in order; what was removed is not among them.
pub async fn names_are_listed_by_prefix_in_order(world: &World) {
    let records = records(world).await;
    let names = ["b", "a%", "a", "a_c", "a*", "a/b", "abc", "a\\b", "\u{e9}", "A"];
    for name in names {
        let _ = write(&records, name, 0, "x").await;
    }
    let list = async |prefix: &str| -> Vec<String> {
        records.list(prefix).await.expect("a list").iter().map(ToString::to_string).collect()
    };
    for prefix in ["", "a", "a_", "a%", "a*", "a\\", "A", "\u{e9}", "ab", "z", "?", "[ab]"] {
        let mut expected: Vec<&str> = names.into_iter().filter(|name| name.starts_with(prefix)).collect();
        expected.sort_unstable();
        assert_eq!(list(prefix).await, expected, "{prefix:?}");
    }
    let there = read(&records, "abc").await;
    let _ = write(&records, "abc", there.version, "").await;
    assert_eq!(list("ab").await, Vec::<String>::new());
}

/// All see one clock, whether they read or write, and whether or not there is a record; it moves on.
pub async fn the_clock_moves_on_and_all_agree(world: &World) {
    let (one, other) = (records(world).await, records(world).await);
    let name = world.name("clock");
    let start = read(&one, &name).await.now;
    assert!(start > Duration::from_secs(1_700_000_000), "since 1970: {start:?}");
    let mut last = start;
    let mut version = 0;
    for round in 0..10 {
        let written = write(&one, &name, version, &round.to_string()).await;
        version = written.version;
        for now in [written.now, read(&other, &name).await.now, read(&one, "absent").await.now] {
            assert!(now >= last, "{now:?} after {last:?}");
            last = now;
        }
    }
    eventually(SOON, || async {
        let now = read(&other, &name).await.now;
        if now > start + Duration::from_millis(20) { Ok(()) } else { Err(format!("still {now:?}, after {start:?}")) }
    })
    .await;
}

/// Processes whose wall clocks are an hour ahead and behind read the same time as everybody else.
pub async fn no_clients_wall_clock_plays_a_role(world: &World) {
    let records = records(world).await;
    let name = world.name("skewed");
    for skew in [3600, -3600] {
        let mut player = world.skewed_player(skew, LONG).await;
        let before = read(&records, &name).await;
        let wall = i64::try_from(player.wall().await / 1000).expect("a time");
        let ahead = wall - i64::try_from(before.now.as_secs()).expect("a time");
        assert!((ahead - skew).abs() < 600, "{ahead} s, not {skew}: is the Debian package `faketime` installed?");
        let (version, now) = player.record(&name, before.version, "by a skewed one").await;
        let after = read(&records, &name).await;
        // What the process reports has no nanoseconds.
        let before_us = Duration::from_micros(u64::try_from(before.now.as_micros()).expect("a time"));
        assert!(before_us <= now && now <= after.now, "{now:?}, between {:?} and {:?}", before.now, after.now);
        assert!(version > before.version && version == after.version);
    }
}

/// Kept when whoever wrote it is gone, and so are the versions.
pub async fn they_outlive_their_clients(world: &World) {
    let name = world.name("kept");
    let locks = world.locks().await;
    let made = write(&of(&locks), &name, 0, "kept").await;
    locks.close().await.expect("an end");
    let records = records(world).await;
    let found = read(&records, &name).await;
    assert_eq!((found.version, found.value.as_str()), (made.version, "kept"));
    let next = write(&records, &name, made.version, "changed").await;
    assert!(next.version > made.version);
}

/// Whatever a text has: nothing is trimmed, folded, escaped or cut.
pub async fn any_text_is_kept_as_it_is(world: &World) {
    let records = records(world).await;
    let name = world.name("text");
    let mut over = 0;
    let longest = "x".repeat(MAX_RECORD);
    let wide = "\u{1f511}".repeat(MAX_RECORD / 4);
    let all: String = ('\0'..='\u{2ff}').collect();
    for value in
        [" ", "a ", " a", "\n", "a\r\nb\n", "\0", "'", "\"\\", "%s {0} $1 ?", "\u{feff}\u{202e}", "0", &all, &longest, &wide]
    {
        over = write(&records, &name, over, value).await.version;
        let found = read(&records, &name).await.value;
        assert!(found == value, "{} bytes became {} bytes: {:.60?}", value.len(), found.len(), found);
    }
}

/// One byte too many.
pub async fn too_long_a_value_is_refused_before_any_call(world: &World) {
    let (locks, flaky) = world.flaky(LONG).await;
    let value = "x".repeat(MAX_RECORD + 1);
    let error = of(&locks).compare_and_set("long", 0, value).await.expect_err("too long");
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    assert!(error.to_string().contains("record \"long\"") && error.to_string().contains("65536"), "{error}");
    assert_eq!(flaky.all_calls(), 0);
}

/// The rules for names are those of locks.
pub async fn a_bad_name_is_refused_before_any_call(world: &World) {
    let (locks, flaky) = world.flaky(LONG).await;
    let records = of(&locks);
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
    assert_eq!(flaky.all_calls(), 0);
}

/// Lost on the way there, on the way back, or refused for now: an update reads again and ends with its change made.
pub async fn a_lost_reply_is_read_again(world: &World) {
    let (locks, flaky) = world.flaky(LONG).await;
    let records = of(&locks);
    for fault in [Fault::LoseRequest, Fault::LoseReply, Fault::Refuse] {
        let name = world.name("lost");
        flaky.next(Method::Record, [fault]);
        flaky.next(Method::Recall, [fault]);
        let mut asked = Vec::new();
        let set = |value: &str, _: Duration| {
            asked.push(value.to_owned());
            (value != "set").then(|| "set".to_owned())
        };
        let record = records.update(&name, set).await.expect("an update");
        let second = if fault == Fault::LoseReply { "set" } else { "" };
        assert_eq!(asked, ["", second], "{fault:?}");
        let found = read(&records, &name).await;
        assert_eq!((found.version, found.value.as_str()), (record.version, "set"), "{fault:?}");
    }
    flaky.next(Method::Record, [Fault::Deny]);
    let error = records.update("denied", |_, _| Some("x".to_owned())).await.expect_err("an error for good");
    assert_eq!(error.kind(), ErrorKind::Denied, "not tried again: {error}");
}

/// A line that is cut ends an update with the reason, once a TTL is over on a clock that only the case advances.
pub async fn an_engine_that_is_away_ends_an_update_in_time(world: &World) {
    let (hand, flaky) = (ManualClock::new(), Arc::new(Flaky::new(world.engine().await)));
    let engine: Arc<dyn Engine> = Arc::clone(&flaky) as _;
    let locks = Locks::builder().ttl(LONG).clock(hand.clock()).open_engine(engine);
    flaky.cut();
    let records = of(&locks);
    let update = tokio::spawn(async move { records.update("away", |_, _| Some("x".to_owned())).await });
    // The pause before another try passes; a TTL does not, however often this looks.
    eventually(SOON, || async {
        hand.advance(Duration::from_millis(20));
        let calls = flaky.calls(Method::Recall);
        if calls > 1 { Ok(()) } else { Err(format!("{calls} tries")) }
    })
    .await;
    assert!(!update.is_finished(), "its time is not over");
    hand.advance(LONG);
    let ended = tokio::time::timeout(SOON, update).await.expect("its time is over").expect("no panic");
    let error = ended.expect_err("nobody answers");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}
