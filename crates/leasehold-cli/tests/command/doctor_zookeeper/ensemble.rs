//! Ensembles of several servers, and servers that do not respond.

use std::time::Duration;

use crate::common::TEST_TIMEOUT;
use crate::common::doctor_report::{assert_finding, checks_at_level, doctor_report, doctor_report_with, findings_of};
use crate::doctor_zookeeper::{LOGIN, durable_zookeeper, run_zookeeper_cli, text_of, warnings, zookeeper_url};
use leasehold_testbed::eventually;
use leasehold_testbed::zookeeper::{self, Ensemble, ZooKeeper};
use serde_json::Value;

/// The servers about which a check has a finding with this level.
fn subjects(report: &Value, check: &str, level: &str) -> Vec<String> {
    let all = findings_of(report, check).into_iter().filter(|finding| finding["level"] == level);
    all.map(|finding| text_of(finding, "subject").to_owned()).collect()
}

/// A member that misses its leader early enough for leases of 30 s.
fn ensemble_member() -> ZooKeeper {
    durable_zookeeper().peer_timeout(Duration::from_secs(5))
}

#[tokio::test]
async fn an_ensemble_of_three_with_a_login_is_fit_and_the_probe_leaves_no_data() {
    let ensemble = Ensemble::start_with(3, &ensemble_member()).await.unwrap();
    let (_, report) = doctor_report(&zookeeper_url(LOGIN, &format!("{}/apps/billing", ensemble.url()))).await;
    assert_eq!(warnings(&report), [""; 0], "{report:#}");
    assert_eq!(checks_at_level(&report, "fail").len() + checks_at_level(&report, "unknown").len(), 0, "{report:#}");
    assert!(text_of(assert_finding(&report, "ensemble", "ok"), "means").contains("1 failure is survived"));
    assert!(text_of(assert_finding(&report, "members", "ok"), "found").starts_with("3 of 3"));
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
        assert_finding(&report, check, "ok");
    }
    for check in ["session-timeout", "tick-time", "failover-time", "clock", "orphans", "data-set", "connections"] {
        assert_finding(&report, check, "ok");
    }
    assert!(!report.to_string().contains("opensesame"));
    let sessions = eventually(TEST_TIMEOUT, || async {
        let leader = ensemble.leader().await.unwrap();
        let facts = zookeeper::monitor_values(ensemble.addr(leader)).await.unwrap();
        match facts["zk_global_sessions"].as_str() {
            "0" => Ok(facts["zk_ephemerals_count"].clone()),
            some => Err(format!("{some} sessions")),
        }
    });
    assert_eq!(sessions.await, "0", "no session is left behind");
    assert!(
        run_zookeeper_cli(ensemble.server(0), &["ls /"]).await.contains("[zookeeper]"),
        "no node is left behind, either"
    );
    // One of three in the URL.
    let (code, one) = doctor_report_with(&format!("zookeeper://{LOGIN}{}", ensemble.addr(1)), &[]).await;
    assert_eq!((code, warnings(&one)), (1, vec!["url-hosts".to_owned()]), "{one:#}");
    assert!(text_of(assert_finding(&one, "url-hosts", "warn"), "found").contains("1 of 3"));
}

#[tokio::test]
async fn unreachable_servers_are_failures_without_a_majority() {
    let mut ensemble = Ensemble::start_with(3, &ensemble_member()).await.unwrap();
    let url = zookeeper_url(LOGIN, &ensemble.url());
    let away = ensemble.addr(1).to_string();
    // A server that does not respond is no better than one that is down.
    ensemble.server_mut(1).pause().unwrap();
    let silent = eventually(TEST_TIMEOUT, || async {
        let (code, report) = doctor_report(&url).await;
        if checks_at_level(&report, "fail").is_empty() { Ok((code, report)) } else { Err(format!("{report:#}")) }
    });
    let (code, silent) = silent.await;
    assert_eq!((code, subjects(&silent, "reachable", "warn")), (1, vec![away.clone()]), "{silent:#}");
    let finding = findings_of(&silent, "reachable").into_iter().find(|finding| finding["level"] == "warn").unwrap();
    assert_eq!(text_of(finding, "found"), "it does not answer");
    ensemble.server_mut(1).kill().unwrap();
    // If the killed server was the leader, another is elected; and the leader must notice its
    // absence.
    let one = eventually(TEST_TIMEOUT, || async {
        let (code, report) = doctor_report(&url).await;
        let noticed = findings_of(&report, "members").iter().any(|finding| finding["level"] == "warn");
        if noticed { Ok((code, report)) } else { Err(format!("{report:#}")) }
    });
    let (code, one) = one.await;
    assert_eq!((code, subjects(&one, "reachable", "warn")), (1, vec![away]), "{one:#}");
    let finding = assert_finding(&one, "members", "warn");
    assert!(text_of(finding, "found").starts_with("2 of 3"), "{finding}");
    assert!(text_of(finding, "means").contains("none of the others may fail"), "{finding}");
    assert!(checks_at_level(&one, "fail").is_empty(), "{one:#}");

    ensemble.server_mut(2).kill().unwrap();
    let two = eventually(TEST_TIMEOUT, || async {
        let (code, report) = doctor_report(&url).await;
        let idle =
            findings_of(&report, "reachable").iter().any(|finding| text_of(finding, "found").contains("not serving"));
        if idle { Ok((code, report)) } else { Err(format!("{report:#}")) }
    });
    let (code, two) = two.await;
    assert_eq!((code, subjects(&two, "reachable", "fail").len()), (2, 3), "{two:#}");
    assert!(text_of(assert_finding(&two, "quorum", "fail"), "fix").contains("majority"), "{two:#}");
}

#[tokio::test]
async fn servers_that_do_not_respond_do_not_hide_one_that_does() {
    let server = durable_zookeeper().start().await.unwrap();
    let silent = [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let [one, other] = silent.each_ref().map(|listener| listener.local_addr().unwrap().to_string());
    let (code, report) = doctor_report(&zookeeper_url(LOGIN, &format!("{one},{other},{}", server.addr()))).await;
    assert_eq!((code, subjects(&report, "reachable", "warn")), (1, vec![one, other]), "{report:#}");
    for check in ["quorum", "lock-nodes", "acl", "acl-enforced"] {
        assert_finding(&report, check, "ok");
    }
    assert_finding(&report, "same-ensemble", "unknown");
}

#[tokio::test]
async fn sessions_shorter_than_a_tick_are_found() {
    let second = Duration::from_secs(1);
    // Sessions of half a tick, whose renewals reach the leader too late; and an even number of
    // servers.
    let each = ensemble_member().tick(second * 2).session_bounds(second / 2, second * 60);
    let two = Ensemble::start_with(2, &each).await.unwrap();
    let two_url = format!("zookeeper://{LOGIN}{}", two.url());
    let (code, late) = doctor_report_with(&two_url, &["--ttl", "2s"]).await;
    assert_eq!(code, 2);
    assert!(text_of(assert_finding(&late, "tick-time", "fail"), "means").contains("two clients may hold one lock"));
    assert!(text_of(assert_finding(&late, "ensemble", "warn"), "means").contains("no failure is survived"));
    assert_finding(&late, "failover-time", "warn");
    let (_, enough) = doctor_report_with(&two_url, &["--ttl", "30s"]).await;
    assert!(text_of(assert_finding(&enough, "tick-time", "warn"), "found").contains("minSessionTimeout is 500 ms"));
}
