//! `doctor` on ZooKeeper: real servers, alone, as ensembles, and as they should not be.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::process::Command;
use std::time::Duration;

use crate::common::Place;
use crate::common::examined::{checks, examine, found, of, report, report_with};
use leasehold_testbed::zookeeper::{self, CLASSPATH, Ensemble, ZooKeeper};
use leasehold_testbed::{Server, eventually};
use serde_json::Value;

/// Who logs in.
const ANN: &str = "ann:opensesame@";

/// One that waits for its disk, as it should.
fn durable() -> ZooKeeper {
    ZooKeeper::new().sync()
}

fn url(login: &str, hosts: &str) -> String {
    format!("zookeeper://{login}{hosts}")
}

fn says<'a>(finding: &'a Value, part: &str) -> &'a str {
    finding[part].as_str().unwrap()
}

/// The servers of which a check came out so.
fn subjects(report: &Value, check: &str, level: &str) -> Vec<String> {
    let all = of(report, check).into_iter().filter(|finding| finding["level"] == level);
    all.map(|finding| says(finding, "subject").to_owned()).collect()
}

/// The warnings, but for those about how slow this machine is.
fn warnings(report: &Value) -> Vec<String> {
    let mut all = checks(report, "warn");
    all.retain(|check| {
        let slow = ["latency", "load", "write-trip", "round-trip"].contains(&check.as_str());
        !slow && (check != "fsync" || says(of(report, check)[0], "fix").contains("forceSync"))
    });
    all.dedup();
    all
}

/// What ZooKeeper's own tool says to a command.
async fn cli(server: &Server, words: &[&str]) -> String {
    let addr = server.addr().to_string();
    let mut command = Command::new("java");
    command.args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=off", "-cp", CLASSPATH]);
    command.args(["org.apache.zookeeper.ZooKeeperMain", "-server", &addr]).args(words);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// `leasehold` with these arguments.
async fn leasehold(args: &[&str]) -> crate::common::Ran {
    let args: Vec<_> = args.iter().map(|&word| word.to_owned()).collect();
    tokio::task::spawn_blocking(move || Place::new().run(args)).await.unwrap()
}

#[tokio::test]
async fn three_servers_and_a_login_are_as_it_should_be_and_nothing_is_left_behind() {
    let ensemble = Ensemble::of(3, &durable()).await.unwrap();
    let (_, report) = report(&url(ANN, &format!("{}/apps/billing", ensemble.url()))).await;
    assert_eq!(warnings(&report), [""; 0], "{report:#}");
    assert_eq!(checks(&report, "fail").len() + checks(&report, "unknown").len(), 0, "{report:#}");
    assert!(says(found(&report, "ensemble", "ok"), "means").contains("1 failure is survived"));
    assert!(says(found(&report, "members", "ok"), "found").starts_with("3 of 3"));
    for check in [
        "quorum",
        "reachable",
        "version",
        "same-server",
        "same-ensemble",
        "url-hosts",
        "lock-nodes",
        "acl",
        "acl-enforced",
    ] {
        found(&report, check, "ok");
    }
    for check in ["session-timeout", "tick-time", "failover-time", "clock", "orphans", "data-set", "connections"] {
        found(&report, check, "ok");
    }
    assert!(!report.to_string().contains("opensesame"));
    let sessions = eventually(Duration::from_secs(20), || async {
        let leader = ensemble.leader().await.unwrap();
        let facts = zookeeper::facts(ensemble.addr(leader)).await.unwrap();
        match facts["zk_global_sessions"].as_str() {
            "0" => Ok(facts["zk_ephemerals_count"].clone()),
            some => Err(format!("{some} sessions")),
        }
    });
    assert_eq!(sessions.await, "0", "no session is left behind");
    assert!(cli(ensemble.server(0), &["ls", "/"]).await.contains("[zookeeper]"), "no node is left behind, either");
    // One of three in the URL.
    let (code, one) = report_with(&format!("zookeeper://{ANN}{}", ensemble.addr(1)), &[]).await;
    assert_eq!((code, warnings(&one)), (1, vec!["url-hosts".to_owned()]), "{one:#}");
    assert!(says(found(&one, "url-hosts", "warn"), "found").contains("1 of 3"));
}

#[tokio::test]
async fn who_is_away_matters_as_soon_as_the_majority_is() {
    let mut ensemble = Ensemble::of(3, &durable()).await.unwrap();
    let url = url(ANN, &ensemble.url());
    let away = ensemble.addr(1).to_string();
    // One that is there and says nothing is no better than one that is not.
    ensemble.server_mut(1).pause().unwrap();
    let silent = eventually(Duration::from_secs(60), || async {
        let (code, report) = report(&url).await;
        if checks(&report, "fail").is_empty() { Ok((code, report)) } else { Err(format!("{report:#}")) }
    });
    let (code, silent) = silent.await;
    assert_eq!((code, subjects(&silent, "reachable", "warn")), (1, vec![away.clone()]), "{silent:#}");
    let finding = of(&silent, "reachable").into_iter().find(|finding| finding["level"] == "warn").unwrap();
    assert_eq!(says(finding, "found"), "it does not answer");
    ensemble.server_mut(1).kill().unwrap();
    // If it was the leader, there is another soon; and the leader must have noticed.
    let one = eventually(Duration::from_secs(60), || async {
        let (code, report) = report(&url).await;
        let noticed = of(&report, "members").iter().any(|finding| finding["level"] == "warn");
        if noticed { Ok((code, report)) } else { Err(format!("{report:#}")) }
    });
    let (code, one) = one.await;
    assert_eq!((code, subjects(&one, "reachable", "warn")), (1, vec![away]), "{one:#}");
    let finding = found(&one, "members", "warn");
    assert!(says(finding, "found").starts_with("2 of 3"), "{finding}");
    assert!(says(finding, "means").contains("none of the others may fail"), "{finding}");
    assert!(checks(&one, "fail").is_empty(), "{one:#}");

    ensemble.server_mut(2).kill().unwrap();
    let two = eventually(Duration::from_secs(60), || async {
        let (code, report) = report(&url).await;
        let idle = of(&report, "reachable").iter().any(|finding| says(finding, "found").contains("not serving"));
        if idle { Ok((code, report)) } else { Err(format!("{report:#}")) }
    });
    let (code, two) = two.await;
    assert_eq!((code, subjects(&two, "reachable", "fail").len()), (2, 3), "{two:#}");
    assert!(says(found(&two, "quorum", "fail"), "fix").contains("majority"), "{two:#}");
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
    let server = durable().start().await.unwrap();
    let (open, ours) = (url("", &server.url()), url(ANN, &server.url()));
    leasehold(&["run", "--engine", &ours, "mine", "--", "true"]).await.ok();
    let (_, closed) = report(&ours).await;
    found(&closed, "acl", "ok");
    found(&closed, "acl-enforced", "ok");
    let (code, refused) = report(&open).await;
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
    // Its containers must not vanish while they are prepared.
    let server = durable().container_check(Duration::from_secs(3600)).start().await.unwrap();
    let url = url("", &server.url());
    let claim = format!("{:032x}-x-0-0-0000000000", 7);
    for path in ["/leasehold", "/leasehold/a", "/leasehold/b", &format!("/leasehold/a/{claim}"), "/leasehold/b/lock-1"]
    {
        cli(&server, &["create", path]).await;
    }
    let (code, orphans) = report(&url).await;
    assert_eq!(code, 2);
    let finding = found(&orphans, "orphans", "fail");
    assert!(says(finding, "found").contains(&format!("1 claim (/leasehold/a/{claim})")), "{finding}");
    let finding = found(&orphans, "foreign-nodes", "warn");
    assert!(says(finding, "found").contains("/leasehold/b/lock-1"), "{finding}");
    leasehold(&["run", "--engine", &url, "--wait", "0", "a", "--", "true"]).await.failed(1, "");
    // What it says to do helps.
    leasehold(&["evict", "--engine", &url, "--yes", "a"]).await.ok();
    leasehold(&["run", "--engine", &url, "--wait", "0", "a", "--", "true"]).await.ok();
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
    // Just so, as a lock finds it.
    leasehold(&["run", "--engine", &url, "--ttl", "2s", "a", "--", "true"]).await.failed(64, "");
    let (_, long) = report_with(&url, &["--ttl", "2m"]).await;
    assert!(says(found(&long, "session-timeout", "ok"), "found").contains("longest session is 20 s"));
    let (_, shorter) = report_with(&format!("{url}?session-timeout=10s"), &["--ttl", "5s"]).await;
    assert!(says(found(&shorter, "session-timeout", "fail"), "found").contains("session-timeout=10 s"));

    // Sessions of half a tick, of which the leader hears too late; and an even number of servers.
    let each = durable().tick(second * 2).sessions(second / 2, second * 60);
    let two = Ensemble::of(2, &each).await.unwrap();
    let two_url = format!("zookeeper://{ANN}{}", two.url());
    let (code, late) = report_with(&two_url, &["--ttl", "2s"]).await;
    assert_eq!(code, 2);
    assert!(says(found(&late, "tick-time", "fail"), "means").contains("two may hold one lock"));
    assert!(says(found(&late, "ensemble", "warn"), "means").contains("no failure is survived"));
    found(&late, "failover-time", "warn");
    let (_, enough) = report_with(&two_url, &["--ttl", "30s"]).await;
    assert!(says(found(&enough, "tick-time", "warn"), "found").contains("minSessionTimeout is 500 ms"));
}

#[tokio::test]
async fn servers_that_do_not_know_of_each_other_are_no_ensemble() {
    let (one, other) = (durable().start().await.unwrap(), durable().start().await.unwrap());
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
    // A server's first words over TLS take it long where there is much to do: then it is asked again.
    let (code, report) = eventually(Duration::from_secs(60), || async {
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
async fn servers_that_say_nothing_do_not_hide_one_that_does() {
    let server = durable().start().await.unwrap();
    let silent = [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let [one, other] = silent.each_ref().map(|listener| listener.local_addr().unwrap().to_string());
    let (code, report) = report(&url(ANN, &format!("{one},{other},{}", server.addr()))).await;
    assert_eq!((code, subjects(&report, "reachable", "warn")), (1, vec![one, other]), "{report:#}");
    for check in ["quorum", "lock-nodes", "acl", "acl-enforced"] {
        found(&report, check, "ok");
    }
    found(&report, "same-ensemble", "unknown");
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
