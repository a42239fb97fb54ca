//! The examples of the library, as they are built, on real servers: each ends with 0, and says what it should.
//!
//! `cargo test --workspace` builds them, with every engine. With `-p leasehold-conformance` it does not: the advice of [`binary`] first.
#![allow(clippy::expect_used, reason = "a test: what fails here is the finding")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use leasehold_testbed::redis;
#[cfg(feature = "nightly")]
use leasehold_testbed::{mariadb, postgres, zookeeper};
use tokio::task::JoinSet;

const ADVICE: &str = "cargo build -p leasehold --features cache,mysql,postgres,redis,schedule,zookeeper --examples";

/// Looks at what an example has said.
type Check = fn(&str);

/// Those that any engine serves, and what they must have said.
const EXAMPLES: [(&str, Check); 4] =
    [("fenced_store", fenced_store), ("fleet_job", fleet_job), ("leader", leader), ("slots", slots)];

fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a path");
    let target = test.parent().and_then(Path::parent).expect("tests are in target/PROFILE/deps");
    let binary = target.join("examples").join(name);
    assert!(binary.is_file(), "{} is not built: {ADVICE}", binary.display());
    binary
}

/// Runs it as a reader would, and gives what it printed. One that was built without the engine says so, and that is a failure.
fn shown(name: &str, url: &str) -> String {
    let Output { status, stdout, stderr } =
        Command::new(binary(name)).args(["--engine", url]).output().expect("it starts");
    let (text, errors) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(
        status.code() == Some(0) && errors.is_empty(),
        "{name}: {status}\n{text}{errors}(if a feature is missing: {ADVICE})"
    );
    text.into_owned()
}

/// The line that begins like this, as its words after that.
fn row<'a>(text: &'a str, begin: &str) -> Vec<&'a str> {
    let rest = text.lines().find_map(|line| line.strip_prefix(begin));
    rest.unwrap_or_else(|| panic!("no line begins with {begin:?}:\n{text}")).split_whitespace().collect()
}

fn number(word: &str) -> u64 {
    word.parse().unwrap_or_else(|_| panic!("{word:?} is no number"))
}

/// The stale holder is refused by both stores; where the engine is a database, the table is there.
fn fenced_store(text: &str) {
    for store in ["the bucket", "the table"] {
        let refused = |line: &&str| line.starts_with(&format!("  slow writes 9 to {store} with token "));
        let lines: Vec<&str> = text.lines().filter(refused).collect();
        let [line] = lines[..] else { panic!("slow writes once to {store}:\n{text}") };
        assert!(line.contains(": REFUSED, token ") && line.contains(" is stale"), "{line}\n{text}");
        assert_eq!(row(text, store), ["6", "9"], "{text}");
    }
}

fn fleet_job(text: &str) {
    let scheduled = row(text, "leasehold::schedule");
    assert_eq!(scheduled[0], scheduled[1], "each tick once:\n{text}");
    assert!(number(scheduled[0]) >= 5, "{text}");
    assert_eq!(text.matches("sends the message").count() as u64, number(scheduled[0]), "{text}");
    assert_eq!(row(text, "each host by its own timer"), ["5", "40"], "{text}");
}

fn leader(text: &str) {
    let terms: Vec<Vec<&str>> = ["   1 ", "   2 ", "   3 "].map(|term| row(text, term)).into();
    let leaders: BTreeSet<&str> = terms.iter().map(|term| term[0]).collect();
    assert_eq!(leaders.len(), 3, "each led once:\n{text}");
    assert!(terms.windows(2).all(|pair| number(pair[0][1]) < number(pair[1][1])), "tokens rise:\n{text}");
    assert!(text.contains("tokens rise with every leader: true"), "{text}");
}

fn slots(text: &str) {
    assert!(text.contains("at most 3 of 12 inside at once"), "all slots are used, and no more:\n{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("worker")).count(), 24, "{text}");
}

/// All of them, at the same time.
async fn all(url: String) {
    let mut running = JoinSet::new();
    for (name, says_what_it_should) in EXAMPLES {
        let url = url.clone();
        running.spawn_blocking(move || says_what_it_should(&shown(name, &url)));
    }
    while let Some(ended) = running.join_next().await {
        ended.expect("an example that is right");
    }
}

#[tokio::test]
async fn on_redis() {
    let server = redis::start().await.expect("a Redis");
    all(server.url()).await;
}

#[cfg(feature = "nightly")]
#[tokio::test]
async fn on_zookeeper() {
    let server = zookeeper::start().await.expect("a ZooKeeper");
    all(format!("zookeeper://{}", server.addr())).await;
}

#[cfg(feature = "nightly")]
#[tokio::test]
async fn on_mariadb() {
    let server = mariadb::start().await.expect("a MariaDB");
    all(server.url()).await;
}

#[cfg(feature = "nightly")]
#[tokio::test]
async fn on_postgres() {
    let server = postgres::start().await.expect("a PostgreSQL");
    all(server.url()).await;
}
