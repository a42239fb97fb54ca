//! Three hosts in one folder, whose clocks differ by minutes: each tick runs once. The fleets of
//! eight hosts, with kills and engine restarts, take minutes.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::process::Stdio;

use crate::common::{LONG_TTL, RunningCommand, TestFolder, wait_for};
use leasehold_testbed::WallClock;
use rustix::process::Signal;

/// The hosts' clock skews, in seconds.
const SKEWS: [i64; 3] = [-300, 0, 300];

/// Starts a host whose clock is wrong by `skew` seconds; returns when it uses that clock.
fn start_host(place: &TestFolder, skew: i64) -> (RunningCommand, WallClock) {
    let clock = WallClock::new().unwrap();
    clock.set_offset(skew).unwrap();
    let mut command = place.command_with_clock(&clock, ["cron", "--ttl", LONG_TTL, "--json", "jobs.cron"]);
    let log_file = std::fs::File::options().create(true).append(true).open(place.path("hosts.log")).unwrap();
    let host = RunningCommand(Some(command.stdout(Stdio::null()).stderr(log_file).spawn().unwrap()));
    let maps = format!("/proc/{}/maps", host.pid().as_raw_nonzero());
    wait_for("a host with a clock of its own", || {
        std::fs::read_to_string(&maps).unwrap().contains("libfaketime").then_some(())
    });
    (host, clock)
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

#[test]
fn each_tick_runs_once_among_hosts_whose_clocks_differ() {
    let place = TestFolder::new();
    let say = "echo $LEASEHOLD_TICK $LEASEHOLD_TOKEN >> log";
    let text = format!("CRON_SECONDS=yes\nLD_PRELOAD=\nbeat [overlap=queue]: * * * * * * {say}\n");
    std::fs::write(place.path("jobs.cron"), text).unwrap();
    let hosts: Vec<_> = SKEWS.iter().map(|skew| start_host(&place, *skew)).collect();
    wait_for("three hosts", || (place.read("hosts.log").matches("\"event\":\"joined\"").count() == 3).then_some(()));
    let before = recorded_runs(&place).len();
    wait_for("three more ticks", || (recorded_runs(&place).len() >= before + 3).then_some(()));
    for (host, _clock) in hosts {
        host.signal(Signal::TERM);
        assert_eq!(host.wait().exit_code(), 0, "{}", place.read("hosts.log"));
    }
    let ran = recorded_runs(&place);
    assert!(ran.values().all(|tokens| tokens.len() == 1), "{ran:?}");
    assert!(ran.values().flatten().is_sorted_by(|a, b| a < b), "{ran:?}");
}
