//! The command on a ZooKeeper server: after its end its claims and its sessions are gone.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use crate::common::runs::{run_with_longer_waits, run_with_output};
use crate::common::short_leases::{retry_with_longer_ttls, wait_for_file_while_held, wait_while_held};
use crate::common::{TEST_TIMEOUT, TestFolder, shared_servers};
use leasehold_testbed::{Server, eventually, zookeeper};
use rustix::process::Signal;

/// The value of a metric that the server reports with `mntr`.
async fn server_metric(server: &Server, key: &str) -> u64 {
    zookeeper::monitor_values(server.addr()).await.unwrap()[key].parse().unwrap()
}

fn zookeeper_url(server: &Server) -> String {
    format!("zookeeper://{}/cli", server.url())
}

#[tokio::test]
async fn no_nodes_remain_after_the_command_has_ended() {
    // Its own server: the test counts sessions, and those of killed processes last until their
    // timeout.
    let server = zookeeper::start().await.unwrap();
    let url = zookeeper_url(&server);
    for _ in 0..5 {
        assert_eq!(run_with_output(&["run", "--engine", &url, "job", "--", "true"]).await.0, 0);
        assert_eq!(server_metric(&server, "zk_ephemerals_count").await, 0);
        assert_eq!(run_with_output(&["run", "--engine", &url, "job", "--", "sh", "-c", "exit 7"]).await.0, 7);
        assert_eq!(server_metric(&server, "zk_ephemerals_count").await, 0);
        assert_eq!(run_with_output(&["ls", "--engine", &url]).await.0, 0);
    }
    // The sessions are closed, too, and do not wait for their timeout.
    eventually(TEST_TIMEOUT, || async {
        let sessions = server_metric(&server, "zk_global_sessions").await;
        if sessions == 0 { Ok(()) } else { Err(format!("{sessions} sessions are left")) }
    })
    .await;
}

#[tokio::test]
async fn the_command_waits_times_out_lists_force_releases_and_re_enters() {
    let server = shared_servers::zookeeper().await;
    let url = zookeeper_url(&server);
    let place = TestFolder::new();
    let held = place.start(["run", "--engine", &url, "job", "--", "cat"]);
    eventually(TEST_TIMEOUT, || async {
        let shown = run_with_output(&["show", "--engine", &url, "job", "--json"]).await.1;
        if shown.contains("\"token\"") { Ok(()) } else { Err(shown) }
    })
    .await;
    assert_eq!(run_with_output(&["run", "--engine", &url, "-n", "job", "--", "true"]).await.0, 1);
    assert_eq!(run_with_longer_waits(2.0, &["run", "--engine", &url, "-w", "{wait}", "job", "--", "true"]).await.0, 1);
    assert_eq!(server_metric(&server, "zk_ephemerals_count").await, 1, "a waiter that gave up has left the queue");
    let (code, listed) = run_with_output(&["ls", "--engine", &url]).await;
    assert!(code == 0 && listed.contains("job") && listed.contains("cat"), "{listed}");
    let (code, output) = run_with_output(&["evict", "--engine", &url, "job", "--yes"]).await;
    assert!(code == 0 && output.contains("fence token"), "{output}");
    let ended = tokio::task::spawn_blocking(move || held.wait()).await.unwrap();
    assert!(ended.stderr().contains("lost"), "{}", ended.stderr());
    let inner = format!("{} run --engine {url} -n job -- echo inside", env!("CARGO_BIN_EXE_leasehold"));
    let (code, output) = run_with_output(&["run", "--engine", &url, "job", "-c", &inner]).await;
    assert!(code == 0 && output.contains("inside"), "{output}");
}

#[tokio::test]
async fn errors_name_the_cause_and_the_remedy() {
    let server = zookeeper::ZooKeeper::new()
        .session_bounds(Duration::from_secs(4), Duration::from_secs(40))
        .start()
        .await
        .unwrap();
    let url = zookeeper_url(&server);
    let (code, output) = run_with_output(&["run", "--engine", &url, "--ttl", "2s", "job", "--", "true"]).await;
    assert!(code != 0 && output.contains("4s"), "{code}: {output}");
    let (code, output) =
        run_with_output(&["run", "--engine", "zookeeper://127.0.0.1:1", "--connect-timeout", "0", "job", "--", "true"])
            .await;
    assert!(code == 69 && output.contains("127.0.0.1:1"), "{code}: {output}");
    let secret = |login: &str| format!("zookeeper://{login}{}/secret", server.url());
    assert_eq!(run_with_output(&["run", "--engine", &secret("ann:right@"), "job", "--", "true"]).await.0, 0);
    let (code, output) = run_with_output(&["run", "--engine", &secret("ann:wrong@"), "job", "--", "true"]).await;
    assert!(
        code == 69 && output.contains("another user or password") && !output.contains("wrong@"),
        "{code}: {output}"
    );
    let (code, output) = run_with_output(&["run", "--engine", &secret(""), "job", "--", "true"]).await;
    assert!(code == 69 && output.contains("log in as user:password@"), "{code}: {output}");
    let (code, output) = run_with_output(&["run", "--engine", "zookeeper://h?sesion=own", "job", "--", "true"]).await;
    assert!(code == 64 && output.contains("session-timeout"), "{code}: {output}");
}

#[cfg(feature = "nightly")]
#[tokio::test]
async fn a_session_far_shorter_than_the_ttl_ends_no_command() {
    let sessions = (Duration::from_secs(2), Duration::from_secs(30));
    let server = zookeeper::ZooKeeper::new().session_bounds(sessions.0, sessions.1).start().await.unwrap();
    let url = zookeeper_url(&server);
    // The server's longest session, 30 s, ends long before the TTL, and before the first command's
    // grace. Both commands run to their end all the same.
    let one = ["run", "--engine", &url, "--ttl", "300s", "--grace", "140s", "job", "--", "sleep", "12"];
    let two = ["run", "--engine", &url, "--ttl", "60s", "--grace", "29s", "other", "--", "sleep", "12"];
    for (code, output) in <[_; 2]>::from(tokio::join!(run_with_output(&one), run_with_output(&two))) {
        assert_eq!((code, output.as_str()), (0, ""));
    }
}

/// Waits until the server has exactly `count` claims.
async fn wait_for_claims(server: &Server, count: u64) {
    eventually(TEST_TIMEOUT, || async {
        let there = server_metric(server, "zk_ephemerals_count").await;
        if there == count { Ok(()) } else { Err(format!("{there} claims")) }
    })
    .await;
}

#[tokio::test]
async fn a_waiter_that_is_interrupted_leaves_no_node_and_a_killed_holder_frees_the_lock() {
    let server = shared_servers::zookeeper().await;
    let url = zookeeper_url(&server);
    let place = TestFolder::new();
    let held = place.start(["run", "--engine", &url, "job", "--", "cat"]);
    wait_for_claims(&server, 1).await;
    let waiter = place.start(["run", "--engine", &url, "job", "--", "true"]);
    wait_for_claims(&server, 2).await;
    waiter.signal(Signal::INT);
    let interrupted = tokio::task::spawn_blocking(move || waiter.close_input_and_wait()).await.unwrap();
    assert_eq!(interrupted.exit_code(), 130, "{}", interrupted.stderr());
    assert_eq!(server_metric(&server, "zk_ephemerals_count").await, 1, "only the holder's node is left");
    tokio::task::spawn_blocking(move || held.close_input_and_wait().assert_ok()).await.unwrap();

    // No process releases it: it is free when the session ends.
    let killed = place.start_killed_holder(&url, "job");
    let (code, output) = run_with_output(&["run", "--engine", &url, "job", "--", "true"]).await;
    assert_eq!((code, output.as_str()), (0, ""));
    tokio::task::spawn_blocking(move || killed.close_input_and_wait()).await.unwrap();
}

/// The session of a stopped holder ends: `evict --graceful` does not report that as a release,
/// whether there is a waiter or not.
#[tokio::test]
async fn a_session_that_ends_without_a_release_is_not_reported_as_one() {
    let server = shared_servers::zookeeper().await;
    let url = zookeeper_url(&server);
    let check = move || {
        [false, true].map(|waits| retry_with_longer_ttls(|ttl| attempt_session_end_after_request(&url, waits, ttl)))
    };
    tokio::task::spawn_blocking(check).await.unwrap();
}

/// One attempt of the test, with a waiter if `waits`; `None` if the session ended before the
/// request.
fn attempt_session_end_after_request(url: &str, waits: bool, ttl: &str) -> Option<()> {
    let place = TestFolder::new();
    let show = || {
        let shown = place.run(["show", "--engine", url, "--json", "job"]).assert_ok().stdout();
        serde_json::from_str::<serde_json::Value>(&shown).unwrap()
    };
    let mut held = place.start(["run", "--engine", url, "--ttl", ttl, "job", "-c", "echo > begun; exec sleep 600"]);
    wait_for_file_while_held(&place, &mut held, "begun")?;
    let claim = wait_while_held(&mut held, "a holder", || Some(show()["holders"][0]["claim"].as_str()?.to_owned()))?;
    let waiter = waits.then(|| place.start(["run", "--engine", url, "job", "--", "true"]));
    if waiter.is_some() {
        wait_while_held(&mut held, "a waiter", || show()["waiters"][0].is_object().then_some(()))?;
    }
    held.signal(Signal::STOP);
    let evicted = place.run(["evict", "--engine", url, "--graceful", "--yes", "--claim", &claim, "job"]);
    held.signal(Signal::CONT);
    let ended = held.wait();
    if let Some(waiter) = waiter {
        waiter.wait().assert_ok();
    }
    // Exit code 1: the lease had ended, so no holder got a request.
    if evicted.exit_code() == 1 {
        return None;
    }
    let output = evicted.assert_ok().stdout();
    assert!(output.contains("no release is known") && output.contains("may still run"), "{output}");
    assert!(!output.contains("was released"), "{output}");
    ended.assert_failed(75, "");
    Some(())
}

/// A holder that releases on request is reported as released, even if it is slow.
#[tokio::test]
async fn a_release_on_request_is_reported_as_one() {
    let server = shared_servers::zookeeper().await;
    let url = zookeeper_url(&server);
    let place = TestFolder::new();
    let child = "trap 'sleep 0.2; exit 0' TERM; echo > begun; while :; do sleep 0.01; done";
    let held = place.start(["run", "--engine", &url, "--ttl", "10m", "job", "-c", child]);
    place.wait_for_file("begun");
    let (code, output) = run_with_output(&["evict", "--engine", &url, "--graceful", "--yes", "job"]).await;
    assert!(code == 0 && output.contains("job was released after"), "{code}: {output}");
    tokio::task::spawn_blocking(move || held.wait().assert_failed(75, "requests the release")).await.unwrap();
}

#[cfg(feature = "nightly")]
#[tokio::test]
async fn a_holder_that_waited_longer_than_its_ttl_keeps_the_lock() {
    let server = shared_servers::zookeeper().await;
    let url = zookeeper_url(&server);
    let place = TestFolder::new();
    let held = place.start(["run", "--engine", &url, "--ttl", "10s", "--grace", "100ms", "job", "--", "sleep", "12"]);
    eventually(TEST_TIMEOUT, || async {
        let shown = run_with_output(&["show", "--engine", &url, "job", "--json"]).await.1;
        if shown.contains("\"token\"") { Ok(()) } else { Err(shown) }
    })
    .await;
    let (code, output) =
        run_with_output(&["run", "--engine", &url, "--ttl", "10s", "--grace", "100ms", "job", "--", "sleep", "7"])
            .await;
    assert_eq!((code, output.as_str()), (0, ""));
    tokio::task::spawn_blocking(move || held.wait()).await.unwrap();
}
