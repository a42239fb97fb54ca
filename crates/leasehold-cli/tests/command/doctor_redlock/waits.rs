//! Findings that take seconds: servers that do not respond, and those in a cool-down.

use crate::common::examined::{command, found, of, report, report_with};
use crate::common::{BOUND, Place};
use crate::doctor_redlock::{five, says, subjects, url};
use leasehold_testbed::redis::{Independent, Redis};
use leasehold_testbed::{Data, eventually};

#[tokio::test]
async fn who_says_nothing_is_away_and_matters_as_soon_as_the_majority_is() {
    let mut set = five().await;
    let url = url(set.servers());
    let away = set.server(4).addr().to_string();
    // Only scripts block.
    command(set.server(4), &["CLIENT", "PAUSE", "60000", "WRITE"]).await;
    let (code, silent) = report(&url).await;
    assert_eq!((code, subjects(&silent, "reachable", "warn")), (1, vec![away.clone()]), "{silent:#}");
    set.server_mut(4).kill().unwrap();
    let (code, one) = report(&url).await;
    assert_eq!((code, subjects(&one, "reachable", "warn")), (1, vec![away]), "{one:#}");
    assert!(says(found(&one, "majority", "warn"), "found").starts_with("4 of 5"));
    set.server_mut(3).kill().unwrap();
    // A server that does not respond is no better than one that is down.
    set.server_mut(2).pause().unwrap();
    let (code, three) = report(&format!("{url}&connect-timeout=3s")).await;
    assert_eq!((code, subjects(&three, "reachable", "fail").len()), (2, 3), "{three:#}");
    assert!(says(found(&three, "majority", "fail"), "found").starts_with("2 of 5"));
    assert!(of(&three, "persistence").len() == 2, "those that are there are examined: {three:#}");
}

#[tokio::test]
async fn who_abstains_is_named_and_for_how_long() {
    let mut set = Independent::of(3, &Redis::new()).await.unwrap();
    let url = format!("{}&strict=5s", url(set.servers()));
    let strict = async || report_with(&url, &["--ttl", "5s"]).await.1;
    // Acquiring a lock makes every node begin its cool-down; the lock is granted when that is over.
    let take = async || {
        let engine = url.clone();
        let run = move || Place::new().run(["run", "--engine", &engine, "--ttl", "5s", "a", "--", "true"]).ok();
        tokio::task::spawn_blocking(run).await.unwrap();
    };
    let new = strict().await;
    assert!(says(found(&new, "abstains", "warn"), "found").contains("from its first use on"), "{new:#}");
    take().await;
    // Some nodes may have received the request slightly later than the majority.
    let all = eventually(BOUND, || async {
        let said = strict().await;
        let well = of(&said, "abstains").iter().all(|one| one["level"] == "ok");
        if well { Ok(said) } else { Err(format!("{said:#}")) }
    });
    assert_eq!(of(&all.await, "abstains").len(), 1);

    let restarted = set.server(2).addr().to_string();
    for _ in 0..20 {
        set.server_mut(2).restart(Data::Wipe).await.unwrap();
        let untouched = strict().await;
        assert_eq!(subjects(&untouched, "abstains", "warn"), std::slice::from_ref(&restarted), "{untouched:#}");
        assert!(says(of(&untouched, "abstains")[0], "found").contains("from its first use on"), "{untouched:#}");
        take().await;
        let touched = strict().await;
        let Some(finding) = of(&touched, "abstains").into_iter().find(|one| one["level"] == "warn") else {
            continue; // The machine was so slow that the cool-down is over.
        };
        if says(finding, "found").contains("abstains for another") {
            assert_eq!(says(finding, "subject"), restarted);
            // For a longer lease than the cool-down, all of them would have to wait.
            let (code, longer) = report(&url.replace("strict=5s", "strict=1h")).await;
            assert_eq!((code, subjects(&longer, "abstains", "fail").len()), (2, 3), "{longer:#}");
            return;
        }
    }
    panic!("it was never seen to abstain");
}
