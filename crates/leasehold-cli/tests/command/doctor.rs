//! `doctor` on real servers with good and bad settings, and with few permissions.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::TestFolder;
use crate::common::doctor_report::{
    assert_finding, checks_at_level, doctor_report, durable_redis, findings_of, plain_redis, redis_command, run_doctor,
};
use leasehold_testbed::Server;
use leasehold_testbed::redis::{self, Cluster, Redis, Reply, RespClient, SentinelSet};
use serde_json::Value;

/// Creates or changes the user `worker` with these permissions; returns the URL with its login.
async fn create_user(server: &Server, permissions: &str) -> String {
    let words: Vec<_> = "ACL SETUSER worker on >opensesame".split(' ').chain(permissions.split(' ')).collect();
    redis_command(server, &words).await;
    format!("redis://worker:opensesame@127.0.0.1:{}", server.port())
}

#[tokio::test]
async fn a_durable_server_is_fit() {
    let server = durable_redis().start().await.unwrap();
    let (code, report) = doctor_report(&server.url()).await;
    assert_eq!((code, &report["verdict"]), (0, &Value::from("ok")), "{report:#}");
    assert_eq!(report["url"].as_str().unwrap(), server.url());
    for check in ["reachable", "role", "scripts", "script-time", "lock-keys", "pubsub", "tracking", "eviction-policy"] {
        assert_finding(&report, check, "ok");
    }
    assert_eq!(redis_command(&server, &["DBSIZE"]).await, Reply::Integer(0), "the probe leaves no keys");
    let text = run_doctor(&server.url(), &[]).await.assert_ok().stdout();
    assert!(text.starts_with("LEVEL") && text.trim_end().ends_with("fit for locks"), "{text}");
}

#[tokio::test]
async fn a_server_without_persistence_is_a_warning() {
    let server = plain_redis().start().await.unwrap();
    let (code, report) = doctor_report(&server.url()).await;
    assert_eq!(
        (code, checks_at_level(&report, "warn")),
        (1, vec!["persistence".to_owned(), "restart".into()]),
        "{report:#}"
    );
    // In strict mode, losing data at a restart is harmless.
    let strict = format!("{}?strict=30s", server.url());
    assert_eq!(run_doctor(&strict, &[]).await.exit_code(), 0);
}

#[tokio::test]
async fn eviction_is_a_failure() {
    let server =
        durable_redis().args(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]).start().await.unwrap();
    let (code, report) = doctor_report(&server.url()).await;
    assert_eq!((code, &report["verdict"]), (2, &Value::from("fail")));
    let finding = assert_finding(&report, "eviction-policy", "fail");
    assert!(finding["found"].as_str().unwrap().contains("allkeys-lru"), "{finding}");
    assert!(finding["fix"].as_str().unwrap().contains("noeviction"), "{finding}");
    let text = run_doctor(&server.url(), &[]).await.stdout();
    let first = text.lines().nth(1).unwrap();
    assert!(first.starts_with("fail") && first.contains("eviction-policy"), "the worst comes first: {text}");
}

#[tokio::test]
async fn a_replica_is_unfit_and_its_master_should_wait_for_it() {
    let master = redis::start().await.unwrap();
    let replica = redis::replica_of(&master).start().await.unwrap();
    // The replica lags until it has the master's writes.
    let mut raw = RespClient::connect(master.addr()).await.unwrap();
    raw.command(&["SET", "x", "1", "PX", "1"]).await.unwrap();
    assert_eq!(raw.command(&["WAIT", "1", "120000"]).await.unwrap(), Reply::Integer(1));
    let (code, of_replica) = doctor_report(&replica.url()).await;
    assert_eq!(code, 2);
    let finding = assert_finding(&of_replica, "role", "fail");
    assert!(finding["found"].as_str().unwrap().contains(&format!("127.0.0.1:{}", master.port())), "{finding}");
    let (code, of_master) = doctor_report(&master.url()).await;
    assert_eq!(code, 1);
    for check in ["min-replicas", "empty-restart", "persistence"] {
        assert_finding(&of_master, check, "warn");
    }
    assert_finding(&of_master, "replica-lag", "ok");
    let (code, wanting) = doctor_report(&format!("{}?replicas=2", master.url())).await;
    assert_eq!(code, 2);
    assert_finding(&wanting, "replicas", "fail");
}

#[tokio::test]
async fn a_holder_that_died_is_found() {
    let server = durable_redis().start().await.unwrap();
    let url = server.url();
    let (_, before) = doctor_report(&url).await;
    assert!(findings_of(&before, "ended-holders").is_empty(), "{before:#}");
    let kill = move || {
        let place = TestFolder::new();
        let _killed = place.start_killed_holder(&url, "died");
        crate::common::wait_for("its lease to be over", || {
            place.run(["show", "--engine", &url, "died"]).stdout().contains("free").then_some(())
        });
    };
    tokio::task::spawn_blocking(kill).await.unwrap();
    let (code, after) = doctor_report(&server.url()).await;
    assert_eq!(code, 1);
    let finding = assert_finding(&after, "ended-holders", "warn");
    assert!(finding["found"].as_str().unwrap().contains("leasehold:l{died}"), "{finding}");
}

#[tokio::test]
async fn unreported_settings_are_unknown_and_never_ok() {
    let server = durable_redis().start().await.unwrap();
    let url = create_user(&server, "~* &* +@all -config").await;
    let (code, some) = doctor_report(&url).await;
    assert_eq!((code, &some["verdict"]), (1, &Value::from("unknown")), "{some:#}");
    for check in ["output-buffer", "persistence"] {
        let finding = assert_finding(&some, check, "unknown");
        assert!(finding["found"].as_str().unwrap().contains("NOPERM"), "{finding}");
    }
    // INFO reports the eviction policy, too.
    assert_finding(&some, "eviction-policy", "ok");

    let url = create_user(&server, "-info -slowlog -role -time").await;
    let (_, less) = doctor_report(&url).await;
    for check in ["role", "eviction-policy", "evicted-keys", "memory", "restart", "min-replicas", "clock", "slow-log"] {
        assert_finding(&less, check, "unknown");
    }
}

#[tokio::test]
async fn missing_permissions_are_failures_and_the_fix_works() {
    let server = durable_redis().start().await.unwrap();
    redis_command(&server, &["HSET", "leasehold:l{a}", "m", "1S"]).await;
    redis_command(&server, &["EXPIRE", "leasehold:l{a}", "600"]).await;
    let url = create_user(&server, "~* &* +@all -eval").await;
    let (code, no_eval) = doctor_report(&url).await;
    assert_eq!(code, 2);
    let finding = assert_finding(&no_eval, "scripts", "fail");
    assert!(finding["found"].as_str().unwrap().contains("NOPERM"), "{finding}");
    for check in ["script-time", "lock-keys", "pubsub"] {
        assert_finding(&no_eval, check, "fail");
    }
    assert_finding(&no_eval, "key-types", "unknown");

    let url = create_user(&server, "+eval -time").await;
    assert_finding(&doctor_report(&url).await.1, "script-time", "fail");
    let url = create_user(&server, "+time resetkeys ~other:*").await;
    assert_finding(&doctor_report(&url).await.1, "lock-keys", "fail");
    let url = create_user(&server, "~* resetchannels").await;
    assert_finding(&doctor_report(&url).await.1, "pubsub", "fail");

    let cure = finding["fix"].as_str().unwrap();
    let (needed, for_doctor) = cure.split_once("<user> ").unwrap().1.split_once("; for doctor also ").unwrap();
    let url = create_user(&server, &format!("reset on >opensesame {needed}")).await;
    let (code, poor) = doctor_report(&url).await;
    assert_eq!((code, checks_at_level(&poor, "fail").len()), (1, 0), "{poor:#}");
    let url = create_user(&server, for_doctor).await;
    let (code, cured) = doctor_report(&url).await;
    assert_eq!(code, 0, "{cured:#}");
}

#[tokio::test]
async fn a_wrong_password_is_a_failure_and_is_not_shown() {
    let server = Redis::new().password("opensesame").start().await.unwrap();
    for login in ["worker:hunter2", ":hunter2"] {
        let url = format!("redis://{login}@127.0.0.1:{}", server.port());
        for more in [&[][..], &["--json"]] {
            let ran = run_doctor(&url, more).await;
            assert_eq!(ran.exit_code(), 2, "{}", ran.stdout());
            assert!(ran.stdout().contains("login") && !format!("{}{}", ran.stdout(), ran.stderr()).contains("hunter2"));
        }
    }
    let (code, report) = doctor_report(&format!("redis://127.0.0.1:{}", server.port())).await;
    assert_eq!(code, 2);
    assert_ne!(checks_at_level(&report, "fail"), Vec::<String>::new());
}

#[tokio::test]
async fn unexpected_keys_below_the_prefix_are_found() {
    let server = durable_redis().start().await.unwrap();
    for words in [
        &["RPUSH", "leasehold:l{list}", "x"][..],
        &["SET", "leasehold:settings", "x"],
        &["HSET", "leasehold:l{other}", "field", "x"],
        &["HSET", "leasehold:l{immortal}", "m", "1S"],
        &["HSET", "leasehold:l{half}", "m", "1Q"],
        &["EXPIRE", "leasehold:l{half}", "60"],
        &["HSET", "leasehold:l{newer}", "m", "2 from the future"],
        &["EXPIRE", "leasehold:l{newer}", "60"],
        &["SET", "elsewhere:l{x}", "x"],
    ] {
        redis_command(&server, words).await;
    }
    let (code, report) = doctor_report(&server.url()).await;
    assert_eq!(code, 2);
    for (check, level, key) in [
        ("key-types", "fail", "l{list}"),
        ("foreign-keys", "warn", "settings"),
        ("foreign-keys", "warn", "l{other}"),
        ("keys-without-ttl", "warn", "l{immortal}"),
        ("orphans", "warn", "l{half}"),
        ("key-formats", "fail", "l{newer}"),
    ] {
        let finding = assert_finding(&report, check, level);
        assert!(finding["found"].as_str().unwrap().contains(&format!("leasehold:{key}")), "{finding}");
    }
    assert!(!report.to_string().contains("elsewhere"));
    assert_eq!(redis_command(&server, &["DBSIZE"]).await, Reply::Integer(7), "all is left as it was");
}

#[tokio::test]
async fn an_unreachable_or_paused_server_is_a_finding() {
    let mut server = redis::start().await.unwrap();
    // The server answers, but blocks all scripts.
    redis_command(&server, &["CLIENT", "PAUSE", "60000", "WRITE"]).await;
    let (code, silent) = doctor_report(&server.url()).await;
    assert_eq!(code, 2);
    assert_finding(&silent, "reachable", "fail");
    assert_finding(&silent, "scripts", "unknown");
    server.pause().unwrap();
    let (code, asleep) = doctor_report(&format!("{}?connect-timeout=200ms", server.url())).await;
    assert_eq!(code, 2);
    assert_finding(&asleep, "reachable", "fail");
    server.kill().unwrap();
    let (code, away) = doctor_report(&server.url()).await;
    assert_eq!(code, 2);
    let finding = assert_finding(&away, "reachable", "fail");
    assert!(finding["found"].as_str().unwrap().contains("refused"), "{finding}");
    for url in ["redis+sentinel://127.0.0.1:1/mymaster", "redis+cluster://127.0.0.1:1"] {
        let (code, report) = doctor_report(url).await;
        assert_eq!((code, &report["verdict"]), (2, &Value::from("fail")), "{report:#}");
    }
}

#[tokio::test]
async fn sentinels_and_the_master_they_name_are_examined() {
    let mut set = SentinelSet::start(1).await.unwrap();
    let (code, report_of_all) = doctor_report(&set.url()).await;
    assert_eq!((code, checks_at_level(&report_of_all, "fail").len()), (1, 0), "{report_of_all:#}");
    for check in ["sentinel-master", "sentinels", "sentinel-quorum", "failover-time", "clocks", "role", "pubsub"] {
        assert_finding(&report_of_all, check, "ok");
    }
    assert_eq!(findings_of(&report_of_all, "reachable").len(), 2, "the master and its replica");
    assert_finding(&report_of_all, "min-replicas", "warn");
    let slow = run_doctor(&set.url(), &["--json", "--ttl", "2s"]).await;
    assert_finding(&serde_json::from_str(&slow.stdout()).unwrap(), "failover-time", "warn");
    let wrong = set.url().rsplit_once('/').unwrap().0.to_owned() + "/other";
    let (code, unknown_master) = doctor_report(&wrong).await;
    assert_eq!(code, 2);
    assert_finding(&unknown_master, "sentinel-master", "fail");

    set.sentinels_mut()[0].kill().unwrap();
    set.sentinels_mut()[1].kill().unwrap();
    let (_, fewer) = doctor_report(&set.url()).await;
    assert_eq!(findings_of(&fewer, "sentinel-reachable").len(), 2);
}

#[tokio::test]
async fn each_node_of_a_cluster_is_examined() {
    let mut cluster = Cluster::start(3, 1).await.unwrap();
    let url = format!("redis+cluster://{}", cluster.addrs()[0]);
    let (code, whole) = doctor_report(&url).await;
    assert_eq!((code, checks_at_level(&whole, "fail").len()), (1, 0), "{whole:#}");
    for check in ["cluster-state", "cluster-masters", "cluster-replicas", "failover-time", "clocks", "lock-keys"] {
        assert_finding(&whole, check, "ok");
    }
    assert_eq!((findings_of(&whole, "reachable").len(), findings_of(&whole, "pubsub").len()), (6, 3));
    // A single node of it does not serve all locks, and a single server is not a cluster.
    let (code, alone) = doctor_report(&format!("redis://{}", cluster.addrs()[0])).await;
    assert_eq!(code, 2);
    assert_finding(&alone, "cluster-mode", "fail");
    let single = redis::start().await.unwrap();
    let (code, no_cluster) = doctor_report(&format!("redis+cluster://{}", single.addr())).await;
    assert_eq!(code, 2);
    assert_finding(&no_cluster, "cluster-state", "fail");
    // An unreachable replica is a warning: it can no longer be promoted.
    cluster.kill_node(3).unwrap();
    let (code, lame) = doctor_report(&url).await;
    assert_eq!(code, 1, "{lame:#}");
    assert!(findings_of(&lame, "reachable").iter().any(|finding| finding["level"] == "warn"), "{lame:#}");
}

#[test]
fn folders_and_memory_have_small_reports() {
    let place = TestFolder::new();
    let output = place.run(["doctor"]).assert_ok().stdout();
    assert!(output.contains("folder") && output.contains("file-system") && output.contains("space"), "{output}");
    assert!(!place.path("locks").exists(), "an inspection creates no folder");
    std::fs::write(place.path("locks"), "no folder").unwrap();
    let ran = place.run(["doctor"]);
    assert_eq!(ran.exit_code(), 2, "{}", ran.stdout());
    assert!(ran.stdout().contains("is not a folder"), "{}", ran.stdout());
    place.run(["doctor", "--engine", "memory:"]).assert_ok();
    place.run(["doctor", "--engine", "redis://h1,h2"]).assert_failed(64, "one server");
    place.run(["doctor", "--ttl", "0"]).assert_failed(64, "longer than zero");
}

/// The words of the ACL command in docs/redis-acl.md, which creates a user with minimal
/// permissions.
fn minimal_acl_command() -> Vec<String> {
    let page = include_str!("../../../../docs/redis-acl.md");
    let line = page.lines().find(|line| line.starts_with("ACL SETUSER app on")).unwrap();
    line.split(' ').map(str::to_owned).collect()
}

#[tokio::test]
async fn the_minimal_user_is_fit_and_the_probe_leaves_no_data() {
    let server = durable_redis().start().await.unwrap();
    let least = minimal_acl_command();
    let url = server.url().replace("redis://", "redis://app:secret@");
    let doctors = ["+ping", "+info", "+role", "+scan", "+type", "+hlen", "+pttl", "+exists", "+client"];
    for taken in ["", "+expire", "+hget", "+hset", "+hdel"] {
        let allowed = least.iter().map(String::as_str).filter(|word| *word != taken);
        redis_command(&server, &allowed.chain(doctors).collect::<Vec<_>>()).await;
        let (_, report) = doctor_report(&url).await;
        let level = if taken.is_empty() { "ok" } else { "fail" };
        let finding = assert_finding(&report, "lock-keys", level);
        if !taken.is_empty() {
            let named = finding["found"].as_str().unwrap().to_lowercase();
            assert!(named.contains(&taken[1..]), "{taken}: {finding}");
            redis_command(&server, &["ACL", "DELUSER", "app"]).await;
        }
        if taken != "+hdel" {
            let left = redis_command(&server, &["DBSIZE"]).await;
            assert_eq!(left, Reply::Integer(0), "without {taken:?}");
        }
    }
}
