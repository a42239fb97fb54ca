//! `doctor` on ZooKeeper: real servers, alone and as ensembles, configured well and badly.
#![allow(clippy::unwrap_used, reason = "tests")]

#[cfg(feature = "nightly")]
mod ensemble;

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::examined::{checks, examine, found, of, report, report_with};
use crate::common::{BOUND, Place, servers};
use leasehold_testbed::zookeeper::{ZooKeeper, classpath};
use leasehold_testbed::{Server, eventually};
use serde_json::Value;

/// The login in the URL.
const ANN: &str = "ann:opensesame@";

/// A server with durable writes, as it should be.
fn durable() -> ZooKeeper {
    ZooKeeper::new().sync()
}

fn url(login: &str, hosts: &str) -> String {
    format!("zookeeper://{login}{hosts}")
}

fn says<'a>(finding: &'a Value, part: &str) -> &'a str {
    finding[part].as_str().unwrap()
}

/// The warnings, except those about how slow this machine is.
fn warnings(report: &Value) -> Vec<String> {
    let mut all = checks(report, "warn");
    all.retain(|check| {
        let slow = ["latency", "load", "write-trip", "round-trip"].contains(&check.as_str());
        !slow && (check != "fsync" || says(of(report, check)[0], "fix").contains("forceSync"))
    });
    all.dedup();
    all
}

/// The output of ZooKeeper's own tool.
async fn cli(server: &Server, commands: &[&str]) -> String {
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

/// `leasehold` with these arguments.
async fn leasehold(args: &[&str]) -> crate::common::Ran {
    let args: Vec<_> = args.iter().map(|&word| word.to_owned()).collect();
    tokio::task::spawn_blocking(move || Place::new().run(args)).await.unwrap()
}

#[tokio::test]
async fn one_server_alone_survives_nothing_and_tells_only_what_it_is_allowed_to() {
    let server = ZooKeeper::new().setting("4lw.commands.whitelist", "srvr").start().await.unwrap();
    let (code, quiet) = report(&url("", &server.url())).await;
    assert_eq!((code, warnings(&quiet)), (1, vec!["ensemble".to_owned(), "acl".into()]), "{quiet:#}");
    assert!(says(found(&quiet, "ensemble", "warn"), "found").contains("standalone"));
    for check in ["fsync", "data-set", "disk", "connections"] {
        let finding = found(&quiet, check, "unknown");
        assert!(says(finding, "fix").contains("4lw.commands.whitelist=srvr,mntr,conf"), "{finding}");
    }
    let text = examine(&url("", &server.url()), &[]).await.out();
    assert!(text.starts_with("LEVEL") && text.contains("locks work; see the warnings"), "{text}");

    let mute = ZooKeeper::new().setting("maxClientCnxns", "7").start().await.unwrap();
    let (_, told) = report(&format!("{}?session=own", url("", &mute.url()))).await;
    assert!(says(found(&told, "connections", "warn"), "found").contains("maxClientCnxns is 7"));
    // The testbed's servers do not wait for their disks.
    assert!(says(found(&told, "fsync", "warn"), "fix").contains("forceSync=yes"), "{told:#}");
}

#[tokio::test]
async fn what_everybody_may_delete_and_who_may_not_take_locks() {
    let server = servers::fit_zookeeper().await;
    let (open, ours) = (url("", &server.url()), url(ANN, &server.url()));
    let (others, own) = (format!("{open}/everybody"), format!("{ours}/everybody"));
    leasehold(&["run", "--engine", &own, "mine", "--", "true"]).await.ok();
    let (_, closed) = report(&own).await;
    found(&closed, "acl", "ok");
    found(&closed, "acl-enforced", "ok");
    let (code, refused) = report(&others).await;
    assert_eq!(code, 2);
    let finding = found(&refused, "lock-nodes", "fail");
    assert!(says(finding, "found").contains("not authorized"), "{finding}");
    assert!(says(finding, "fix").contains("user:password@host"), "{finding}");

    let shared = format!("{open}/shared");
    leasehold(&["run", "--engine", &shared, "all", "--", "true"]).await.ok();
    let (code, world) = report(&shared).await;
    assert_eq!(code, 1);
    let finding = found(&world, "acl", "warn");
    assert!(says(finding, "found").contains("/shared (cdwa)"), "{finding}");
    assert!(of(&world, "acl-enforced").is_empty(), "there is nothing to keep");
    let (_, readable) = report(&format!("{ours}/readable?acl=readable")).await;
    found(&readable, "acl", "ok");

    let known = durable().user("ann", "opensesame").start().await.unwrap();
    let (_, well) = report(&format!("{}?auth=sasl", url(ANN, &known.url()))).await;
    found(&well, "acl-enforced", "ok");
    let (code, wrong) = report(&format!("{}?auth=sasl", url("ann:hunter2@", &known.url()))).await;
    assert_eq!((code, checks(&wrong, "fail")), (2, vec!["login".to_owned()]), "{wrong:#}");
    assert!(!wrong.to_string().contains("hunter2"));

    let careless = durable().property("zookeeper.skipACL", "yes").start().await.unwrap();
    let (code, skipped) = report(&url(ANN, &careless.url())).await;
    assert_eq!(code, 2);
    assert!(says(found(&skipped, "acl-enforced", "fail"), "fix").contains("skipACL=no"));
}

#[tokio::test]
async fn claims_without_a_session_block_their_lock_until_they_are_evicted() {
    let server = servers::fit_zookeeper().await;
    let url = url("", &format!("{}/claims", server.url()));
    let claim = format!("{:032x}-x-0-0-0000000000", 7);
    let paths = ["/claims", "/claims/a", "/claims/b", &format!("/claims/a/{claim}"), "/claims/b/lock-1"];
    let create: Vec<_> = paths.iter().map(|path| format!("create {path}")).collect();
    cli(&server, &create.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let (code, orphans) = report(&url).await;
    assert_eq!(code, 2);
    let finding = found(&orphans, "orphans", "fail");
    assert!(says(finding, "found").contains(&format!("1 claim (/claims/a/{claim})")), "{finding}");
    let finding = found(&orphans, "foreign-nodes", "warn");
    assert!(says(finding, "found").contains("/claims/b/lock-1"), "{finding}");
    leasehold(&["run", "--engine", &url, "-n", "a", "--", "true"]).await.failed(1, "");
    // The printed remedy works.
    leasehold(&["evict", "--engine", &url, "--yes", "a"]).await.ok();
    leasehold(&["run", "--engine", &url, "-n", "a", "--", "true"]).await.ok();
    let (_, mended) = report(&url).await;
    assert!(of(&mended, "orphans").iter().all(|finding| finding["level"] == "ok"), "{mended:#}");
}

#[tokio::test]
async fn sessions_that_are_too_short_or_too_long() {
    let second = Duration::from_secs(1);
    let server = durable().tick(second).sessions(second * 3, second * 20).start().await.unwrap();
    let url = url(ANN, &server.url());
    let (code, short) = report_with(&url, &["--ttl", "2s"]).await;
    assert_eq!(code, 2);
    let finding = found(&short, "session-timeout", "fail");
    assert!(says(finding, "fix").contains("a TTL of 3 s or more"), "{finding}");
    // Exactly the limit at which a lock is refused.
    leasehold(&["run", "--engine", &url, "--ttl", "2s", "a", "--", "true"]).await.failed(64, "");
    let (_, long) = report_with(&url, &["--ttl", "2m"]).await;
    assert!(says(found(&long, "session-timeout", "ok"), "found").contains("longest session is 20 s"));
    let (_, shorter) = report_with(&format!("{url}?session-timeout=10s"), &["--ttl", "5s"]).await;
    assert!(says(found(&shorter, "session-timeout", "fail"), "found").contains("session-timeout=10 s"));
}

#[tokio::test]
async fn servers_that_do_not_know_of_each_other_are_no_ensemble() {
    let (one, other) = (servers::fit_zookeeper().await, servers::zookeeper().await);
    let (code, apart) = report(&url(ANN, &format!("{},{}", one.addr(), other.addr()))).await;
    assert_eq!(code, 2);
    assert!(says(found(&apart, "same-ensemble", "fail"), "means").contains("two may hold one lock"));
    found(&apart, "same-server", "ok");
    let (_, twice) = report(&url(ANN, &format!("{},localhost:{}", one.addr(), one.port()))).await;
    found(&twice, "same-ensemble", "ok");
    found(&twice, "same-server", "warn");
}

#[tokio::test]
async fn over_tls_there_are_no_words_but_sessions_tell_enough() {
    let tls = durable().tls().start().await.unwrap();
    let url = format!("zookeeper://{ANN}{}?ca={}", tls.server.addr(), tls.ca.display());
    // A server's first TLS handshake takes long on a busy machine: then the test retries.
    let (code, report) = eventually(BOUND, || async {
        let (code, report) = report(&url).await;
        if checks(&report, "warn").iter().any(|check| check == "reachable") {
            Err(format!("{report:#}"))
        } else {
            Ok((code, report))
        }
    })
    .await;
    assert_eq!((code, checks(&report, "fail")), (1, vec![]), "{report:#}");
    for check in ["version", "fsync", "data-set", "disk", "connections", "tick-time"] {
        assert!(says(found(&report, check, "unknown"), "found").contains("TLS"), "{check}: {report:#}");
    }
    for check in ["reachable", "lock-nodes", "acl", "acl-enforced", "session-timeout", "clock", "orphans"] {
        found(&report, check, "ok");
    }
}

#[tokio::test]
async fn nobody_there_is_a_finding_and_a_bad_url_is_an_error() {
    let mut server = ZooKeeper::new().start().await.unwrap();
    let url = url("", &server.url());
    server.kill().unwrap();
    let (code, report) = report(&url).await;
    assert_eq!((code, checks(&report, "fail")), (2, vec!["quorum".to_owned(), "reachable".into()]), "{report:#}");
    for (url, says) in [
        ("zookeeper://h?acl=creator", "user:password@host"),
        ("zookeeper://h?session=mine", "`own`"),
        ("zookeeper://127.0.0.1:1?ca=/no/such.pem", "/no/such.pem"),
    ] {
        examine(url, &[]).await.failed(64, says);
    }
}
