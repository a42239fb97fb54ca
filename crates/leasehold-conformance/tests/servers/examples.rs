//! Runs the library's examples on real servers: each exits with status 0 and prints the expected
//! output.
//!
//! `cargo test --workspace` builds them. With `-p leasehold-conformance`, run [`BUILD_COMMAND`]
//! first.
#![allow(clippy::expect_used, reason = "tests report failures by panicking")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use leasehold_testbed::redis;
#[cfg(feature = "nightly")]
use leasehold_testbed::{mariadb, postgres, zookeeper};
use tokio::task::JoinSet;

const BUILD_COMMAND: &str = "cargo build -p leasehold-examples";

/// Checks what an example printed.
type OutputCheck = fn(&str);

/// Examples that every engine supports, with their output checks.
const EXAMPLES: [(&str, OutputCheck); 4] = [
    ("fenced_store", check_fenced_store),
    ("fleet_job", check_fleet_job),
    ("leader", check_leader),
    ("slots", check_slots),
];

fn example_path(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a path");
    let target = test.parent().and_then(Path::parent).expect("the test binary is in target/PROFILE/deps");
    let binary = target.join(name);
    assert!(binary.is_file(), "{} is not built: {BUILD_COMMAND}", binary.display());
    binary
}

/// Runs an example and returns what it printed.
fn run_example(name: &str, url: &str) -> String {
    let Output { status, stdout, stderr } =
        Command::new(example_path(name)).args(["--engine", url]).output().expect("the example starts");
    let (text, errors) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.code() == Some(0) && errors.is_empty(), "{name}: {status}\n{text}{errors}");
    text.into_owned()
}

/// The words that follow this prefix, from the line that starts with it.
fn row_after<'a>(text: &'a str, begin: &str) -> Vec<&'a str> {
    let rest = text.lines().find_map(|line| line.strip_prefix(begin));
    rest.unwrap_or_else(|| panic!("no line begins with {begin:?}:\n{text}")).split_whitespace().collect()
}

fn parse_number(word: &str) -> u64 {
    word.parse().unwrap_or_else(|_| panic!("{word:?} is not a number"))
}

/// Both stores reject the stale holder. On a database engine, the table is in that database.
fn check_fenced_store(text: &str) {
    for store in ["the bucket", "the table"] {
        let refused = |line: &&str| line.starts_with(&format!("  slow writes 9 to {store} with token "));
        let lines: Vec<&str> = text.lines().filter(refused).collect();
        let [line] = lines[..] else { panic!("slow writes once to {store}:\n{text}") };
        assert!(line.contains(": REFUSED, token ") && line.contains(" is stale"), "{line}\n{text}");
        assert_eq!(row_after(text, store), ["6", "9"], "{text}");
    }
}

fn check_fleet_job(text: &str) {
    let scheduled = row_after(text, "leasehold_schedule");
    assert_eq!(scheduled[0], scheduled[1], "each tick runs once:\n{text}");
    assert!(parse_number(scheduled[0]) >= 5, "{text}");
    assert_eq!(text.matches("sends the message").count() as u64, parse_number(scheduled[0]), "{text}");
    assert_eq!(row_after(text, "each host by its own timer"), ["5", "40"], "{text}");
}

fn check_leader(text: &str) {
    let terms: Vec<Vec<&str>> = ["   1 ", "   2 ", "   3 "].map(|term| row_after(text, term)).into();
    let leaders: BTreeSet<&str> = terms.iter().map(|term| term[0]).collect();
    assert_eq!(leaders.len(), 3, "each host led once:\n{text}");
    assert!(terms.windows(2).all(|pair| parse_number(pair[0][1]) < parse_number(pair[1][1])), "tokens rise:\n{text}");
    assert!(text.contains("tokens rise with every leader: true"), "{text}");
}

fn check_slots(text: &str) {
    assert!(text.contains("at most 3 of 12 inside at once"), "all slots are used, and never more:\n{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("worker")).count(), 24, "{text}");
}

/// Runs all examples concurrently.
async fn run_all(url: String) {
    let mut running = JoinSet::new();
    for (name, check_output) in EXAMPLES {
        let url = url.clone();
        running.spawn_blocking(move || check_output(&run_example(name, &url)));
    }
    while let Some(ended) = running.join_next().await {
        ended.expect("an example with the expected output");
    }
}

#[tokio::test]
async fn on_redis() {
    let server = redis::start().await.expect("a Redis");
    run_all(server.url()).await;
}

#[cfg(feature = "nightly")]
#[tokio::test]
async fn on_zookeeper() {
    let server = zookeeper::start().await.expect("a ZooKeeper");
    run_all(format!("zookeeper://{}", server.addr())).await;
}

#[cfg(feature = "nightly")]
#[tokio::test]
async fn on_mariadb() {
    let server = mariadb::start().await.expect("a MariaDB");
    run_all(server.url()).await;
}

#[cfg(feature = "nightly")]
#[tokio::test]
async fn on_postgres() {
    let server = postgres::start().await.expect("a PostgreSQL");
    run_all(server.url()).await;
}
