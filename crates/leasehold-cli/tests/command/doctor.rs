//! `doctor` on real servers with good and bad settings, and with few permissions.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::Place;
use crate::common::examined::{checks, command, durable, examine, found, of, plain, report};
use leasehold_testbed::Server;
use leasehold_testbed::redis::{self, Cluster, Redis, Reply, Resp, SentinelSet};
use serde_json::Value;

/// The URL of a user with these permissions.
async fn user(server: &Server, permissions: &str) -> String {
    let words: Vec<_> = "ACL SETUSER worker on >opensesame".split(' ').chain(permissions.split(' ')).collect();
    command(server, &words).await;
    format!("redis://worker:opensesame@127.0.0.1:{}", server.port())
}

#[tokio::test]
async fn a_server_that_forgets_nothing_is_fit() {
    let server = durable().start().await.unwrap();
    let (code, report) = report(&server.url()).await;
    assert_eq!((code, &report["verdict"]), (0, &Value::from("ok")), "{report:#}");
    assert_eq!(report["url"].as_str().unwrap(), server.url());
    for check in ["reachable", "role", "scripts", "script-time", "lock-keys", "pubsub", "tracking", "eviction-policy"] {
        found(&report, check, "ok");
    }
    assert_eq!(command(&server, &["DBSIZE"]).await, Reply::Integer(0), "nothing is left behind");
    let text = examine(&server.url(), &[]).await.ok().out();
    assert!(text.starts_with("LEVEL") && text.trim_end().ends_with("fit for locks"), "{text}");
}

#[tokio::test]
async fn a_server_that_keeps_nothing_on_disk_is_warned_of() {
    let server = plain().start().await.unwrap();
    let (code, report) = report(&server.url()).await;
    assert_eq!((code, checks(&report, "warn")), (1, vec!["persistence".to_owned(), "restart".into()]), "{report:#}");
    // Strict mode makes up for it.
    let strict = format!("{}?strict=30s", server.url());
    assert_eq!(examine(&strict, &[]).await.code(), 0);
}

#[tokio::test]
async fn eviction_is_a_failure() {
    let server = durable().args(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]).start().await.unwrap();
    let (code, report) = report(&server.url()).await;
    assert_eq!((code, &report["verdict"]), (2, &Value::from("fail")));
    let finding = found(&report, "eviction-policy", "fail");
    assert!(finding["found"].as_str().unwrap().contains("allkeys-lru"), "{finding}");
    assert!(finding["fix"].as_str().unwrap().contains("noeviction"), "{finding}");
    let text = examine(&server.url(), &[]).await.out();
    let first = text.lines().nth(1).unwrap();
    assert!(first.starts_with("fail") && first.contains("eviction-policy"), "the worst comes first: {text}");
}

#[tokio::test]
async fn a_replica_is_no_place_for_locks_and_its_master_should_wait_for_it() {
    let master = redis::start().await.unwrap();
    let replica = redis::replica_of(&master).start().await.unwrap();
    // The replica lags until it has the master's writes.
    let mut raw = Resp::connect(master.addr()).await.unwrap();
    raw.command(&["SET", "x", "1", "PX", "1"]).await.unwrap();
    assert_eq!(raw.command(&["WAIT", "1", "120000"]).await.unwrap(), Reply::Integer(1));
    let (code, of_replica) = report(&replica.url()).await;
    assert_eq!(code, 2);
    let finding = found(&of_replica, "role", "fail");
    assert!(finding["found"].as_str().unwrap().contains(&format!("127.0.0.1:{}", master.port())), "{finding}");
    let (code, of_master) = report(&master.url()).await;
    assert_eq!(code, 1);
    for check in ["min-replicas", "empty-restart", "persistence"] {
        found(&of_master, check, "warn");
    }
    found(&of_master, "replica-lag", "ok");
    let (code, wanting) = report(&format!("{}?replicas=2", master.url())).await;
    assert_eq!(code, 2);
    found(&wanting, "replicas", "fail");
}

#[tokio::test]
async fn a_holder_that_died_is_found() {
    let server = durable().start().await.unwrap();
    let url = server.url();
    let (_, before) = report(&url).await;
    assert!(of(&before, "ended-holders").is_empty(), "{before:#}");
    let kill = move || {
        let place = Place::new();
        let work = "echo > begun; exec sleep 600";
        let held = place.start(["run", "--engine", &url, "--ttl", "2s", "died", "-c", work]);
        place.wait_for_file("begun");
        held.signal(rustix::process::Signal::KILL);
        crate::common::wait_for("its lease to be over", || {
            place.run(["show", "--engine", &url, "died"]).out().contains("free").then_some(())
        });
    };
    tokio::task::spawn_blocking(kill).await.unwrap();
    let (code, after) = report(&server.url()).await;
    assert_eq!(code, 1);
    let finding = found(&after, "ended-holders", "warn");
    assert!(finding["found"].as_str().unwrap().contains("leasehold:l{died}"), "{finding}");
}

#[tokio::test]
async fn what_a_server_does_not_tell_is_unknown_and_never_ok() {
    let server = durable().start().await.unwrap();
    let url = user(&server, "~* &* +@all -config").await;
    let (code, some) = report(&url).await;
    assert_eq!((code, &some["verdict"]), (1, &Value::from("unknown")), "{some:#}");
    for check in ["output-buffer", "persistence"] {
        let finding = found(&some, check, "unknown");
        assert!(finding["found"].as_str().unwrap().contains("NOPERM"), "{finding}");
    }
    // INFO has it, too.
    found(&some, "eviction-policy", "ok");

    let url = user(&server, "-info -slowlog -role -time").await;
    let (_, less) = report(&url).await;
    for check in ["role", "eviction-policy", "evicted-keys", "memory", "restart", "min-replicas", "clock", "slow-log"] {
        found(&less, check, "unknown");
    }
}

#[tokio::test]
async fn what_locks_need_and_may_not_do_is_a_failure_and_the_cure_works() {
    let server = durable().start().await.unwrap();
    command(&server, &["HSET", "leasehold:l{a}", "m", "F"]).await;
    command(&server, &["EXPIRE", "leasehold:l{a}", "600"]).await;
    let url = user(&server, "~* &* +@all -eval").await;
    let (code, no_eval) = report(&url).await;
    assert_eq!(code, 2);
    let finding = found(&no_eval, "scripts", "fail");
    assert!(finding["found"].as_str().unwrap().contains("NOPERM"), "{finding}");
    for check in ["script-time", "lock-keys", "pubsub"] {
        found(&no_eval, check, "fail");
    }
    found(&no_eval, "key-types", "unknown");

    let url = user(&server, "+eval -time").await;
    found(&report(&url).await.1, "script-time", "fail");
    let url = user(&server, "+time resetkeys ~other:*").await;
    found(&report(&url).await.1, "lock-keys", "fail");
    let url = user(&server, "~* resetchannels").await;
    found(&report(&url).await.1, "pubsub", "fail");

    let cure = finding["fix"].as_str().unwrap();
    let (needed, for_doctor) = cure.split_once("<user> ").unwrap().1.split_once("; for doctor also ").unwrap();
    let url = user(&server, &format!("reset on >opensesame {needed}")).await;
    let (code, poor) = report(&url).await;
    assert_eq!((code, checks(&poor, "fail").len()), (1, 0), "{poor:#}");
    let url = user(&server, for_doctor).await;
    let (code, cured) = report(&url).await;
    assert_eq!(code, 0, "{cured:#}");
}

#[tokio::test]
async fn a_wrong_password_is_a_failure_and_is_not_shown() {
    let server = Redis::new().password("opensesame").start().await.unwrap();
    for login in ["worker:hunter2", ":hunter2"] {
        let url = format!("redis://{login}@127.0.0.1:{}", server.port());
        for more in [&[][..], &["--json"]] {
            let ran = examine(&url, more).await;
            assert_eq!(ran.code(), 2, "{}", ran.out());
            assert!(ran.out().contains("login") && !format!("{}{}", ran.out(), ran.err()).contains("hunter2"));
        }
    }
    let (code, report) = report(&format!("redis://127.0.0.1:{}", server.port())).await;
    assert_eq!(code, 2);
    assert_ne!(checks(&report, "fail"), Vec::<String>::new());
}

#[tokio::test]
async fn strange_keys_below_the_prefix_are_found() {
    let server = durable().start().await.unwrap();
    for words in [
        &["RPUSH", "leasehold:l{list}", "x"][..],
        &["SET", "leasehold:settings", "x"],
        &["HSET", "leasehold:l{other}", "field", "x"],
        &["HSET", "leasehold:l{immortal}", "m", "F00000000000000010000000000"],
        &["HSET", "leasehold:l{half}", "m", "R00000000000000010000000000"],
        &["EXPIRE", "leasehold:l{half}", "60"],
        &["SET", "elsewhere:l{x}", "x"],
    ] {
        command(&server, words).await;
    }
    let (code, report) = report(&server.url()).await;
    assert_eq!(code, 2);
    for (check, level, key) in [
        ("key-types", "fail", "l{list}"),
        ("foreign-keys", "warn", "settings"),
        ("foreign-keys", "warn", "l{other}"),
        ("keys-without-ttl", "warn", "l{immortal}"),
        ("orphans", "warn", "l{half}"),
    ] {
        let finding = found(&report, check, level);
        assert!(finding["found"].as_str().unwrap().contains(&format!("leasehold:{key}")), "{finding}");
    }
    assert!(!report.to_string().contains("elsewhere"));
    assert_eq!(command(&server, &["DBSIZE"]).await, Reply::Integer(6), "all is left as it was");
}

#[tokio::test]
async fn nobody_there_or_nobody_awake_is_a_finding() {
    let mut server = redis::start().await.unwrap();
    // Only scripts block.
    command(&server, &["CLIENT", "PAUSE", "60000", "WRITE"]).await;
    let (code, silent) = report(&server.url()).await;
    assert_eq!(code, 2);
    found(&silent, "reachable", "fail");
    found(&silent, "scripts", "unknown");
    server.pause().unwrap();
    let (code, asleep) = report(&format!("{}?connect-timeout=200ms", server.url())).await;
    assert_eq!(code, 2);
    found(&asleep, "reachable", "fail");
    server.kill().unwrap();
    let (code, away) = report(&server.url()).await;
    assert_eq!(code, 2);
    let finding = found(&away, "reachable", "fail");
    assert!(finding["found"].as_str().unwrap().contains("refused"), "{finding}");
    for url in ["redis+sentinel://127.0.0.1:1/mymaster", "redis+cluster://127.0.0.1:1"] {
        let (code, report) = report(url).await;
        assert_eq!((code, &report["verdict"]), (2, &Value::from("fail")), "{report:#}");
    }
}

#[tokio::test]
async fn sentinels_are_asked_and_so_is_whom_they_name() {
    let mut set = SentinelSet::start(1).await.unwrap();
    let (code, report_of_all) = report(&set.url()).await;
    assert_eq!((code, checks(&report_of_all, "fail").len()), (1, 0), "{report_of_all:#}");
    for check in ["sentinel-master", "sentinels", "sentinel-quorum", "failover-time", "clocks", "role", "pubsub"] {
        found(&report_of_all, check, "ok");
    }
    assert_eq!(of(&report_of_all, "reachable").len(), 2, "the master and its replica");
    found(&report_of_all, "min-replicas", "warn");
    let slow = examine(&set.url(), &["--json", "--ttl", "2s"]).await;
    found(&serde_json::from_str(&slow.out()).unwrap(), "failover-time", "warn");
    let wrong = set.url().rsplit_once('/').unwrap().0.to_owned() + "/other";
    let (code, nobody) = report(&wrong).await;
    assert_eq!(code, 2);
    found(&nobody, "sentinel-master", "fail");

    set.sentinels_mut()[0].kill().unwrap();
    set.sentinels_mut()[1].kill().unwrap();
    let (_, fewer) = report(&set.url()).await;
    assert_eq!(of(&fewer, "sentinel-reachable").len(), 2);
}

#[tokio::test]
async fn each_node_of_a_cluster_is_examined() {
    let mut cluster = Cluster::start(3, 1).await.unwrap();
    let url = format!("redis+cluster://{}", cluster.addrs()[0]);
    let (code, whole) = report(&url).await;
    assert_eq!((code, checks(&whole, "fail").len()), (1, 0), "{whole:#}");
    for check in ["cluster-state", "cluster-masters", "cluster-replicas", "failover-time", "clocks", "lock-keys"] {
        found(&whole, check, "ok");
    }
    assert_eq!((of(&whole, "reachable").len(), of(&whole, "pubsub").len()), (6, 3));
    // A single node of it does not serve all locks, and a single server is not a cluster.
    let (code, alone) = report(&format!("redis://{}", cluster.addrs()[0])).await;
    assert_eq!(code, 2);
    found(&alone, "cluster-mode", "fail");
    let single = redis::start().await.unwrap();
    let (code, no_cluster) = report(&format!("redis+cluster://{}", single.addr())).await;
    assert_eq!(code, 2);
    found(&no_cluster, "cluster-state", "fail");
    // An unreachable replica is a warning: it can no longer be promoted.
    cluster.kill_node(3).unwrap();
    let (code, lame) = report(&url).await;
    assert_eq!(code, 1, "{lame:#}");
    assert!(of(&lame, "reachable").iter().any(|finding| finding["level"] == "warn"), "{lame:#}");
}

#[test]
fn folders_and_memory_have_small_reports() {
    let place = Place::new();
    let said = place.run(["doctor"]).ok().out();
    assert!(said.contains("folder") && said.contains("file-system") && said.contains("space"), "{said}");
    assert!(!place.path("locks").exists(), "looking makes nothing");
    std::fs::write(place.path("locks"), "no folder").unwrap();
    let ran = place.run(["doctor"]);
    assert_eq!(ran.code(), 2, "{}", ran.out());
    assert!(ran.out().contains("is not a folder"), "{}", ran.out());
    place.run(["doctor", "--engine", "memory:"]).ok();
    place.run(["doctor", "--engine", "redis://h1,h2"]).failed(64, "one server");
    place.run(["doctor", "--ttl", "0"]).failed(64, "longer than nothing");
}

/// The command in docs/redis-acl.md.
fn least() -> Vec<String> {
    let page = include_str!("../../../../docs/redis-acl.md");
    let line = page.lines().find(|line| line.starts_with("ACL SETUSER app on")).unwrap();
    line.split(' ').map(str::to_owned).collect()
}

#[tokio::test]
async fn the_least_user_is_fit_and_the_probe_leaves_nothing_behind() {
    let server = durable().start().await.unwrap();
    let least = least();
    let url = server.url().replace("redis://", "redis://app:secret@");
    let doctors = ["+ping", "+info", "+role", "+scan", "+type", "+hlen", "+pttl", "+exists", "+client"];
    for taken in ["", "+expire", "+hget", "+hset", "+hdel"] {
        let allowed = least.iter().map(String::as_str).filter(|word| *word != taken);
        command(&server, &allowed.chain(doctors).collect::<Vec<_>>()).await;
        let (_, report) = report(&url).await;
        let level = if taken.is_empty() { "ok" } else { "fail" };
        let finding = found(&report, "lock-keys", level);
        if !taken.is_empty() {
            let named = finding["found"].as_str().unwrap().to_lowercase();
            assert!(named.contains(&taken[1..]), "{taken}: {finding}");
            command(&server, &["ACL", "DELUSER", "app"]).await;
        }
        if taken != "+hdel" {
            let left = command(&server, &["DBSIZE"]).await;
            assert_eq!(left, Reply::Integer(0), "without {taken:?}");
        }
    }
}
