//! The effects of a lost lock on the command.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::short_leases::{
    LIST_LIVING_FAMILY, earliest_end, family_while_held, file_while_held, while_held, with_a_lease,
};
use crate::common::{CommandOutput, TestFolder, is_alive, wait_for};
use leasehold::clock::Clock;
use serde_json::{Value, json};

fn parse_json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// A command that ignores TERM, with a child that does, too.
const TERM_IGNORING_COMMAND: &str = "trap 'echo term >> received' TERM; sh -c 'trap \"\" TERM; echo $$ > grandchild; exec sleep 1000' \
    > /dev/null 2>&1 & echo $$ > child; while :; do wait; done";

fn process_ids(place: &TestFolder) -> [String; 2] {
    [place.wait_for_file("child"), place.wait_for_file("grandchild")]
}

#[test]
fn an_evicted_command_gets_term_then_kill_and_exits_with_75() {
    with_a_lease(gets_term_then_kill);
}

/// `None`: the command got KILL before its trap had run.
fn gets_term_then_kill(grace: &str) -> Option<()> {
    let place = TestFolder::new();
    let mut running = place.start(["run", "--grace", grace, "a", "-c", TERM_IGNORING_COMMAND]);
    let family = process_ids(&place);
    let evicted = place.run(["evict", "--yes", "--reason", "drill", "a"]).assert_ok().stdout();
    assert!(evicted.contains("fence token 2") && evicted.contains("reason: drill"), "{evicted}");
    let received = file_while_held(&place, &mut running, "received");
    running.wait().assert_failed(75, "the lock a is lost");
    assert!(family.iter().all(|pid| !is_alive(pid)));
    assert_eq!(received?, "term\n");
    Some(())
}

#[test]
fn a_command_that_ends_on_term_is_not_waited_for_longer() {
    let place = TestFolder::new();
    let child = "trap 'echo bye; exit 0' TERM; echo > ready; while :; do sleep 0.01; done";
    let running = place.start(["run", "--ttl", "1h", "--grace", "20m", "a", "-c", child]);
    place.wait_for_file("ready");
    place.run(["evict", "--yes", "a"]).assert_ok();
    let ran = running.wait();
    assert_eq!((ran.exit_code(), ran.stdout().as_str()), (75, "bye\n"));
}

#[test]
fn a_grandchild_has_its_grace_when_the_command_has_ended() {
    let place = TestFolder::new();
    let child = "sh -c 'trap \"sleep 0.1; echo clean > clean; exit\" TERM; echo > ready; while :; do sleep 0.01; done' \
        > /dev/null 2>&1 & wait";
    let running = place.start(["run", "--ttl", "1h", "--grace", "20m", "a", "-c", child]);
    place.wait_for_file("ready");
    place.run(["evict", "--yes", "a"]).assert_ok();
    running.wait().assert_failed(75, "");
    assert_eq!(place.read("clean"), "clean\n", "leasehold waited for it");
}

#[test]
fn on_lost_kill_sends_no_term() {
    let place = TestFolder::new();
    let running = place.start(["run", "--on-lost", "kill", "--json", "a", "-c", TERM_IGNORING_COMMAND]);
    let family = process_ids(&place);
    place.run(["evict", "--yes", "a"]).assert_ok();
    let ran = running.wait().assert_failed(75, "");
    assert_eq!(place.read("received"), "");
    assert!(family.iter().all(|pid| !is_alive(pid)));
    let lost = ran.events().into_iter().find(|event| event["event"] == json!("lost")).unwrap();
    assert_eq!(lost["reason"], json!("taken"));
}

#[test]
fn on_lost_ignore_only_warns() {
    let place = TestFolder::new();
    let running = place.start(["run", "--on-lost", "ignore", "a", "-c", "echo > ready; read x; exit 6"]);
    place.wait_for_file("ready");
    place.run(["evict", "--yes", "a"]).assert_ok();
    place.run(["run", "a", "--", "true"]).assert_ok();
    running.close_input_and_wait().assert_failed(6, "continues without it");
}

/// A graceful eviction: the command may clean up, and the waiter runs when the holder has released
/// the lock.
#[test]
fn a_graceful_eviction_sends_term_and_the_waiter_follows_the_release() {
    let place = TestFolder::new();
    let child = "trap 'sleep 0.2; echo clean >> order; exit 0' TERM; echo > ready; while :; do sleep 0.01; done";
    let running = place.start(["run", "--ttl", "10m", "a", "-c", child]);
    place.wait_for_file("ready");
    let waiter = place.start(["run", "a", "-c", "echo next >> order"]);
    place.wait_for_waiters("a", 1);
    let output = place.run(["evict", "--graceful", "--yes", "--reason", "drill", "a"]).assert_ok();
    assert!(output.stdout().starts_with("a was released after"), "{}", output.stdout());
    assert!(output.stderr().contains("waiting until the lock is released"), "{}", output.stderr());
    running.wait().assert_failed(75, "an operator requests the release of the lock a on file:");
    waiter.wait().assert_ok();
    assert_eq!(place.read("order"), "clean\nnext\n");
}

/// Whether the lease expired before the release request.
fn expired_before_request(ran: &CommandOutput) -> bool {
    let events = ran.events();
    let requested = events.iter().any(|event| event["event"] == json!("release-requested"));
    let expired = |event: &Value| event["event"] == json!("lost") && event["reason"] == json!("expired");
    !requested && events.iter().any(expired)
}

/// A holder that ignores TERM is killed before its lease ends; no waiter is granted the lock before
/// that.
#[test]
fn a_command_that_ignores_a_graceful_eviction_is_killed_before_its_deadline() {
    with_a_lease(is_killed_before_its_deadline);
}

/// `None`: the lease ended before the request, KILL came before the trap had run, or the lease ended
/// before KILL had taken effect.
fn is_killed_before_its_deadline(ttl: &str) -> Option<()> {
    let place = TestFolder::new();
    let earliest_end = earliest_end(ttl);
    let mut running = place.start(["run", "--ttl", ttl, "--json", "a", "-c", TERM_IGNORING_COMMAND]);
    let family = family_while_held(&place, &mut running)?;
    let waiter = place.start(["run", "a", "-c", LIST_LIVING_FAMILY]);
    while_held(&mut running, "a waiter", || (place.waiter_count("a") == 1).then_some(()));
    let evict = place.start(["evict", "--graceful", "--yes", "--json", "a"]);
    let received = file_while_held(&place, &mut running, "received");
    let (ran, is_in_time) = (running.wait(), Clock::system().now() <= earliest_end);
    let output = evict.wait();
    if expired_before_request(&ran) {
        return None;
    }
    let output = parse_json(&output.assert_ok().stdout());
    // KILL comes just before the lease ends: on a busy machine the release may be seen after it.
    let gone = output["released"].as_array().unwrap().len() + output["lease_ended"].as_array().unwrap().len();
    assert_eq!((gone, &output["remaining"], &output["not_holding"]), (1, &json!([]), &json!([])), "{output}");
    let ran = ran.assert_failed(75, "");
    let request = ran.events().into_iter().find(|event| event["event"] == json!("release-requested")).unwrap();
    assert_eq!(request["name"], json!("a"));
    assert!(family.iter().all(|pid| !is_alive(pid)));
    let living = waiter.wait().assert_ok().stdout();
    assert!(living.is_empty() || !is_in_time, "granted while {living} ran");
    assert_eq!(received?, "term\n");
    living.is_empty().then_some(())
}

/// The lease ends while the command continues: this is not reported as a release.
#[test]
fn a_lease_that_expires_without_a_release_is_reported_as_expired() {
    with_a_lease(is_reported_as_expired);
}

fn is_reported_as_expired(ttl: &str) -> Option<()> {
    let place = TestFolder::new();
    let command = "echo > ready; read x; exit 6";
    let running = place.start(["run", "--ttl", ttl, "--on-lost", "ignore", "--json", "a", "-c", command]);
    place.wait_for_file("ready");
    let output = place.run(["evict", "--graceful", "--yes", "a"]);
    let ran = running.close_input_and_wait();
    if expired_before_request(&ran) {
        return None;
    }
    let output = output.assert_ok().stdout();
    assert!(output.starts_with("the lease on a ended after") && output.contains("may still run"), "{output}");
    ran.assert_failed(6, "without the lock once its lease ends");
    Some(())
}

/// A waiter holds no lock: it gets no request and is not evicted, even if it is granted meanwhile.
#[test]
fn a_graceful_eviction_leaves_a_waiter_alone() {
    let place = TestFolder::new();
    let holder = place.start_holder(&[], "a");
    let waiter = place.start(["run", "a", "-c", "echo ran"]);
    place.wait_for_waiters("a", 1);
    let claim = place.show_json("a")["waiters"][0]["claim"].as_str().unwrap().to_owned();
    place.run(["evict", "--graceful", "--yes", "--claim", &claim, "a"]).assert_failed(1, "");
    assert_eq!((place.holder_count("a"), place.waiter_count("a")), (1, 1));
    holder.close_input_and_wait().assert_ok();
    assert_eq!(waiter.close_input_and_wait().assert_ok().stdout(), "ran\n");
}

/// The long variants of this test and the next one show that TERM came first.
#[test]
fn max_hold_ends_the_command() {
    with_a_lease(ends_with_max_hold);
}

/// `None`: the hold ended before the command had begun, or before KILL had taken effect.
fn ends_with_max_hold(max_hold: &str) -> Option<()> {
    let place = TestFolder::new();
    let earliest_end = earliest_end(max_hold);
    let mut running =
        place.start(["run", "--max-hold", max_hold, "--grace", "500ms", "a", "-c", TERM_IGNORING_COMMAND]);
    let family = family_while_held(&place, &mut running)?;
    // Another run acquires the lock; by then the command is gone.
    let waiter = place.start(["run", "a", "-c", LIST_LIVING_FAMILY]);
    running.wait().assert_failed(75, "--max-hold is over");
    let is_in_time = Clock::system().now() <= earliest_end;
    assert!(family.iter().all(|pid| !is_alive(pid)));
    let living = waiter.wait().assert_ok().stdout();
    assert!(living.is_empty() || !is_in_time, "granted while {living} ran");
    living.is_empty().then_some(())
}

#[test]
fn when_renewals_fail_the_command_ends() {
    with_a_lease(ends_when_renewals_fail);
}

fn ends_when_renewals_fail(ttl: &str) -> Option<()> {
    let place = TestFolder::new();
    let mut running = place.start(["run", "--ttl", ttl, "--grace", "1s", "--json", "a", "-c", TERM_IGNORING_COMMAND]);
    let family = family_while_held(&place, &mut running)?;
    let latch = block_lock_file(&place);
    let ran = running.wait().assert_failed(75, "");
    assert!(family.iter().all(|pid| !is_alive(pid)));
    let events = ran.events();
    let lost: Vec<_> = events.iter().filter(|event| event["event"] == json!("lost")).collect();
    assert_eq!((lost.len(), &lost[0]["reason"]), (1, &json!("expired")), "{events:?}");
    drop(latch);
    place.run(["run", "a", "--", "true"]).assert_ok();
    Some(())
}

/// Locks the lock's file, which blocks every operation of every process on it, including renewals.
fn block_lock_file(place: &TestFolder) -> std::fs::File {
    let file = std::fs::read_dir(place.path("locks/locks")).unwrap().next().unwrap().unwrap().path();
    let latch = std::fs::File::options().read(true).write(true).open(file).unwrap();
    latch.lock().unwrap();
    latch
}

#[cfg(feature = "nightly")]
#[test]
fn max_hold_ends_the_command_before_it_is_over() {
    let place = TestFolder::new();
    let running = place.start(["run", "--max-hold", "8s", "--grace", "4s", "a", "-c", TERM_IGNORING_COMMAND]);
    let family = process_ids(&place);
    let waiter = place.start(["run", "a", "-c", "cat child grandchild"]);
    let out = waiter.wait().assert_ok().stdout();
    assert!(out.split_whitespace().all(|pid| !is_alive(pid)), "{out}");
    assert!(family.iter().all(|pid| !is_alive(pid)));
    running.wait().assert_failed(75, "--max-hold is over");
    assert_eq!(place.read("received"), "term\n");
    place.run(["run", "--max-hold", "1h", "a", "--", "true"]).assert_ok();
}

#[cfg(feature = "nightly")]
#[test]
fn when_renewals_fail_the_command_is_gone_before_the_lease_ends() {
    let place = TestFolder::new();
    let running = place.start(["run", "--ttl", "10s", "--grace", "4s", "--json", "a", "-c", TERM_IGNORING_COMMAND]);
    let family = process_ids(&place);
    let latch = block_lock_file(&place);
    let ran = running.wait().assert_failed(75, "");
    assert!(family.iter().all(|pid| !is_alive(pid)));
    assert_eq!(place.read("received"), "term\n");
    let events = ran.events();
    let lost: Vec<_> = events.iter().filter(|event| event["event"] == json!("lost")).collect();
    assert_eq!((lost.len(), &lost[0]["reason"]), (1, &json!("expired")), "{events:?}");
    drop(latch);
    place.run(["run", "a", "--", "true"]).assert_ok();
}

#[cfg(feature = "nightly")]
#[test]
fn a_lock_is_kept_far_beyond_its_ttl() {
    let place = TestFolder::new();
    let child = "sleep 45; exit 4";
    let running = place.start(["run", "--ttl", "20s", "--grace", "100ms", "a", "-c", child]);
    wait_for("a holder", || (place.holder_count("a") == 1).then_some(()));
    let waiter = place.start(["run", "a", "--", "true"]);
    let ran = running.wait();
    assert_eq!((ran.exit_code(), ran.stderr().as_str()), (4, ""));
    waiter.wait().assert_ok();
}

#[test]
fn a_loss_found_after_the_command_has_ended_is_reported() {
    let place = TestFolder::new();
    let running = place.start(["run", "a", "-c", "echo $$ > child; exec cat"]);
    let child = place.wait_for_file("child");
    // When it continues, both the eviction and the command's end have happened.
    running.signal(rustix::process::Signal::STOP);
    place.run(["evict", "--yes", "a"]).assert_ok();
    let pid = rustix::process::Pid::from_raw(child.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    wait_for("the end of the command", || (!is_alive(&child)).then_some(()));
    running.signal(rustix::process::Signal::CONT);
    running.wait().assert_failed(75, "the lock a is lost");
    // Also if the lock is lost while only --min-hold keeps it.
    let running = place.start(["run", "--min-hold", "1h", "a", "-c", "echo > done"]);
    place.wait_for_file("done");
    wait_for("the lock to be evicted", || (place.run(["evict", "--yes", "a"]).exit_code() == 0).then_some(()));
    let ran = running.wait();
    assert!(ran.stderr().contains("the lock a is lost"), "{}: {}", ran.exit_code(), ran.stderr());
}
