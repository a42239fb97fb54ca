//! `doctor` on Redlock's nodes: real servers, independent or not, on one machine.
#![allow(clippy::unwrap_used, reason = "tests")]

#[cfg(feature = "nightly")]
mod waits;

use crate::common::Place;
use crate::common::examined::{checks, command, durable, examine, found, of, report, report_with};
use leasehold_testbed::Server;
use leasehold_testbed::process::{Binary, Place as Where, Probe, Recipe};
use leasehold_testbed::redis::{self, Independent, Redis, Reply};
use serde_json::Value;

/// A long timeout: no response is late, however busy the machine is.
const PATIENT: &str = "?node-timeout=2s";

/// The URL of these servers, with the long timeout.
fn url<'a>(servers: impl IntoIterator<Item = &'a Server>) -> String {
    let hosts: Vec<_> = servers.into_iter().map(|server| server.addr().to_string()).collect();
    format!("redlock://{}{PATIENT}", hosts.join(","))
}

async fn five() -> Independent {
    Independent::of(5, &durable()).await.unwrap()
}

fn says<'a>(finding: &'a Value, part: &str) -> &'a str {
    finding[part].as_str().unwrap()
}

/// The servers for which a check has this level.
fn subjects(report: &Value, check: &str, level: &str) -> Vec<String> {
    let all = of(report, check).into_iter().filter(|finding| finding["level"] == level);
    all.map(|finding| says(finding, "subject").to_owned()).collect()
}

#[tokio::test]
async fn five_that_forget_nothing_are_as_good_as_one_machine_can_be() {
    let set = five().await;
    let url = url(set.servers());
    let (code, report) = report(&url).await;
    // Five servers on one machine are only for trials: that is the only problem.
    assert_eq!((code, checks(&report, "warn")), (1, vec!["same-host".to_owned()]), "{report:#}");
    assert_eq!(checks(&report, "fail").len() + checks(&report, "unknown").len(), 0, "{report:#}");
    assert!(says(found(&report, "same-host", "warn"), "found").contains("this machine"));
    assert!(says(found(&report, "nodes", "ok"), "found").contains("2 failures are survived"));
    assert!(says(found(&report, "majority", "ok"), "found").starts_with("5 of 5"));
    for check in ["same-server", "clocks", "clock", "node-timeout", "role", "lock-keys", "persistence", "replicas"] {
        found(&report, check, "ok");
    }
    for check in ["pubsub", "tracking", "output-buffer", "min-replicas"] {
        assert!(of(&report, check).is_empty(), "nobody needs {check} here");
    }
    assert_eq!(report["url"].as_str().unwrap(), url);
    for server in set.servers() {
        assert_eq!(command(server, &["DBSIZE"]).await, Reply::Integer(0), "nothing is left behind");
    }
    let text = examine(&url, &[]).await.out();
    assert!(text.contains("all 5: Redis"), "{text}");
    assert_eq!(text.matches("persistence").count(), 1, "one line for all: {text}");
}

#[tokio::test]
async fn an_even_number_is_a_finding_and_other_mistakes_are_errors() {
    let set = Independent::of(4, &durable()).await.unwrap();
    let four = url(set.servers());
    let (code, refused) = report(&four).await;
    assert_eq!(code, 2);
    let finding = found(&refused, "nodes", "fail");
    assert!(says(finding, "means").contains("1 failure is survived, as with 3"), "{finding}");
    found(&refused, "persistence", "ok");
    let (code, allowed) = report(&format!("{four}&even=allowed")).await;
    assert_eq!((code, checks(&allowed, "warn")), (1, vec!["nodes".to_owned(), "same-host".into()]), "{allowed:#}");
    let (_, one) = report(&url(&set.servers()[..1])).await;
    assert_eq!(checks(&one, "warn"), ["nodes"], "{one:#}");
    for (url, says) in [
        ("redlock:", "name the servers"),
        ("redlock://h1,h1:6379", "named twice"),
        ("redlock://h1,h2?even=yes", "`allowed` or `refused`"),
        ("redlock://h1,h2,h3?replicas=1", "it has prefix"),
    ] {
        examine(url, &[]).await.failed(64, says);
    }
}

#[tokio::test]
async fn one_server_by_two_names_and_a_replica_have_no_vote_of_their_own() {
    let set = Independent::of(3, &durable()).await.unwrap();
    let twice =
        format!("{},localhost:{}{PATIENT}", url(&set.servers()[..2]).trim_end_matches(PATIENT), set.server(1).port());
    let (code, double) = report(&twice).await;
    assert_eq!(code, 2);
    let finding = found(&double, "same-server", "fail");
    assert!(says(finding, "found").contains(&set.server(1).addr().to_string()), "{finding}");
    assert!(says(found(&double, "majority", "warn"), "found").starts_with("2 of 3"));

    let replica = redis::replica_of(set.server(0)).start().await.unwrap();
    let (code, copied) = report(&url(set.servers()[..2].iter().chain([&replica]))).await;
    assert_eq!(code, 2);
    assert_eq!(subjects(&copied, "role", "fail"), [replica.addr().to_string()]);
    let finding = of(&copied, "role").into_iter().find(|finding| finding["level"] == "fail").unwrap();
    let master = set.server(0).addr().to_string();
    assert!(says(finding, "found").contains(&format!("{master}, which votes here, too")), "{finding}");
    assert_eq!(subjects(&copied, "replicas", "warn"), [master]);
    assert!(says(found(&copied, "majority", "warn"), "found").starts_with("2 of 3"));

    let clustered = durable().args(&["--cluster-enabled", "yes"]).start().await.unwrap();
    let (code, mixed) = report(&url(set.servers()[1..].iter().chain([&clustered]))).await;
    assert_eq!(code, 2);
    assert_eq!(subjects(&mixed, "cluster-mode", "fail"), [clustered.addr().to_string()]);
}

#[tokio::test]
async fn who_is_away_matters_as_soon_as_the_majority_is() {
    let mut set = five().await;
    let url = url(set.servers());
    let away = set.server(4).addr().to_string();
    set.server_mut(4).kill().unwrap();
    let (code, one) = report(&url).await;
    assert_eq!((code, subjects(&one, "reachable", "warn")), (1, vec![away]), "{one:#}");
    assert!(says(found(&one, "majority", "warn"), "found").starts_with("4 of 5"));
    set.server_mut(3).kill().unwrap();
    set.server_mut(2).kill().unwrap();
    let (code, three) = report(&url).await;
    assert_eq!((code, subjects(&three, "reachable", "fail").len()), (2, 3), "{three:#}");
    assert!(says(found(&three, "majority", "fail"), "found").starts_with("2 of 5"));
    assert!(of(&three, "persistence").len() == 2, "those that are there are examined: {three:#}");
}

#[tokio::test]
async fn who_would_abstain_is_named() {
    let set = Independent::of(3, &Redis::new()).await.unwrap();
    let new = report_with(&format!("{}&strict=5s", url(set.servers())), &["--ttl", "5s"]).await.1;
    assert!(says(found(&new, "abstains", "warn"), "found").contains("from its first use on"), "{new:#}");
}

/// A Redis with this clock skew.
struct Skewed(&'static str, Redis);

impl Recipe for Skewed {
    fn binary(&self) -> Binary {
        Binary::new("env", "coreutils")
    }

    fn arguments(&self, place: &Where) -> Vec<String> {
        let faked = format!("FAKETIME={}", self.0);
        // The loader replaces $LIB with the machine's library folder. Redis' own allocator reads
        // the time before it can be faked; the C library's allocator does not.
        let library = "LD_PRELOAD=/usr/$LIB/faketime/libfaketimeMT.so.1 libc.so.6";
        let server = self.1.binary().find().unwrap().to_string_lossy().into_owned();
        let before = [library, &faked, "FAKETIME_DONT_FAKE_MONOTONIC=1", &server].map(str::to_owned);
        before.into_iter().chain(self.1.arguments(place)).collect()
    }

    fn url(&self, place: &Where) -> String {
        self.1.url(place)
    }

    fn probe<'a>(&'a self, place: &'a Where) -> Probe<'a> {
        self.1.probe(place)
    }
}

#[tokio::test]
async fn clocks_apart_are_named() {
    let set = Independent::of(4, &durable()).await.unwrap();
    let ahead = Server::start(Skewed("+5", durable())).await.unwrap();
    let five = url(set.servers().iter().chain([&ahead]));
    let (code, some) = report(&five).await;
    assert_eq!(code, 1, "{some:#}");
    let finding = found(&some, "clocks", "warn");
    assert_eq!(says(finding, "subject"), ahead.addr().to_string(), "is the Debian package `faketime` installed?");
    assert!(says(finding, "found").contains("ahead of most of the others; leases allow for 302 ms"), "{finding}");
    found(&some, "clock", "ok");
    // More than a lease.
    let (code, all) = report_with(&five, &["--ttl", "2s"]).await;
    assert_eq!(code, 2);
    found(&all, "clocks", "fail");

    // If their clocks agree, ours may be the wrong one.
    let behind = [(); 2].map(|()| Server::start(Skewed("-630", durable())));
    let [one, two] = behind;
    let (one, two) = (one.await.unwrap(), two.await.unwrap());
    let (_, most) = report(&url([&one, &two, set.server(0)])).await;
    assert!(says(found(&most, "clock", "warn"), "found").contains("10 min behind ours"), "{most:#}");
}

#[tokio::test]
async fn what_a_restart_forgets_is_said_of_each() {
    let set = Independent::of(2, &durable()).await.unwrap();
    let everysec = durable().args(&["--appendfsync", "everysec"]).start().await.unwrap();
    let (code, seconds) = report(&url(set.servers().iter().chain([&everysec]))).await;
    assert_eq!(
        (code, subjects(&seconds, "persistence", "warn")),
        (1, vec![everysec.addr().to_string()]),
        "{seconds:#}"
    );
    let forgetful = redis::start().await.unwrap();
    let none = url(set.servers().iter().chain([&forgetful]));
    let (code, nothing) = report(&none).await;
    assert_eq!(
        (code, subjects(&nothing, "persistence", "warn")),
        (1, vec![forgetful.addr().to_string()]),
        "{nothing:#}"
    );
    let (_, strict) = report(&format!("{none}&strict=30s")).await;
    let finding = found(&strict, "persistence", "ok");
    assert!(of(&strict, "persistence").iter().any(|one| says(one, "means").contains("abstains for 30 s")), "{finding}");
    let (code, short) = report(&format!("{none}&strict=10s")).await;
    assert_eq!(code, 2, "leases of 30 s are refused");
    found(&short, "strict", "fail");
}

#[tokio::test]
async fn a_wrong_password_on_one_and_a_user_who_may_too_little_on_another() {
    let set = Independent::of(3, &durable()).await.unwrap();
    let locked = durable().password("opensesame").start().await.unwrap();
    let hosts = url(&set.servers()[..2]);
    let wrong = format!("{},:hunter2@{}{PATIENT}", hosts.trim_end_matches(PATIENT), locked.addr());
    for more in [&[][..], &["--json"]] {
        let ran = examine(&wrong, more).await;
        assert_eq!(ran.code(), 2, "{}", ran.out());
        assert!(ran.out().contains("login") && !format!("{}{}", ran.out(), ran.err()).contains("hunter2"));
    }
    let (_, login) = report(&wrong).await;
    assert_eq!(subjects(&login, "login", "fail"), [locked.addr().to_string()]);
    assert!(says(found(&login, "majority", "warn"), "found").starts_with("2 of 3"));

    let all = "ACL SETUSER worker on >opensesame ~* +@all";
    let some = async |more: &str| {
        let words: Vec<_> = all.split(' ').chain(more.split(' ').filter(|word| !word.is_empty())).collect();
        command(set.server(2), &words).await;
        let url = format!(
            "{},worker:opensesame@{}{PATIENT}&strict=30s",
            hosts.trim_end_matches(PATIENT),
            set.server(2).addr()
        );
        report(&url).await.1
    };
    for taken in ["get", "set", "del"] {
        let less = some(&format!("-{taken}")).await;
        let finding = of(&less, "lock-keys").into_iter().find(|finding| finding["level"] == "fail").unwrap();
        assert_eq!(says(finding, "subject"), set.server(2).addr().to_string());
        assert!(says(finding, "found").to_lowercase().contains(taken), "{taken}: {finding}");
        assert!(says(finding, "fix").contains(&format!("+{taken}")), "{taken}: {finding}");
        // Without it, the probe's keys stay for a moment.
        if taken != "del" {
            assert_eq!(command(set.server(2), &["DBSIZE"]).await, Reply::Integer(0), "without {taken}");
        }
    }
    let untold = some("-config").await;
    assert_eq!(of(&untold, "persistence").iter().filter(|one| one["level"] == "ok").count(), 3, "strict needs no word");
    let untold = some("-info").await;
    for check in ["same-server", "abstains", "replicas", "memory"] {
        assert_eq!(subjects(&untold, check, "unknown"), [set.server(2).addr().to_string()], "{check}: {untold:#}");
    }
    assert_eq!(subjects(&untold, "run-id", "fail").len(), 1);
}

#[tokio::test]
async fn what_locks_need_is_enough_for_their_keys_and_the_rest_is_for_doctor() {
    let server = durable().start().await.unwrap();
    let user = async |permissions: &str| {
        let words: Vec<_> =
            "ACL SETUSER worker reset on >opensesame".split(' ').chain(permissions.split(' ')).collect();
        command(&server, &words).await;
        report(&format!("redlock://worker:opensesame@{}{PATIENT}", server.addr())).await.1
    };
    let poor = user("~leasehold:* +evalsha +time").await;
    let cure = says(found(&poor, "scripts", "fail"), "fix").to_owned();
    let (needed, for_doctor) = cure.split_once("<user> ").unwrap().1.split_once("; for doctor also ").unwrap();
    let cured = user(needed).await;
    assert_eq!(checks(&cured, "fail").len(), 0, "{cured:#}");
    let cured = user(&format!("{needed} {for_doctor}")).await;
    assert_eq!((checks(&cured, "warn"), checks(&cured, "unknown").len()), (vec!["nodes".to_owned()], 0), "{cured:#}");
}

#[tokio::test]
async fn strange_keys_are_found_and_those_of_locks_are_not_strange() {
    let set = Independent::of(3, &durable()).await.unwrap();
    let url = url(set.servers());
    let engine = url.clone();
    let run = move || Place::new().run(["run", "--engine", &engine, "a", "--", "true"]).ok();
    tokio::task::spawn_blocking(run).await.unwrap();
    found(&report(&url).await.1, "key-types", "ok");
    command(set.server(0), &["RPUSH", "leasehold:qlist", "x"]).await;
    command(set.server(0), &["SET", "leasehold:settings", "x"]).await;
    command(set.server(0), &["PERSIST", "leasehold:qa"]).await;
    let (code, strange) = report(&url).await;
    assert_eq!(code, 2);
    for (check, level) in [("key-types", "fail"), ("foreign-keys", "warn"), ("keys-without-ttl", "warn")] {
        assert_eq!(subjects(&strange, check, level), [set.server(0).addr().to_string()], "{strange:#}");
    }
}
