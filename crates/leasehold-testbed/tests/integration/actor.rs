//! [`Actor`], with a shell that reads and prints JSON lines as the child process.

use std::{fs, path::Path, time::Duration};

use leasehold_testbed::{Actor, Error};
use serde_json::json;

use crate::common::is_alive;

const TEST_TIMEOUT: Duration = leasehold_testbed::TEST_TIMEOUT;
const SILENCE_TIMEOUT: Duration = Duration::from_millis(200);

fn shell(script: &str) -> Actor {
    Actor::spawn(Path::new("/bin/sh"), &["-c", script], &[("GREETING", "hello")])
        .unwrap_or_else(|error| panic!("{error}"))
}

/// An actor that prints every line that it receives.
fn echo() -> Actor {
    Actor::spawn(Path::new("/bin/cat"), &[], &[]).unwrap_or_else(|error| panic!("{error}"))
}

#[tokio::test]
async fn lines_pass_in_both_directions_and_the_environment_is_set() {
    let mut actor = shell(r#"echo "{\"say\":\"$GREETING\"}"; read line; echo "[$line]"; exit 3"#);
    assert_eq!(actor.recv(TEST_TIMEOUT).await.unwrap(), json!({"say": "hello"}));
    actor.send(&json!({"op": "go"})).await.unwrap();
    assert_eq!(actor.recv(TEST_TIMEOUT).await.unwrap(), json!([{"op": "go"}]));
    let status = actor.wait_exit(TEST_TIMEOUT).await.unwrap();
    assert_eq!(status.code(), Some(3));
    let after = actor.recv(TEST_TIMEOUT).await.unwrap_err().to_string();
    assert!(after.contains("its output ended"), "{after}");
}

#[tokio::test]
async fn recv_matching_skips_other_lines_and_keeps_later_ones() {
    let mut actor = echo();
    for n in 1..=4 {
        actor.send(&json!({"n": n})).await.unwrap();
    }
    let third = actor.recv_matching(|line| line["n"] == 3, TEST_TIMEOUT).await.unwrap();
    assert_eq!(third, json!({"n": 3}));
    assert_eq!(actor.recv(TEST_TIMEOUT).await.unwrap(), json!({"n": 4}));
}

#[tokio::test]
async fn a_failed_recv_matching_shows_all_received_lines() {
    let mut actor = shell(r#"echo went wrong >&2; echo '{"a":1}'; echo '{"b":2}'; read line"#);
    // Standard error is read by another thread: wait until its line has arrived.
    let replies = || {
        let timeline = actor.transcript();
        async move { if timeline.contains("went wrong") { Ok(()) } else { Err(timeline) } }
    };
    leasehold_testbed::eventually(TEST_TIMEOUT, replies).await;
    let error = actor.recv_matching(|line| line["c"] == 3, SILENCE_TIMEOUT).await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    for part in [r#"{"a":1}"#, r#"{"b":2}"#, "went wrong"] {
        assert!(error.to_string().contains(part), "{part} is not in: {error}");
    }
}

#[tokio::test]
async fn a_line_that_is_not_json_is_shown_in_the_error() {
    let mut actor = shell("echo oops; read line");
    let error = actor.recv_matching(|_| true, TEST_TIMEOUT).await.unwrap_err();
    assert!(matches!(error, Error::Protocol { .. }), "{error}");
    assert!(error.to_string().contains("oops"), "{error}");
}

#[tokio::test]
async fn a_stopped_actor_is_silent_until_it_is_resumed() {
    let mut actor = echo();
    actor.send(&json!(1)).await.unwrap();
    assert_eq!(actor.recv(TEST_TIMEOUT).await.unwrap(), json!(1));
    actor.sigstop().unwrap();
    let stat = fs::read_to_string(format!("/proc/{}/stat", actor.pid())).unwrap();
    assert!(stat.contains(") T "), "stopped when sigstop returns: {stat}");
    actor.send(&json!(2)).await.unwrap();
    let silence = actor.recv(SILENCE_TIMEOUT).await;
    assert!(matches!(silence, Err(Error::TimedOut { .. })), "{silence:?}");
    actor.sigcont().unwrap();
    assert_eq!(actor.recv(TEST_TIMEOUT).await.unwrap(), json!(2));
}

#[tokio::test]
async fn a_busy_actor_is_stopped_when_sigstop_returns() {
    let mut actor = shell("while :; do :; done");
    let stat = format!("/proc/{}/stat", actor.pid());
    // If `sigstop` did not wait until the process has stopped, one of these rounds would find it
    // running.
    for _ in 0..200 {
        actor.sigstop().unwrap();
        let stat = fs::read_to_string(&stat).unwrap();
        assert!(stat.contains(") T "), "{stat}");
        actor.sigcont().unwrap();
    }
}

#[tokio::test]
async fn a_killed_actor_is_gone_when_sigkill_returns() {
    let mut actor = echo();
    actor.sigstop().unwrap();
    actor.sigkill().unwrap();
    assert!(!is_alive(actor.pid()));
    assert!(matches!(actor.sigstop(), Err(Error::NotRunning { .. })));
    assert!(actor.send(&json!(1)).await.is_err());
    let status = actor.wait_exit(TEST_TIMEOUT).await.unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
    actor.sigkill().unwrap();
}

#[tokio::test]
async fn a_dropped_actor_leaves_no_process_running() {
    let mut actor = shell("sleep 600 & echo $!; wait");
    let child = actor.recv(TEST_TIMEOUT).await.unwrap().as_u64().unwrap();
    let child = u32::try_from(child).unwrap();
    let pid = actor.pid();
    assert!(is_alive(child) && is_alive(pid));
    drop(actor);
    assert!(!is_alive(pid));
    assert!(!is_alive(child));
}

#[tokio::test]
async fn an_injected_line_follows_all_output_of_a_stopped_actor() {
    let mut actor = shell(r#"n=0; while :; do n=$((n+1)); echo "$n"; done"#);
    for _ in 0..3 {
        actor.recv(TEST_TIMEOUT).await.unwrap();
        actor.sigstop().unwrap();
        actor.inject_output_line(&json!("mark")).await.unwrap();
        actor.recv_matching(|line| line == "mark", TEST_TIMEOUT).await.unwrap();
        let after = actor.recv(SILENCE_TIMEOUT).await.unwrap_err();
        assert!(matches!(after, Error::TimedOut { .. }), "{after}");
        actor.sigcont().unwrap();
    }
    actor.sigkill().unwrap();
    assert!(actor.inject_output_line(&json!("mark")).await.is_err(), "it has ended");
}
