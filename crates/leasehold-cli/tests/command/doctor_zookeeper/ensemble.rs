//! Ensembles of several servers, and servers that do not respond.

use std::time::Duration;

use crate::common::BOUND;
use crate::common::examined::{checks, found, of, report, report_with};
use crate::doctor_zookeeper::{ANN, cli, durable, says, url, warnings};
use leasehold_testbed::eventually;
use leasehold_testbed::zookeeper::{self, Ensemble};
use serde_json::Value;

/// The servers for which a check has this level.
fn subjects(report: &Value, check: &str, level: &str) -> Vec<String> {
    let all = of(report, check).into_iter().filter(|finding| finding["level"] == level);
    all.map(|finding| says(finding, "subject").to_owned()).collect()
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
    let sessions = eventually(BOUND, || async {
        let leader = ensemble.leader().await.unwrap();
        let facts = zookeeper::facts(ensemble.addr(leader)).await.unwrap();
        match facts["zk_global_sessions"].as_str() {
            "0" => Ok(facts["zk_ephemerals_count"].clone()),
            some => Err(format!("{some} sessions")),
        }
    });
    assert_eq!(sessions.await, "0", "no session is left behind");
    assert!(cli(ensemble.server(0), &["ls /"]).await.contains("[zookeeper]"), "no node is left behind, either");
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
    // A server that does not respond is no better than one that is down.
    ensemble.server_mut(1).pause().unwrap();
    let silent = eventually(BOUND, || async {
        let (code, report) = report(&url).await;
        if checks(&report, "fail").is_empty() { Ok((code, report)) } else { Err(format!("{report:#}")) }
    });
    let (code, silent) = silent.await;
    assert_eq!((code, subjects(&silent, "reachable", "warn")), (1, vec![away.clone()]), "{silent:#}");
    let finding = of(&silent, "reachable").into_iter().find(|finding| finding["level"] == "warn").unwrap();
    assert_eq!(says(finding, "found"), "it does not answer");
    ensemble.server_mut(1).kill().unwrap();
    // If it was the leader, a new one is elected soon; and the leader must have noticed.
    let one = eventually(BOUND, || async {
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
    let two = eventually(BOUND, || async {
        let (code, report) = report(&url).await;
        let idle = of(&report, "reachable").iter().any(|finding| says(finding, "found").contains("not serving"));
        if idle { Ok((code, report)) } else { Err(format!("{report:#}")) }
    });
    let (code, two) = two.await;
    assert_eq!((code, subjects(&two, "reachable", "fail").len()), (2, 3), "{two:#}");
    assert!(says(found(&two, "quorum", "fail"), "fix").contains("majority"), "{two:#}");
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
async fn sessions_that_are_shorter_than_a_tick() {
    let second = Duration::from_secs(1);
    // Sessions of half a tick, whose renewals reach the leader too late; and an even number of
    // servers.
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
