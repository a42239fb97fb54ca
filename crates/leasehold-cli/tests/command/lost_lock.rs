//! The effects of a lost lock on the command.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::short_leases::{
    LIST_LIVING_FAMILY, earliest_lease_end, retry_with_longer_ttls, wait_for_family_while_held,
    wait_for_file_while_held, wait_while_held,
};
use crate::common::{CommandOutput, TestFolder, is_alive, wait_for};
use leasehold::clock::Clock;
use serde_json::{Value, json};

fn parse_json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// A command that records TERM in `received` but ignores it, with a child that ignores it, too.
/// Both write their process ids.
const TERM_IGNORING_COMMAND: &str = "trap 'echo term >> received' TERM; sh -c 'trap \"\" TERM; echo $$ > grandchild; exec sleep 1000' \
    > /dev/null 2>&1 & echo $$ > child; while :; do wait; done";

/// Waits for the process ids of the command and its child.
fn process_ids(place: &TestFolder) -> [String; 2] {
    [place.wait_for_file("child"), place.wait_for_file("grandchild")]
}

#[test]
fn a_force_released_command_gets_term_then_kill_and_exits_with_75() {
    retry_with_longer_ttls(attempt_term_then_kill);
}

/// One attempt of the test; `None` if the command got KILL before its trap had run.
fn attempt_term_then_kill(grace: &str) -> Option<()> {
    let place = TestFolder::new();
    let mut running = place.start(["run", "--grace", grace, "a", "-c", TERM_IGNORING_COMMAND]);
    let family = process_ids(&place);
    let evicted = place.run(["evict", "--yes", "--reason", "drill", "a"]).assert_ok().stdout();
    assert!(evicted.contains("fence token 2") && evicted.contains("reason: drill"), "{evicted}");
    let received = wait_for_file_while_held(&place, &mut running, "received");
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
    assert_eq!(lost["reason"], json!("revoked"));
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

/// The command may clean up, and the waiter runs when the holder has released the lock.
#[test]
fn evict_graceful_sends_term_and_the_waiter_acquires_after_the_release() {
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

/// Whether a run's lease expired before the release was requested.
fn has_expired_before_request(ran: &CommandOutput) -> bool {
    let events = ran.events();
    let requested = events.iter().any(|event| event["event"] == json!("release-requested"));
    let expired = |event: &Value| event["event"] == json!("lost") && event["reason"] == json!("expired");
    !requested && events.iter().any(expired)
}

/// A holder that ignores TERM is killed before its lease ends; no waiter is granted the lock before
/// that.
#[test]
fn a_command_that_ignores_a_release_request_is_killed_before_its_deadline() {
    retry_with_longer_ttls(attempt_ignored_release_request);
}

/// One attempt of the test; `None` if the lease ended before the request, KILL came before the trap
/// had run, or the lease ended before KILL had taken effect.
fn attempt_ignored_release_request(ttl: &str) -> Option<()> {
    let place = TestFolder::new();
    let earliest_lease_end = earliest_lease_end(ttl);
    let mut running = place.start(["run", "--ttl", ttl, "--json", "a", "-c", TERM_IGNORING_COMMAND]);
    let family = wait_for_family_while_held(&place, &mut running)?;
    let waiter = place.start(["run", "a", "-c", LIST_LIVING_FAMILY]);
    wait_while_held(&mut running, "a waiter", || (place.waiter_count("a") == 1).then_some(()));
    let evict = place.start(["evict", "--graceful", "--yes", "--json", "a"]);
    let received = wait_for_file_while_held(&place, &mut running, "received");
    let (ran, is_in_time) = (running.wait(), Clock::system().now() <= earliest_lease_end);
    let output = evict.wait();
    if has_expired_before_request(&ran) {
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

/// The lease expires while the command continues: `evict --graceful` does not report a release.
#[test]
fn a_lease_that_expires_without_a_release_is_reported_as_expired() {
    retry_with_longer_ttls(attempt_expiry_after_request);
}

/// One attempt of the test; `None` if the lease expired before the request.
fn attempt_expiry_after_request(ttl: &str) -> Option<()> {
    let place = TestFolder::new();
    let command = "echo > ready; read x; exit 6";
    let running = place.start(["run", "--ttl", ttl, "--on-lost", "ignore", "--json", "a", "-c", command]);
    place.wait_for_file("ready");
    let output = place.run(["evict", "--graceful", "--yes", "a"]);
    let ran = running.close_input_and_wait();
    if has_expired_before_request(&ran) {
        return None;
    }
    let output = output.assert_ok().stdout();
    assert!(output.starts_with("the lease on a ended after") && output.contains("may still run"), "{output}");
    ran.assert_failed(6, "without the lock once its lease ends");
    Some(())
}

/// A waiter holds no lock: it gets no request and stays in the queue, even if it is granted
/// meanwhile.
#[test]
fn evict_graceful_leaves_a_waiter_in_the_queue() {
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

/// `max_hold_ends_the_command_before_it_is_over` shows that TERM came first.
#[test]
fn max_hold_ends_the_command() {
    retry_with_longer_ttls(attempt_max_hold);
}

/// One attempt of the test; `None` if the hold ended before the command had begun, or before KILL
/// had taken effect.
fn attempt_max_hold(max_hold: &str) -> Option<()> {
    let place = TestFolder::new();
    let earliest_lease_end = earliest_lease_end(max_hold);
    let mut running =
        place.start(["run", "--max-hold", max_hold, "--grace", "500ms", "a", "-c", TERM_IGNORING_COMMAND]);
    let family = wait_for_family_while_held(&place, &mut running)?;
    // Another run acquires the lock; by then the command is gone.
    let waiter = place.start(["run", "a", "-c", LIST_LIVING_FAMILY]);
    running.wait().assert_failed(75, "--max-hold is over");
    let is_in_time = Clock::system().now() <= earliest_lease_end;
    assert!(family.iter().all(|pid| !is_alive(pid)));
    let living = waiter.wait().assert_ok().stdout();
    assert!(living.is_empty() || !is_in_time, "granted while {living} ran");
    living.is_empty().then_some(())
}

#[test]
fn when_renewals_fail_the_command_ends() {
    retry_with_longer_ttls(attempt_failed_renewals);
}

/// One attempt of the test; `None` if the lease ended before the command had begun.
fn attempt_failed_renewals(ttl: &str) -> Option<()> {
    let place = TestFolder::new();
    let mut running = place.start(["run", "--ttl", ttl, "--grace", "1s", "--json", "a", "-c", TERM_IGNORING_COMMAND]);
    let family = wait_for_family_while_held(&place, &mut running)?;
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
    // When it continues, the lock was force released and the command has ended.
    running.signal(rustix::process::Signal::STOP);
    place.run(["evict", "--yes", "a"]).assert_ok();
    let pid = rustix::process::Pid::from_raw(child.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    wait_for("the end of the command", || (!is_alive(&child)).then_some(()));
    running.signal(rustix::process::Signal::CONT);
    running.wait().assert_failed(75, "the lock a is lost");
    // A loss is reported, too, when only --min-hold keeps the lock.
    let running = place.start(["run", "--min-hold", "1h", "a", "-c", "echo > done"]);
    place.wait_for_file("done");
    wait_for("the forced release", || (place.run(["evict", "--yes", "a"]).exit_code() == 0).then_some(()));
    let ran = running.wait();
    assert!(ran.stderr().contains("the lock a is lost"), "{}: {}", ran.exit_code(), ran.stderr());
}
