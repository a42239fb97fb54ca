//! The command on five servers: after its end, no server keeps any of its data.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::{LONG_TTL, TEST_TIMEOUT, TestFolder};
use leasehold_internals::redis::Stored;
use leasehold_internals::redlock::wire::NodeLock;
use leasehold_testbed::redis::{IndependentServers, RespClient};

/// How many claims each server has for a lock.
async fn claim_counts(servers: &IndependentServers, name: &str) -> Vec<usize> {
    let mut counts = Vec::new();
    for server in servers.servers() {
        let mut client = RespClient::connect(server.addr()).await.unwrap();
        let reply = client.command(&["GET", &format!("leasehold:q{name}")]).await.unwrap();
        let lock = reply.bytes().map(|stored| NodeLock::read(stored).unwrap());
        counts.push(lock.map_or(0, |lock| lock.stored_votes().unwrap().len()));
    }
    counts
}

/// The servers' URL with a long timeout: no response is late, even on a busy machine.
fn url_with_long_timeout(servers: &IndependentServers) -> String {
    format!("{}?node-timeout=30s", servers.url())
}

/// Runs `leasehold run` with these arguments to its end; returns its exit code.
async fn run_to_exit_code(url: &str, arguments: &[&str]) -> i32 {
    let arguments: Vec<_> =
        ["run", "--engine", url, "--ttl", LONG_TTL].iter().chain(arguments).map(ToString::to_string).collect();
    tokio::task::spawn_blocking(move || TestFolder::new().run(arguments).exit_code()).await.unwrap()
}

#[tokio::test]
async fn no_server_keeps_data_after_the_command_has_ended() {
    let servers = IndependentServers::start(5).await.unwrap();
    let url = url_with_long_timeout(&servers);
    for round in 0..10 {
        assert_eq!(run_to_exit_code(&url, &["job", "--", "true"]).await, 0);
        // The claims are gone when the command has ended, not a moment later.
        assert_eq!(claim_counts(&servers, "job").await, [0; 5], "round {round}");
        assert_eq!(run_to_exit_code(&url, &["job", "--", "sh", "-c", "exit 7"]).await, 7);
        assert_eq!(claim_counts(&servers, "job").await, [0; 5], "round {round}");
    }
}

#[tokio::test]
async fn a_failed_acquisition_leaves_no_claim_and_removes_none() {
    let servers = IndependentServers::start(5).await.unwrap();
    let url = url_with_long_timeout(&servers);
    let place = TestFolder::new();
    let held = place.start(["run", "--engine", &url, "job", "--", "cat"]);
    leasehold_testbed::eventually(TEST_TIMEOUT, || async {
        let seen = claim_counts(&servers, "job").await;
        if seen == [1; 5] { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;
    for round in 0..5 {
        assert_eq!(run_to_exit_code(&url, &["-n", "job", "--", "true"]).await, 1, "round {round}");
        assert_eq!(claim_counts(&servers, "job").await, [1; 5], "round {round}: only the holder's");
        assert_ne!(run_to_exit_code(&url, &["-w", "300ms", "job", "--", "true"]).await, 0, "round {round}");
        assert_eq!(claim_counts(&servers, "job").await, [1; 5], "round {round}: only the holder's");
    }
    tokio::task::spawn_blocking(move || held.close_input_and_wait()).await.unwrap();
    assert_eq!(claim_counts(&servers, "job").await, [0; 5]);
    assert_eq!(run_to_exit_code(&url, &["-n", "job", "--", "true"]).await, 0);
    assert_eq!(claim_counts(&servers, "job").await, [0; 5]);
}

/// The timeout for the lock also limits the wait for hanging servers.
#[tokio::test]
async fn the_wait_limit_covers_connecting_too() {
    let mut servers = IndependentServers::start(3).await.unwrap();
    for at in [0, 1] {
        servers.server_mut(at).pause().unwrap();
    }
    let url = format!("{}?connect-timeout=600s", servers.url());
    let run = move || {
        let ran = TestFolder::new().run(["run", "--engine", &url, "-w", "1", "job", "--", "true"]);
        (ran.exit_code(), ran.stderr())
    };
    let ended = tokio::time::timeout(TEST_TIMEOUT, tokio::task::spawn_blocking(run)).await;
    let (code, output) = ended.expect("the end at the wait limit, long before connect-timeout").unwrap();
    assert_eq!(code, 69, "{output}");
    assert!(output.contains("could not be reached within 1s"), "{output}");
}

/// With too few servers to survive a failure, the command prints a warning, and runs. An even
/// number of servers needs `even=allowed`.
#[tokio::test]
async fn too_few_servers_cause_a_warning() {
    let servers = IndependentServers::start(2).await.unwrap();
    let both = servers.url();
    let one = both.split(',').next().unwrap().to_owned();
    for (url, code, message) in [
        (one, 0, "warning: fewer than three nodes"),
        (format!("{both}?even=allowed"), 0, "warning: fewer than three nodes"),
        (both, 64, "even=allowed"),
    ] {
        let run = move || {
            let ran = TestFolder::new().run(["run", "--engine", &url, "job", "--", "true"]);
            (ran.exit_code(), ran.stderr())
        };
        let (ended, output) = tokio::task::spawn_blocking(run).await.unwrap();
        assert_eq!(ended, code, "{output}");
        assert!(output.contains(message), "{output}");
    }
}
