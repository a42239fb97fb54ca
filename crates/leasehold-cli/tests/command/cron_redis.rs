//! `leasehold cron` on a real Redis that restarts, between processes that share only this server.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::process::Stdio;

use crate::common::{LONG_TTL, RunningCommand, TestFolder, wait_for};
use leasehold_testbed::redis::Redis;
use leasehold_testbed::{Data, Proxy, WallClock, redis};
use rustix::process::Signal;
use serde_json::Value;

/// Starts a host that runs the jobs of `file`, and appends its log to `hosts.log`.
fn start_host(place: &TestFolder, url: &str, file: &str) -> RunningCommand {
    let mut command = place.command(["cron", "--engine", url, "--ttl", "2s", "--json", file]);
    let log_file = std::fs::File::options().create(true).append(true).open(place.path("hosts.log")).unwrap();
    command.stdout(Stdio::null()).stderr(log_file);
    RunningCommand(Some(command.spawn().unwrap()))
}

/// The server's URL with a long timeout: on a busy machine a slow server is not unreachable.
fn with_long_timeout(url: &str) -> String {
    format!("{url}?connect-timeout=60s")
}

/// The runs that jobs recorded in the file `log`: their tokens, by tick.
fn recorded_runs(place: &TestFolder) -> BTreeMap<String, Vec<u64>> {
    let mut ran: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for line in place.read("log").lines() {
        let (tick, token) = line.split_once(' ').unwrap();
        ran.entry(tick.to_owned()).or_default().push(token.parse().unwrap());
    }
    ran
}

/// A host dies during a run, and a server restarts with its data: no tick runs twice, except with a
/// higher token.
#[tokio::test]
async fn ticks_run_once_across_a_killed_host_and_a_restarted_server() {
    let mut server = Redis::new().args(&["--appendonly", "yes", "--appendfsync", "always"]).start().await.unwrap();
    let url = with_long_timeout(&server.url());
    let place = TestFolder::new();
    let say = "echo $LEASEHOLD_TICK $LEASEHOLD_TOKEN >> log; sleep 0.2";
    let text = format!("CRON_SECONDS=yes\nonce: * * * * * * {say}\n");
    std::fs::write(place.path("jobs.cron"), text).unwrap();
    let mut hosts: Vec<_> = (0..4).map(|_| start_host(&place, &url, "jobs.cron")).collect();
    let ticks = |count: usize| wait_for("more ticks", || (recorded_runs(&place).len() >= count).then_some(()));
    let running = || {
        let status = place.run(["cron", "status", "--engine", &url, "--json"]).assert_ok().stdout();
        let status: Value = serde_json::from_str(&status).unwrap();
        Some(status[0]["running"][0]["node"].as_str()?.to_owned())
    };
    ticks(1);
    let node = wait_for("a run", running);
    let at = hosts.iter().position(|host| node.ends_with(&format!(":{}", host.pid().as_raw_nonzero())));
    hosts.remove(at.unwrap()).signal(Signal::KILL);
    let before = recorded_runs(&place).len();
    ticks(before + 1);
    server.kill().unwrap();
    server.restart(Data::Keep).await.unwrap();
    let before = recorded_runs(&place).len();
    ticks(before + 1);
    for host in hosts {
        host.signal(Signal::TERM);
        assert_eq!(host.wait().exit_code(), 0, "{}", place.read("hosts.log"));
    }
    let ran = recorded_runs(&place);
    assert!(ran.values().all(|tokens| tokens.len() == 1), "{ran:?}");
    assert!(ran.values().flatten().is_sorted_by(|a, b| a < b), "{ran:?}");
}

/// The server's clock jumps an hour ahead, jobs run, and the clock is corrected: no tick is due until
/// the job is reset. Then every tick is due.
#[cfg(feature = "nightly")]
#[tokio::test]
async fn a_reset_resumes_ticks_after_the_clock_was_ahead() {
    let clock = WallClock::new().unwrap();
    let server = Redis::new().clock(&clock).start().await.unwrap();
    let (place, url) = (TestFolder::new(), with_long_timeout(&server.url()));
    let say = "echo $LEASEHOLD_TICK $LEASEHOLD_TOKEN >> log";
    std::fs::write(place.path("jobs.cron"), format!("CRON_SECONDS=yes\nbeat: * * * * * * {say}\n")).unwrap();
    let host = start_host(&place, &url, "jobs.cron");
    let newest = || recorded_runs(&place).into_keys().next_back();
    let first = wait_for("a tick", newest);
    clock.set_offset(3600).unwrap();
    // A tick later than this cannot be one by the right clock.
    let hour = first.parse::<jiff::Timestamp>().unwrap() + jiff::SignedDuration::from_mins(55);
    wait_for("a tick by the wrong clock", || newest().filter(|tick| *tick > hour.to_string()));
    clock.set_offset(0).unwrap();
    let status = || {
        let status = place.run(["cron", "status", "--engine", &url, "--json"]).assert_ok().stdout();
        serde_json::from_str::<Value>(&status).unwrap()[0].clone()
    };
    wait_for("no run, and a clock that is behind", || {
        let status = status();
        (status["ahead_seconds"].is_i64() && status["running"].as_array()?.is_empty()).then_some(())
    });
    let before = recorded_runs(&place).len();
    place.run(["cron", "reset", "--engine", &url, "beat"]).assert_ok();
    wait_for("ticks by the right clock", || (recorded_runs(&place).len() >= before + 2).then_some(()));
    assert!(status()["ahead_seconds"].is_null());
    host.signal(Signal::TERM);
    assert_eq!(host.wait().exit_code(), 0, "{}", place.read("hosts.log"));
    assert!(recorded_runs(&place).values().all(|tokens| tokens.len() == 1));
}

/// A host that starts before the engine, as after a power failure, waits for it: a service manager
/// may give up on a process that exits.
#[tokio::test]
async fn a_host_that_starts_before_its_engine_waits_for_it() {
    let mut server = redis::start().await.unwrap();
    let (place, url) = (TestFolder::new(), with_long_timeout(&server.url()));
    server.kill().unwrap();
    let say = "echo $LEASEHOLD_TICK $LEASEHOLD_TOKEN >> log";
    std::fs::write(place.path("jobs.cron"), format!("CRON_SECONDS=yes\nbeat: * * * * * * {say}\n")).unwrap();
    let mut waits = start_host(&place, &url, "jobs.cron");
    let event_count = |event: &str| place.read("hosts.log").matches(&format!("\"event\":\"{event}\"")).count();
    wait_for("a host that waits", || (event_count("unreachable") == 1).then_some(()));
    // HUP has no effect: no file is loaded yet.
    waits.signal(Signal::HUP);
    let stopped = start_host(&place, &url, "jobs.cron");
    wait_for("another", || (event_count("unreachable") == 2).then_some(()));
    stopped.signal(Signal::TERM);
    assert_eq!(stopped.wait().exit_code(), 0);
    assert!(waits.try_wait().is_none(), "{}", place.read("hosts.log"));
    server.restart(Data::Keep).await.unwrap();
    wait_for("two ticks", || (recorded_runs(&place).len() >= 2).then_some(()));
    waits.signal(Signal::TERM);
    assert_eq!(waits.wait().exit_code(), 0, "{}", place.read("hosts.log"));
    assert_eq!((event_count("unreachable"), event_count("reached")), (2, 1), "each host reports it once");
    // An error that retrying cannot cure ends it at once.
    place.run(["cron", "--engine", "redis://[", "jobs.cron"]).assert_failed(64, "");
    place.run(["cron", "--engine", "nonsense:", "jobs.cron"]).assert_failed(64, "nonsense");
}

/// The system's cron on hosts whose clocks differ by minutes: a fast host waits for its tick, a
/// slow one finds that it has run.
#[tokio::test]
async fn once_per_uses_the_servers_clock_despite_host_clock_skew() {
    let server = redis::start().await.unwrap();
    let url = with_long_timeout(&server.url());
    let place = TestFolder::new();
    // A tick every other second; eight concurrent calls, with clock skew, until two ticks have run.
    let work = "echo $LEASEHOLD_TICK $LEASEHOLD_TOKEN >> log";
    let call = |skew: i64| {
        let clock = WallClock::new().unwrap();
        clock.set_offset(skew).unwrap();
        let once = ["run", "--engine", &url, "--ttl", LONG_TTL, "--once-per", "@every 2s", "mail", "-c", work];
        (place.command_with_clock(&clock, once).spawn().unwrap(), clock)
    };
    wait_for("two ticks", || {
        let calls: Vec<_> = [-300, -120, -7, 0, 3, 60, 200, 300].map(call).into();
        for (mut call, _clock) in calls {
            assert!(call.wait().unwrap().success());
        }
        (recorded_runs(&place).len() >= 2).then_some(())
    });
    let ran = recorded_runs(&place);
    assert!(ran.values().all(|tokens| tokens.len() == 1), "{ran:?}");
    assert!(ran.values().flatten().is_sorted_by(|a, b| a < b), "{ran:?}");
}

/// A stop between the end of the command and its record: the call writes the record first, because
/// otherwise another host would run it again.
#[tokio::test]
async fn a_stop_before_the_end_is_recorded_causes_no_second_run() {
    let server = redis::start().await.unwrap();
    let proxy = Proxy::start(server.addr()).await.unwrap();
    let (place, url) = (TestFolder::new(), with_long_timeout(&format!("redis://{}/", proxy.addr())));
    let once =
        ["run", "--engine", &url, "--once-per", "@yearly", "--missed", "once", "--crash", "retry:3", "mail", "-c"];
    let work = "echo $$ > pid; while [ ! -e go ]; do sleep 0.01; done; echo $LEASEHOLD_TICK $LEASEHOLD_TOKEN >> log";
    let first = place.start([&once[..], &[work]].concat());
    let pid = place.wait_for_file("pid");
    // The command ends, and the server's replies to the record are dropped.
    proxy.drop_replies(true);
    let before = proxy.counts().dropped_bytes;
    std::fs::write(place.path("go"), "").unwrap();
    wait_for("the end of the command", || (!crate::common::is_alive(&pid)).then_some(()));
    wait_for("an answer that is lost", || (proxy.counts().dropped_bytes > before).then_some(()));
    first.signal(Signal::TERM);
    proxy.drop_replies(false);
    proxy.cut();
    let ended = first.wait();
    assert_eq!(ended.exit_code(), 0, "{}", ended.stderr());
    place.run([&once[..], &[work]].concat()).assert_ok();
    let ran = recorded_runs(&place);
    assert!(ran.len() == 1 && ran.values().all(|tokens| tokens.len() == 1), "{ran:?}");
    let history = place.run(["cron", "history", "--engine", &url, "--json", "mail"]).assert_ok().stdout();
    let history: Value = serde_json::from_str(&history).unwrap();
    assert_eq!((history.as_array().unwrap().len(), &history[0]["outcome"]), (1, &Value::from("done")));
}

/// `cron status --check` must not pass when the number of hosts is unknown.
#[tokio::test]
async fn hosts_that_cannot_be_counted_fail_the_check() {
    let server = redis::start().await.unwrap();
    let url = format!("{}?protocol=simple&connect-timeout=60s", server.url());
    let work = move || {
        let place = TestFolder::new();
        let check = |least: &[&str]| place.run([&["cron", "status", "--engine", &url, "--check"], least].concat());
        for least in [&[][..], &["--min-hosts", "3"]] {
            check(least).assert_failed(1, "this engine cannot count hosts; use --min-hosts 0");
        }
        check(&["--min-hosts", "0"]).assert_ok();
    };
    tokio::task::spawn_blocking(work).await.unwrap();
}
