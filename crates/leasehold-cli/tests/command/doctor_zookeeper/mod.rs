//! `doctor` on ZooKeeper: real servers, alone and as ensembles, configured well and badly.
#![allow(clippy::unwrap_used, reason = "tests")]

#[cfg(feature = "nightly")]
mod ensemble;

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::doctor_report::{
    assert_finding, checks_at_level, doctor_report, doctor_report_with, findings_of, run_doctor,
};
use crate::common::{TEST_TIMEOUT, TestFolder, shared_servers};
use leasehold_testbed::zookeeper::{ZooKeeper, classpath};
use leasehold_testbed::{Server, eventually};
use serde_json::Value;

/// The login in the servers' URLs.
const LOGIN: &str = "ann:opensesame@";

/// A server with durable writes, as it should be.
fn durable_zookeeper() -> ZooKeeper {
    ZooKeeper::new().fsync()
}

fn zookeeper_url(login: &str, hosts: &str) -> String {
    format!("zookeeper://{login}{hosts}")
}

/// The text of this part of a finding: `found`, `means`, `fix` or `subject`.
fn text_of<'a>(finding: &'a Value, part: &str) -> &'a str {
    finding[part].as_str().unwrap()
}

/// The checks with warnings, except those about how slow this machine is.
fn warnings(report: &Value) -> Vec<String> {
    let mut all = checks_at_level(report, "warn");
    all.retain(|check| {
        let slow = ["latency", "load", "write-trip", "round-trip"].contains(&check.as_str());
        !slow && (check != "fsync" || text_of(findings_of(report, check)[0], "fix").contains("forceSync"))
    });
    all.dedup();
    all
}

/// Runs commands in zkCli, ZooKeeper's own tool; returns its output.
async fn run_zookeeper_cli(server: &Server, commands: &[&str]) -> String {
    let addr = server.addr().to_string();
    let mut command = Command::new("java");
    command.args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=off", "-cp", &classpath()]);
    command.args(["org.apache.zookeeper.ZooKeeperMain", "-server", &addr]);
    let words = format!("{}\nquit\n", commands.join("\n"));
    let talk = move || {
        let mut tool = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        tool.stdin.take().unwrap().write_all(words.as_bytes()).unwrap();
        tool.wait_with_output().unwrap()
    };
    let output = tokio::task::spawn_blocking(talk).await.unwrap();
    assert!(output.status.success(), "{commands:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs `leasehold` with these arguments to its end.
async fn run_leasehold(args: &[&str]) -> crate::common::CommandOutput {
    let args: Vec<_> = args.iter().map(|&word| word.to_owned()).collect();
    tokio::task::spawn_blocking(move || TestFolder::new().run(args)).await.unwrap()
}

#[tokio::test]
async fn a_standalone_server_tolerates_no_failure_and_reports_only_whitelisted_facts() {
    let server = ZooKeeper::new().setting("4lw.commands.whitelist", "srvr").start().await.unwrap();
    let (code, quiet) = doctor_report(&zookeeper_url("", &server.url())).await;
    assert_eq!((code, warnings(&quiet)), (1, vec!["ensemble".to_owned(), "acl".into()]), "{quiet:#}");
    assert!(text_of(assert_finding(&quiet, "ensemble", "warn"), "found").contains("standalone"));
    for check in ["fsync", "data-set", "disk", "connections"] {
        let finding = assert_finding(&quiet, check, "unknown");
        assert!(text_of(finding, "fix").contains("4lw.commands.whitelist=srvr,mntr,conf"), "{finding}");
    }
    let text = run_doctor(&zookeeper_url("", &server.url()), &[]).await.stdout();
    assert!(text.starts_with("LEVEL") && text.contains("locks work; see the warnings"), "{text}");

    let mute = ZooKeeper::new().setting("maxClientCnxns", "7").start().await.unwrap();
    let (_, limited) = doctor_report(&format!("{}?session=own", zookeeper_url("", &mute.url()))).await;
    assert!(text_of(assert_finding(&limited, "connections", "warn"), "found").contains("maxClientCnxns is 7"));
    // The testbed's servers do not wait for their disks.
    assert!(text_of(assert_finding(&limited, "fsync", "warn"), "fix").contains("forceSync=yes"), "{limited:#}");
}

#[tokio::test]
async fn world_writable_nodes_and_missing_permissions_are_found() {
    let server = shared_servers::well_configured_zookeeper().await;
    let (open, with_login) = (zookeeper_url("", &server.url()), zookeeper_url(LOGIN, &server.url()));
    let (others, own) = (format!("{open}/everybody"), format!("{with_login}/everybody"));
    run_leasehold(&["run", "--engine", &own, "mine", "--", "true"]).await.assert_ok();
    let (_, closed) = doctor_report(&own).await;
    assert_finding(&closed, "acl", "ok");
    assert_finding(&closed, "acl-enforced", "ok");
    let (code, refused) = doctor_report(&others).await;
    assert_eq!(code, 2);
    let finding = assert_finding(&refused, "lock-nodes", "fail");
    assert!(text_of(finding, "found").contains("not authorized"), "{finding}");
    assert!(text_of(finding, "fix").contains("user:password@host"), "{finding}");

    let shared = format!("{open}/shared");
    run_leasehold(&["run", "--engine", &shared, "all", "--", "true"]).await.assert_ok();
    let (code, world) = doctor_report(&shared).await;
    assert_eq!(code, 1);
    let finding = assert_finding(&world, "acl", "warn");
    assert!(text_of(finding, "found").contains("/shared (cdwa)"), "{finding}");
    assert!(findings_of(&world, "acl-enforced").is_empty(), "there are no permissions to enforce");
    let (_, readable) = doctor_report(&format!("{with_login}/readable?acl=readable")).await;
    assert_finding(&readable, "acl", "ok");

    let known = durable_zookeeper().user("ann", "opensesame").start().await.unwrap();
    let (_, well) = doctor_report(&format!("{}?auth=sasl", zookeeper_url(LOGIN, &known.url()))).await;
    assert_finding(&well, "acl-enforced", "ok");
    let (code, wrong) = doctor_report(&format!("{}?auth=sasl", zookeeper_url("ann:hunter2@", &known.url()))).await;
    assert_eq!((code, checks_at_level(&wrong, "fail")), (2, vec!["login".to_owned()]), "{wrong:#}");
    assert!(!wrong.to_string().contains("hunter2"));

    let careless = durable_zookeeper().property("zookeeper.skipACL", "yes").start().await.unwrap();
    let (code, skipped) = doctor_report(&zookeeper_url(LOGIN, &careless.url())).await;
    assert_eq!(code, 2);
    assert!(text_of(assert_finding(&skipped, "acl-enforced", "fail"), "fix").contains("skipACL=no"));
}

#[tokio::test]
async fn claims_without_a_session_block_their_lock_until_a_force_release() {
    let server = shared_servers::well_configured_zookeeper().await;
    let url = zookeeper_url("", &format!("{}/claims", server.url()));
    let claim = format!("1-{:032x}-x-0-0-0000000000", 7);
    let paths =
        ["/claims", "/claims/a", "/claims/b", &format!("/claims/a/{claim}"), "/claims/b/lock-1", "/claims/b/2-newer"];
    let create: Vec<_> = paths.iter().map(|path| format!("create {path}")).collect();
    run_zookeeper_cli(&server, &create.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let (code, orphans) = doctor_report(&url).await;
    assert_eq!(code, 2);
    let finding = assert_finding(&orphans, "orphans", "fail");
    assert!(text_of(finding, "found").contains(&format!("1 claim (/claims/a/{claim})")), "{finding}");
    let finding = assert_finding(&orphans, "foreign-nodes", "warn");
    assert!(text_of(finding, "found").contains("/claims/b/lock-1"), "{finding}");
    let finding = assert_finding(&orphans, "node-formats", "fail");
    assert!(text_of(finding, "found").contains("/claims/b/2-newer"), "{finding}");
    run_leasehold(&["run", "--engine", &url, "-n", "a", "--", "true"]).await.assert_failed(1, "");
    // The printed remedy works.
    run_leasehold(&["evict", "--engine", &url, "--yes", "a"]).await.assert_ok();
    run_leasehold(&["run", "--engine", &url, "-n", "a", "--", "true"]).await.assert_ok();
    let (_, mended) = doctor_report(&url).await;
    assert!(findings_of(&mended, "orphans").iter().all(|finding| finding["level"] == "ok"), "{mended:#}");
}

#[tokio::test]
async fn sessions_that_are_too_short_or_too_long_are_found() {
    let second = Duration::from_secs(1);
    let server = durable_zookeeper().tick(second).session_bounds(second * 3, second * 20).start().await.unwrap();
    let url = zookeeper_url(LOGIN, &server.url());
    let (code, short) = doctor_report_with(&url, &["--ttl", "2s"]).await;
    assert_eq!(code, 2);
    let finding = assert_finding(&short, "session-timeout", "fail");
    assert!(text_of(finding, "fix").contains("a TTL of 3 s or more"), "{finding}");
    // Exactly the limit at which a lock is refused.
    run_leasehold(&["run", "--engine", &url, "--ttl", "2s", "a", "--", "true"]).await.assert_failed(64, "");
    let (_, long) = doctor_report_with(&url, &["--ttl", "2m"]).await;
    assert!(text_of(assert_finding(&long, "session-timeout", "ok"), "found").contains("longest session is 20 s"));
    let (_, shorter) = doctor_report_with(&format!("{url}?session-timeout=10s"), &["--ttl", "5s"]).await;
    assert!(text_of(assert_finding(&shorter, "session-timeout", "fail"), "found").contains("session-timeout=10 s"));
}

#[tokio::test]
async fn unrelated_servers_are_not_an_ensemble() {
    let (one, other) = (shared_servers::well_configured_zookeeper().await, shared_servers::zookeeper().await);
    let (code, apart) = doctor_report(&zookeeper_url(LOGIN, &format!("{},{}", one.addr(), other.addr()))).await;
    assert_eq!(code, 2);
    assert!(
        text_of(assert_finding(&apart, "same-ensemble", "fail"), "means").contains("two clients may hold one lock")
    );
    assert_finding(&apart, "same-server", "ok");
    let (_, twice) = doctor_report(&zookeeper_url(LOGIN, &format!("{},localhost:{}", one.addr(), one.port()))).await;
    assert_finding(&twice, "same-ensemble", "ok");
    assert_finding(&twice, "same-server", "warn");
}

#[tokio::test]
async fn over_tls_four_letter_words_are_unknown_and_sessions_suffice() {
    let tls = durable_zookeeper().tls().start().await.unwrap();
    let url = format!("zookeeper://{LOGIN}{}?ca={}", tls.server.addr(), tls.ca.display());
    // A server's first TLS handshake takes long on a busy machine: then the test retries.
    let (code, report) = eventually(TEST_TIMEOUT, || async {
        let (code, report) = doctor_report(&url).await;
        if checks_at_level(&report, "warn").iter().any(|check| check == "reachable") {
            Err(format!("{report:#}"))
        } else {
            Ok((code, report))
        }
    })
    .await;
    assert_eq!((code, checks_at_level(&report, "fail")), (1, vec![]), "{report:#}");
    for check in ["version", "fsync", "data-set", "disk", "connections", "tick-time"] {
        assert!(text_of(assert_finding(&report, check, "unknown"), "found").contains("TLS"), "{check}: {report:#}");
    }
    for check in ["reachable", "lock-nodes", "acl", "acl-enforced", "session-timeout", "clock", "orphans"] {
        assert_finding(&report, check, "ok");
    }
}

#[tokio::test]
async fn an_unreachable_ensemble_is_a_finding_and_a_bad_url_an_error() {
    let mut server = ZooKeeper::new().start().await.unwrap();
    let url = zookeeper_url("", &server.url());
    server.kill().unwrap();
    let (code, report) = doctor_report(&url).await;
    assert_eq!(
        (code, checks_at_level(&report, "fail")),
        (2, vec!["quorum".to_owned(), "reachable".into()]),
        "{report:#}"
    );
    for (url, message) in [
        ("zookeeper://h?acl=creator", "user:password@host"),
        ("zookeeper://h?session=mine", "`own`"),
        ("zookeeper://127.0.0.1:1?ca=/no/such.pem", "/no/such.pem"),
    ] {
        run_doctor(url, &[]).await.assert_failed(64, message);
    }
}
