//! Every error names the engine, its address and the lock, each once.
#![allow(clippy::unwrap_used, reason = "tests")]

use leasehold_testbed::{Server, mariadb, postgres, redis, zookeeper};

use crate::common::short_leases::{retry_with_longer_ttls, wait_for_file_while_held};
use crate::common::{CommandOutput, TestFolder};

/// An unusable engine of every kind, and the address that its errors must name: unreachable
/// servers, and a folder that cannot be created.
const UNUSABLE_ENGINES: [(&str, &str); 9] = [
    ("redis://u:hunter2@127.0.0.1:1/0", "127.0.0.1:1"),
    ("rediss://127.0.0.1:1", "127.0.0.1:1"),
    ("redis+sentinel://127.0.0.1:1/mymaster", "127.0.0.1:1"),
    ("redis+cluster://127.0.0.1:1", "127.0.0.1:1"),
    ("redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", "127.0.0.1:1"),
    ("mysql://u:hunter2@127.0.0.1:1/d", "127.0.0.1:1"),
    ("postgres://u:hunter2@127.0.0.1:1/d", "127.0.0.1:1"),
    ("zookeeper://127.0.0.1:1/locks", "127.0.0.1:1"),
    ("file:///proc/leasehold", "/proc/leasehold"),
];

/// Asserts that an error is one line that names the engine and its address once, and no password.
#[track_caller]
fn assert_names_once(output: &str, scheme: &str, address: &str) {
    let engine = scheme.split('+').next().unwrap();
    assert_eq!(output.lines().count(), 1, "{output}");
    assert!(output.contains(engine), "{engine} is not in {output:?}");
    assert!(output.contains(address), "{address} is not in {output:?}");
    assert!(output.matches(address).count() <= 1 || scheme == "redlock", "{address} more than once in {output:?}");
    assert!(!output.contains("hunter2"), "{output}");
}

/// Asserts that the command failed with such an error; returns its standard error.
#[track_caller]
fn assert_failed_naming(ran: &CommandOutput, url: &str, address: &str) -> String {
    let output = ran.stderr();
    assert_ne!(ran.exit_code(), 0, "{url}: {output}");
    assert_names_once(&output, url.split(':').next().unwrap(), address);
    output
}

#[test]
fn an_engine_that_cannot_be_used_is_named_with_its_address() {
    let place = TestFolder::new();
    for (url, address) in UNUSABLE_ENGINES {
        for args in [
            &["run", "-n", "a"][..],
            &["run", "-w", "1ms", "a"],
            &["ls"],
            &["show", "a"],
            &["evict", "--yes", "a"],
            &["cron", "status"],
        ] {
            let tail: &[&str] = if args[0] == "run" { &["--", "true"] } else { &[] };
            let engine = ["--engine", url, "--connect-timeout", "0"];
            let at = if args[0] == "cron" { 2 } else { 1 };
            let all = [&args[..at], &engine[..], &args[at..], tail].concat();
            if url.starts_with("file:") && args[0] != "run" {
                // Inspections create no folder, and there are no locks.
                continue;
            }
            let ran = place.run(&all);
            if args.contains(&"-w") && ran.stderr().contains("retrying for up to") {
                let output = ran.stderr();
                output.lines().for_each(|line| assert_names_once(line, url.split(':').next().unwrap(), address));
                continue;
            }
            assert_failed_naming(&ran, url, address);
        }
        let report = place.run(["doctor", "--engine", url]);
        assert!(
            report.stdout().contains(&url.replace("u:hunter2@", "u:***@")),
            "{}{}",
            report.stdout(),
            report.stderr()
        );
    }
}

/// The server hangs, a lock is lost, and the holder releases to a dead server: each message names
/// the lock and the engine.
async fn check_runtime_errors_name_lock_and_engine(mut server: Server, url: &str) {
    let (scheme, address) = (url.split(':').next().unwrap().to_owned(), server.addr().to_string());
    let owned_url = url.to_owned();
    let evicted = tokio::task::spawn_blocking(move || {
        let (_, ended) = TestFolder::new().start_and_evict_holder(&owned_url, "job");
        ended.assert_failed(75, "the lock job is lost on ").stderr()
    });
    assert_names_once(&evicted.await.unwrap(), &scheme, &address);
    let owned_url = url.to_owned();
    let start = move || {
        retry_with_longer_ttls(|ttl| {
            let place = TestFolder::new();
            let command = ["run", "--engine", &owned_url, "--ttl", ttl, "job", "--", "sh", "-c", "echo > ready; cat"];
            let mut held = place.start(command);
            wait_for_file_while_held(&place, &mut held, "ready")?;
            Some((place, held))
        })
    };
    let (place, held) = tokio::task::spawn_blocking(start).await.unwrap();
    server.pause().unwrap();
    let owned_url = url.to_owned();
    let (lost, hung) = tokio::task::spawn_blocking(move || {
        let hung =
            place.run(["ls", "--engine", &owned_url, "--connect-timeout", "300ms"]).assert_failed(69, "").stderr();
        (held.wait().stderr(), hung)
    })
    .await
    .unwrap();
    hung.lines().for_each(|line| assert_names_once(line, &scheme, &address));
    assert!(!lost.is_empty());
    lost.lines().for_each(|line| assert_names_once(line, &scheme, &address));
    assert!(lost.contains("the lock job is lost on "), "{lost}");
}

#[tokio::test]
async fn redis_names_lock_and_engine() {
    let server = redis::start().await.unwrap();
    let url = server.url();
    check_runtime_errors_name_lock_and_engine(server, &url).await;
}

#[tokio::test]
async fn mariadb_names_lock_and_engine() {
    let server = mariadb::start().await.unwrap();
    let url = server.url();
    check_runtime_errors_name_lock_and_engine(server, &url).await;
}

#[tokio::test]
async fn postgres_names_lock_and_engine() {
    let server = postgres::start().await.unwrap();
    let url = server.url();
    check_runtime_errors_name_lock_and_engine(server, &url).await;
}

#[tokio::test]
async fn zookeeper_names_lock_and_engine() {
    let server = zookeeper::start().await.unwrap();
    let url = format!("zookeeper://{}/cli", server.url());
    check_runtime_errors_name_lock_and_engine(server, &url).await;
}

/// A service that waits for more input, as an HTTP server does: neither side sends anything more.
#[test]
fn a_service_that_does_not_answer_may_be_another_one() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || listener.incoming().collect::<Vec<_>>());
    let place = TestFolder::new();
    for (scheme, product) in [("zookeeper", "ZooKeeper"), ("mysql", "MySQL or MariaDB"), ("postgres", "PostgreSQL")] {
        let url = if scheme == "zookeeper" {
            format!("zookeeper://{address}")
        } else {
            format!("{scheme}://u:hunter2@{address}/d")
        };
        for (option, bound) in [("", "500ms"), ("?connect-timeout=200ms", "600ms")] {
            let url = format!("{url}{option}");
            let ran = place
                .run(["run", "--engine", &url, "--connect-timeout", bound, "a", "--", "true"])
                .assert_failed(69, &address);
            let output = ran.stderr().lines().last().unwrap().to_owned();
            assert_names_once(&output, scheme, &address);
            assert!(output.contains(&format!("another service than {product}")), "{output}");
        }
    }
}
