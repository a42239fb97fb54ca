//! Findings that take seconds: servers that do not respond, and those in a cool-down.

use crate::common::doctor_report::{assert_finding, doctor_report, doctor_report_with, findings_of, redis_command};
use crate::common::{TEST_TIMEOUT, TestFolder};
use crate::doctor_redlock::{five_servers, redlock_url, subjects, text_of};
use leasehold_testbed::redis::{IndependentServers, Redis};
use leasehold_testbed::{Data, eventually};

#[tokio::test]
async fn servers_that_do_not_respond_are_failures_without_a_majority() {
    let mut set = five_servers().await;
    let url = redlock_url(set.servers());
    let away = set.server(4).addr().to_string();
    // The server answers, but blocks all scripts.
    redis_command(set.server(4), &["CLIENT", "PAUSE", "60000", "WRITE"]).await;
    let (code, silent) = doctor_report(&url).await;
    assert_eq!((code, subjects(&silent, "reachable", "warn")), (1, vec![away.clone()]), "{silent:#}");
    set.server_mut(4).kill().unwrap();
    let (code, one) = doctor_report(&url).await;
    assert_eq!((code, subjects(&one, "reachable", "warn")), (1, vec![away]), "{one:#}");
    assert!(text_of(assert_finding(&one, "majority", "warn"), "found").starts_with("4 of 5"));
    set.server_mut(3).kill().unwrap();
    // A server that does not respond is no better than one that is down.
    set.server_mut(2).pause().unwrap();
    let (code, three) = doctor_report(&url.replace("connect-timeout=60s", "connect-timeout=3s")).await;
    assert_eq!((code, subjects(&three, "reachable", "fail").len()), (2, 3), "{three:#}");
    assert!(text_of(assert_finding(&three, "majority", "fail"), "found").starts_with("2 of 5"));
    assert!(findings_of(&three, "persistence").len() == 2, "those that are there are examined: {three:#}");
}

#[tokio::test]
async fn servers_in_a_cool_down_are_named_with_its_remaining_time() {
    let mut set = IndependentServers::start_with(3, &Redis::new()).await.unwrap();
    let url = format!("{}&strict=5s", redlock_url(set.servers()));
    let strict = async || doctor_report_with(&url, &["--ttl", "5s"]).await.1;
    // Acquiring a lock makes every node begin its cool-down; the lock is granted when that is over.
    let take = async || {
        let engine = url.clone();
        let run =
            move || TestFolder::new().run(["run", "--engine", &engine, "--ttl", "5s", "a", "--", "true"]).assert_ok();
        tokio::task::spawn_blocking(run).await.unwrap();
    };
    let new = strict().await;
    assert!(text_of(assert_finding(&new, "cool-down", "warn"), "found").contains("from its first use on"), "{new:#}");
    take().await;
    // Some nodes may have received the request slightly later than the majority.
    let all = eventually(TEST_TIMEOUT, || async {
        let output = strict().await;
        let well = findings_of(&output, "cool-down").iter().all(|one| one["level"] == "ok");
        if well { Ok(output) } else { Err(format!("{output:#}")) }
    });
    assert_eq!(findings_of(&all.await, "cool-down").len(), 1);

    let restarted = set.server(2).addr().to_string();
    for _ in 0..20 {
        set.server_mut(2).restart(Data::Wipe).await.unwrap();
        let untouched = strict().await;
        assert_eq!(subjects(&untouched, "cool-down", "warn"), std::slice::from_ref(&restarted), "{untouched:#}");
        assert!(
            text_of(findings_of(&untouched, "cool-down")[0], "found").contains("from its first use on"),
            "{untouched:#}"
        );
        take().await;
        let touched = strict().await;
        let Some(finding) = findings_of(&touched, "cool-down").into_iter().find(|one| one["level"] == "warn") else {
            continue; // The machine was so slow that the cool-down is over.
        };
        if text_of(finding, "found").contains("cools down for another") {
            assert_eq!(text_of(finding, "subject"), restarted);
            // For a longer lease than the cool-down, all of them would have to wait.
            let (code, longer) = doctor_report(&url.replace("strict=5s", "strict=1h")).await;
            assert_eq!((code, subjects(&longer, "cool-down", "fail").len()), (2, 3), "{longer:#}");
            return;
        }
    }
    panic!("no report showed the rest of its cool-down");
}
