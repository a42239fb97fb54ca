//! `doctor` on Redlock's nodes: real servers, independent or not, on one machine.
#![allow(clippy::unwrap_used, reason = "tests")]

#[cfg(feature = "nightly")]
mod slow_findings;

use crate::common::doctor_report::{
    assert_finding, checks_at_level, doctor_report_with, durable_redis, findings_of, redis_command, run_doctor,
};
use crate::common::{LONG_TTL, TestFolder};
use leasehold_testbed::Server;
use leasehold_testbed::process::{Binary, Probe, ServerSpec, Workspace};
use leasehold_testbed::redis::{self, IndependentServers, Redis, Reply};
use serde_json::Value;

/// Long timeouts: no response is late, however busy the machine is. No node is waited for longer than
/// a tenth of the TTL, which is therefore long, too.
const LONG_TIMEOUT: &str = "?node-timeout=60s&connect-timeout=60s";
const LONG_TTL_OPTION: [&str; 2] = ["--ttl", LONG_TTL];

/// Runs `doctor --json` for leases of ten minutes; returns the exit code and the report.
async fn doctor_report(url: &str) -> (i32, Value) {
    doctor_report_with(url, &LONG_TTL_OPTION).await
}

/// The URL of these servers, with the long timeouts.
fn redlock_url<'a>(servers: impl IntoIterator<Item = &'a Server>) -> String {
    let hosts: Vec<_> = servers.into_iter().map(|server| server.addr().to_string()).collect();
    format!("redlock://{}{LONG_TIMEOUT}", hosts.join(","))
}

async fn five_servers() -> IndependentServers {
    IndependentServers::start_with(5, &durable_redis()).await.unwrap()
}

/// The text of this part of a finding: `found`, `means`, `fix` or `subject`.
fn text_of<'a>(finding: &'a Value, part: &str) -> &'a str {
    finding[part].as_str().unwrap()
}

/// The servers about which a check has a finding with this level.
fn subjects(report: &Value, check: &str, level: &str) -> Vec<String> {
    let all = findings_of(report, check).into_iter().filter(|finding| finding["level"] == level);
    all.map(|finding| text_of(finding, "subject").to_owned()).collect()
}

#[tokio::test]
async fn five_durable_servers_on_one_machine_get_only_the_same_host_warning() {
    let set = five_servers().await;
    let url = redlock_url(set.servers());
    let (code, report) = doctor_report(&url).await;
    // Five servers on one machine are only for trials: that is the only problem.
    assert_eq!((code, checks_at_level(&report, "warn")), (1, vec!["same-host".to_owned()]), "{report:#}");
    assert_eq!(checks_at_level(&report, "fail").len() + checks_at_level(&report, "unknown").len(), 0, "{report:#}");
    assert!(text_of(assert_finding(&report, "same-host", "warn"), "found").contains("this machine"));
    assert!(text_of(assert_finding(&report, "nodes", "ok"), "found").contains("2 failures are survived"));
    assert!(text_of(assert_finding(&report, "majority", "ok"), "found").starts_with("5 of 5"));
    for check in ["same-server", "clocks", "clock", "node-timeout", "role", "lock-keys", "persistence", "replicas"] {
        assert_finding(&report, check, "ok");
    }
    for check in ["pubsub", "tracking", "output-buffer", "min-replicas"] {
        assert!(findings_of(&report, check).is_empty(), "no engine needs {check} here");
    }
    assert_eq!(report["url"].as_str().unwrap(), url);
    for server in set.servers() {
        assert_eq!(redis_command(server, &["DBSIZE"]).await, Reply::Integer(0), "the probe leaves no keys");
    }
    let text = run_doctor(&url, &LONG_TTL_OPTION).await.stdout();
    assert!(text.contains("all 5: Redis"), "{text}");
    assert_eq!(text.matches("persistence").count(), 1, "one line for all: {text}");
}

#[tokio::test]
async fn an_even_number_is_a_finding_and_other_mistakes_are_errors() {
    let set = IndependentServers::start_with(4, &durable_redis()).await.unwrap();
    let four = redlock_url(set.servers());
    let (code, refused) = doctor_report(&four).await;
    assert_eq!(code, 2);
    let finding = assert_finding(&refused, "nodes", "fail");
    assert!(text_of(finding, "means").contains("1 failure is survived, as with 3"), "{finding}");
    assert_finding(&refused, "persistence", "ok");
    let (code, allowed) = doctor_report(&format!("{four}&even=allowed")).await;
    assert_eq!(
        (code, checks_at_level(&allowed, "warn")),
        (1, vec!["nodes".to_owned(), "same-host".into()]),
        "{allowed:#}"
    );
    let (_, one) = doctor_report(&redlock_url(&set.servers()[..1])).await;
    assert_eq!(checks_at_level(&one, "warn"), ["nodes"], "{one:#}");
    for (url, message) in [
        ("redlock:", "name the servers"),
        ("redlock://h1,h1:6379", "named twice"),
        ("redlock://h1,h2?even=yes", "`allowed` or `refused`"),
        ("redlock://h1,h2,h3?replicas=1", "it has prefix"),
    ] {
        run_doctor(url, &[]).await.assert_failed(64, message);
    }
}

#[tokio::test]
async fn a_server_named_twice_and_a_replica_have_no_own_vote() {
    let set = IndependentServers::start_with(3, &durable_redis()).await.unwrap();
    let twice = format!(
        "{},localhost:{}{LONG_TIMEOUT}",
        redlock_url(&set.servers()[..2]).trim_end_matches(LONG_TIMEOUT),
        set.server(1).port()
    );
    let (code, double) = doctor_report(&twice).await;
    assert_eq!(code, 2);
    let finding = assert_finding(&double, "same-server", "fail");
    assert!(text_of(finding, "found").contains(&set.server(1).addr().to_string()), "{finding}");
    assert!(text_of(assert_finding(&double, "majority", "warn"), "found").starts_with("2 of 3"));

    let replica = redis::replica_of(set.server(0)).start().await.unwrap();
    let (code, copied) = doctor_report(&redlock_url(set.servers()[..2].iter().chain([&replica]))).await;
    assert_eq!(code, 2);
    assert_eq!(subjects(&copied, "role", "fail"), [replica.addr().to_string()]);
    let finding = findings_of(&copied, "role").into_iter().find(|finding| finding["level"] == "fail").unwrap();
    let master = set.server(0).addr().to_string();
    assert!(text_of(finding, "found").contains(&format!("{master}, which votes here, too")), "{finding}");
    assert_eq!(subjects(&copied, "replicas", "warn"), [master]);
    assert!(text_of(assert_finding(&copied, "majority", "warn"), "found").starts_with("2 of 3"));

    let clustered = durable_redis().args(&["--cluster-enabled", "yes"]).start().await.unwrap();
    let (code, mixed) = doctor_report(&redlock_url(set.servers()[1..].iter().chain([&clustered]))).await;
    assert_eq!(code, 2);
    assert_eq!(subjects(&mixed, "cluster-mode", "fail"), [clustered.addr().to_string()]);
}

#[tokio::test]
async fn unreachable_servers_are_failures_without_a_majority() {
    let mut set = five_servers().await;
    let url = redlock_url(set.servers());
    let away = set.server(4).addr().to_string();
    set.server_mut(4).kill().unwrap();
    let (code, one) = doctor_report(&url).await;
    assert_eq!((code, subjects(&one, "reachable", "warn")), (1, vec![away]), "{one:#}");
    assert!(text_of(assert_finding(&one, "majority", "warn"), "found").starts_with("4 of 5"));
    set.server_mut(3).kill().unwrap();
    set.server_mut(2).kill().unwrap();
    let (code, three) = doctor_report(&url).await;
    assert_eq!((code, subjects(&three, "reachable", "fail").len()), (2, 3), "{three:#}");
    assert!(text_of(assert_finding(&three, "majority", "fail"), "found").starts_with("2 of 5"));
    assert!(findings_of(&three, "persistence").len() == 2, "those that are there are examined: {three:#}");
}

#[tokio::test]
async fn servers_that_would_cool_down_are_named() {
    let set = IndependentServers::start_with(3, &Redis::new()).await.unwrap();
    let new = doctor_report(&format!("{}&strict=600s", redlock_url(set.servers()))).await.1;
    assert!(text_of(assert_finding(&new, "cool-down", "warn"), "found").contains("from its first use on"), "{new:#}");
}

/// A Redis whose clock is wrong by this many seconds, as FAKETIME takes them: `+900`.
struct SkewedRedis(&'static str, Redis);

impl ServerSpec for SkewedRedis {
    fn binary(&self) -> Binary {
        Binary::new("env", "coreutils")
    }

    fn arguments(&self, place: &Workspace) -> Vec<String> {
        let faked = format!("FAKETIME={}", self.0);
        // The loader replaces $LIB with the machine's library folder. Redis' own allocator reads
        // the time before it can be faked; the C library's allocator does not.
        let library = "LD_PRELOAD=/usr/$LIB/faketime/libfaketimeMT.so.1 libc.so.6";
        let server = self.1.binary().find().unwrap().to_string_lossy().into_owned();
        let before = [library, &faked, "FAKETIME_DONT_FAKE_MONOTONIC=1", &server].map(str::to_owned);
        before.into_iter().chain(self.1.arguments(place)).collect()
    }

    fn url(&self, place: &Workspace) -> String {
        self.1.url(place)
    }

    fn probe<'a>(&'a self, place: &'a Workspace) -> Probe<'a> {
        self.1.probe(place)
    }
}

#[tokio::test]
async fn clock_skew_is_reported_for_each_server() {
    let set = IndependentServers::start_with(4, &durable_redis()).await.unwrap();
    let ahead = Server::start(SkewedRedis("+900", durable_redis())).await.unwrap();
    let five = redlock_url(set.servers().iter().chain([&ahead]));
    let (code, some) = doctor_report_with(&five, &["--ttl", "1h"]).await;
    assert_eq!(code, 1, "{some:#}");
    let finding = assert_finding(&some, "clocks", "warn");
    assert_eq!(text_of(finding, "subject"), ahead.addr().to_string(), "is the Debian package `faketime` installed?");
    assert!(text_of(finding, "found").contains("ahead of most of the others; leases allow for 36.0 s"), "{finding}");
    assert_finding(&some, "clock", "ok");
    // For leases of ten minutes, a skew of 15 minutes is a failure.
    let (code, all) = doctor_report(&five).await;
    assert_eq!(code, 2);
    assert_finding(&all, "clocks", "fail");

    // If their clocks agree, this host's may be the wrong one.
    let behind = [(); 2].map(|()| Server::start(SkewedRedis("-630", durable_redis())));
    let [one, two] = behind;
    let (one, two) = (one.await.unwrap(), two.await.unwrap());
    let (_, most) = doctor_report(&redlock_url([&one, &two, set.server(0)])).await;
    assert!(text_of(assert_finding(&most, "clock", "warn"), "found").contains("10 min behind this host's"), "{most:#}");
}

#[tokio::test]
async fn data_loss_at_a_restart_is_reported_for_each_server() {
    let set = IndependentServers::start_with(2, &durable_redis()).await.unwrap();
    let everysec = durable_redis().args(&["--appendfsync", "everysec"]).start().await.unwrap();
    let (code, seconds) = doctor_report(&redlock_url(set.servers().iter().chain([&everysec]))).await;
    assert_eq!(
        (code, subjects(&seconds, "persistence", "warn")),
        (1, vec![everysec.addr().to_string()]),
        "{seconds:#}"
    );
    let forgetful = redis::start().await.unwrap();
    let none = redlock_url(set.servers().iter().chain([&forgetful]));
    let (code, volatile) = doctor_report(&none).await;
    assert_eq!(
        (code, subjects(&volatile, "persistence", "warn")),
        (1, vec![forgetful.addr().to_string()]),
        "{volatile:#}"
    );
    let (_, strict) = doctor_report(&format!("{none}&strict=600s")).await;
    let finding = assert_finding(&strict, "persistence", "ok");
    assert!(
        findings_of(&strict, "persistence").iter().any(|one| text_of(one, "means").contains("cools down for 10 min")),
        "{finding}"
    );
    let (code, short) = doctor_report(&format!("{none}&strict=300s")).await;
    assert_eq!(code, 2, "leases of 10 min are refused");
    assert_finding(&short, "strict", "fail");
}

#[tokio::test]
async fn a_wrong_password_and_missing_permissions_are_reported_for_each_server() {
    let set = IndependentServers::start_with(3, &durable_redis()).await.unwrap();
    let locked = durable_redis().password("opensesame").start().await.unwrap();
    let hosts = redlock_url(&set.servers()[..2]);
    let wrong = format!("{},:hunter2@{}{LONG_TIMEOUT}", hosts.trim_end_matches(LONG_TIMEOUT), locked.addr());
    for more in [&[][..], &["--json"]] {
        let ran = run_doctor(&wrong, &[&LONG_TTL_OPTION, more].concat()).await;
        assert_eq!(ran.exit_code(), 2, "{}", ran.stdout());
        assert!(ran.stdout().contains("login") && !format!("{}{}", ran.stdout(), ran.stderr()).contains("hunter2"));
    }
    let (_, login) = doctor_report(&wrong).await;
    assert_eq!(subjects(&login, "login", "fail"), [locked.addr().to_string()]);
    assert!(text_of(assert_finding(&login, "majority", "warn"), "found").starts_with("2 of 3"));

    let all = "ACL SETUSER worker on >opensesame ~* +@all";
    let some = async |more: &str| {
        let words: Vec<_> = all.split(' ').chain(more.split(' ').filter(|word| !word.is_empty())).collect();
        redis_command(set.server(2), &words).await;
        let url = format!(
            "{},worker:opensesame@{}{LONG_TIMEOUT}&strict=600s",
            hosts.trim_end_matches(LONG_TIMEOUT),
            set.server(2).addr()
        );
        doctor_report(&url).await.1
    };
    for taken in ["get", "set", "del"] {
        let less = some(&format!("-{taken}")).await;
        let finding = findings_of(&less, "lock-keys").into_iter().find(|finding| finding["level"] == "fail").unwrap();
        assert_eq!(text_of(finding, "subject"), set.server(2).addr().to_string());
        assert!(text_of(finding, "found").to_lowercase().contains(taken), "{taken}: {finding}");
        assert!(text_of(finding, "fix").contains(&format!("+{taken}")), "{taken}: {finding}");
        // Without permission for DEL, the probe's keys stay until they expire.
        if taken != "del" {
            assert_eq!(redis_command(set.server(2), &["DBSIZE"]).await, Reply::Integer(0), "without {taken}");
        }
    }
    let untold = some("-config").await;
    assert_eq!(
        findings_of(&untold, "persistence").iter().filter(|one| one["level"] == "ok").count(),
        3,
        "strict needs no word"
    );
    let untold = some("-info").await;
    for check in ["same-server", "cool-down", "replicas", "memory"] {
        assert_eq!(subjects(&untold, check, "unknown"), [set.server(2).addr().to_string()], "{check}: {untold:#}");
    }
    assert_eq!(subjects(&untold, "run-id", "fail").len(), 1);
}

#[tokio::test]
async fn the_suggested_permissions_suffice_for_locks_and_for_doctor() {
    let server = durable_redis().start().await.unwrap();
    let user = async |permissions: &str| {
        let words: Vec<_> =
            "ACL SETUSER worker reset on >opensesame".split(' ').chain(permissions.split(' ')).collect();
        redis_command(&server, &words).await;
        doctor_report(&format!("redlock://worker:opensesame@{}{LONG_TIMEOUT}", server.addr())).await.1
    };
    let poor = user("~leasehold:* +evalsha +time").await;
    let cure = text_of(assert_finding(&poor, "scripts", "fail"), "fix").to_owned();
    let (needed, for_doctor) = cure.split_once("<user> ").unwrap().1.split_once("; for doctor also ").unwrap();
    let cured = user(needed).await;
    assert_eq!(checks_at_level(&cured, "fail").len(), 0, "{cured:#}");
    let cured = user(&format!("{needed} {for_doctor}")).await;
    assert_eq!(
        (checks_at_level(&cured, "warn"), checks_at_level(&cured, "unknown").len()),
        (vec!["nodes".to_owned()], 0),
        "{cured:#}"
    );
}

#[tokio::test]
async fn unexpected_keys_are_found_and_lock_keys_are_not_reported() {
    let set = IndependentServers::start_with(3, &durable_redis()).await.unwrap();
    let url = redlock_url(set.servers());
    let engine = url.clone();
    let run =
        move || TestFolder::new().run(["run", "--engine", &engine, "--ttl", LONG_TTL, "a", "--", "true"]).assert_ok();
    tokio::task::spawn_blocking(run).await.unwrap();
    assert_finding(&doctor_report(&url).await.1, "key-types", "ok");
    redis_command(set.server(0), &["RPUSH", "leasehold:qlist", "x"]).await;
    redis_command(set.server(0), &["SET", "leasehold:settings", "x"]).await;
    redis_command(set.server(0), &["PERSIST", "leasehold:qa"]).await;
    let (code, strange) = doctor_report(&url).await;
    assert_eq!(code, 2);
    for (check, level) in [("key-types", "fail"), ("foreign-keys", "warn"), ("keys-without-ttl", "warn")] {
        assert_eq!(subjects(&strange, check, level), [set.server(0).addr().to_string()], "{strange:#}");
    }
}
