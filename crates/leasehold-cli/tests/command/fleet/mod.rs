//! A fleet of eight hosts with clock skews of up to five minutes, all with the same schedule. One
//! of them is killed during a run, the engine is restarted, and a host joins after each of the two.
//! Before that, an operator pauses a job, and runs it manually. The jobs record their own runs.
//!
//! The naive fleets ([`naive`]), in which each host uses its own clock, are the controls.
#![allow(clippy::unwrap_used, reason = "tests")]

mod host;
mod naive;
mod tick_ledger;

use crate::common::{TestFolder, wait_for};
use host::{Host, JOBS, all_logs};
use leasehold_testbed::redis::Redis;
use leasehold_testbed::{Data, Server, mariadb, postgres, zookeeper};
use rustix::process::Signal;
use tick_ledger::{
    ActiveRun, OutcomeLimits, TickLedger, active_run, has_ended, max_concurrent_runs, recorded_runs, skipped_ticks,
};

/// The hosts' clock skews, in seconds.
const SKEWS: [i64; 8] = [-300, -173, -41, -2, 0, 3, 77, 300];

/// The skews of the hosts that join after the kill, and after the restart.
const LATE_SKEWS: [i64; 2] = [300, -300];

/// Waits until a job has recorded runs of this many more ticks in `file`.
#[track_caller]
fn wait_for_more_ticks(place: &TestFolder, file: &str, count: usize) {
    let before = recorded_runs(place, file).len();
    let wanted = || (recorded_runs(place, file).len() >= before + count).then_some(());
    let seen = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| wait_for("more ticks", wanted)));
    assert!(seen.is_ok(), "no {count} more ticks of {file} after {before}: {}", all_logs(place));
}

/// Kills a host during a run of `long`. Returns that run, and how many hosts it had to kill.
fn kill_host_during_run(place: &TestFolder, url: &str, hosts: &mut Vec<Host>) -> (ActiveRun, usize) {
    for killed in 1.. {
        // A run that has just started: it lasts for three seconds.
        let old = recorded_runs(place, "long.log");
        let is_new =
            |run: &ActiveRun| !old.get(&run.tick).is_some_and(|runs| runs.iter().any(|(token, _)| *token == run.token));
        let run = wait_for("a long run that has just begun", || {
            active_run(place, url, "long").filter(is_new).filter(|run| hosts.iter().any(|host| host.pid() == run.pid))
        });
        let at = hosts.iter().position(|host| host.pid() == run.pid).unwrap();
        hosts.remove(at).kill();
        // If the machine stalled meanwhile, the run may have completed.
        if !has_ended(place, url, "long", run.token) {
            return (run, killed);
        }
    }
    unreachable!("there are no more hosts than numbers")
}

/// Acts as an operator: pauses the job `hand`, runs it manually meanwhile, and resumes it.
fn pause_and_run_manually(place: &TestFolder, url: &str) {
    let operate = |what: &str| place.run(["cron", what, "--engine", url, "hand"]).assert_ok();
    wait_for_more_ticks(place, "hand.log", 1);
    operate("pause");
    // A run in progress completes.
    wait_for("no run", || active_run(place, url, "hand").is_none().then_some(()));
    let before = recorded_runs(place, "hand.log");
    wait_for_more_ticks(place, "all.log", 4);
    assert_eq!(recorded_runs(place, "hand.log"), before, "the pause holds");
    operate("run-now");
    wait_for_more_ticks(place, "hand.log", 1);
    wait_for_more_ticks(place, "all.log", 4);
    let after = recorded_runs(place, "hand.log");
    assert_eq!(after.len(), before.len() + 1, "once, and the pause holds: {after:?}");
    operate("resume");
    wait_for_more_ticks(place, "hand.log", 2);
    let runs = recorded_runs(place, "hand.log");
    assert!(runs.values().all(|runs| runs.len() == 1), "{runs:?}");
    assert!(runs.values().flatten().is_sorted_by(|a, b| a.0 < b.0), "{runs:?}");
}

/// Runs the whole scenario on an engine; `restart` restarts the engine, or for a folder the hosts.
async fn run_fleet(place: &TestFolder, url: &str, restart: impl AsyncFnOnce(&mut Vec<Host>)) {
    std::fs::write(place.path("jobs.cron"), JOBS).unwrap();
    let mut hosts: Vec<Host> = SKEWS.iter().map(|skew| Host::start(place, url, *skew)).collect();
    // The clocks are indeed wrong by this much.
    assert!((590..=610).contains(&(hosts[7].clock_seconds() - hosts[0].clock_seconds())));
    hosts.iter().for_each(Host::wait_for_own_clock);
    // Each job's name, and how many of its runs may be concurrent.
    let mut ledgers = [("once", 1, TickLedger::default()), ("beside", 3, TickLedger::default())];
    let mut look = || ledgers.iter_mut().for_each(|(job, _, ledger)| ledger.record_history(place, url, job));
    wait_for_more_ticks(place, "all.log", 3);
    pause_and_run_manually(place, url);
    look();
    let (killed, kills) = kill_host_during_run(place, url, &mut hosts);
    hosts.push(Host::start(place, url, LATE_SKEWS[0]).wait_joined());
    wait_for_more_ticks(place, "all.log", 5);
    assert_taken_over(place, &killed);
    look();
    let gone = jiff::Timestamp::now();
    restart(&mut hosts).await;
    hosts.push(Host::start(place, url, LATE_SKEWS[1]).wait_joined());
    wait_for_more_ticks(place, "all.log", 3);
    // The grace is a minute, of which a dead host's locks take a part.
    let late = jiff::Timestamp::now().duration_since(gone).as_secs() > 45;
    look();
    for file in ["once.log", "beside.log", "long.log"] {
        wait_for_more_ticks(place, file, 3);
    }
    for host in &hosts {
        host.signal(Signal::TERM);
    }
    for host in hosts {
        assert_eq!(host.wait(), 0, "{}", all_logs(place));
    }
    look();
    assert_each_tick_ran(place);
    for (job, at_once, mut ledger) in ledgers {
        ledger.record_events(place, job);
        let bound = OutcomeLimits { max_crashed_or_lost: at_once * (kills + 1), may_be_late: late };
        assert_started_at_most_once(place, job, &ledger, bound);
    }
    let most = max_concurrent_runs(place, "beside.log");
    assert!((2..=3).contains(&most), "{most} at once: {}", place.read("beside.log"));
}

/// Asserts that the killed host's run starts again on another host, for the same tick and with a
/// higher token.
fn assert_taken_over(place: &TestFolder, killed: &ActiveRun) {
    let again = wait_for("the run of the killed host to be taken over", || {
        let runs = recorded_runs(place, "long.log").remove(&killed.tick)?;
        runs.into_iter().find(|(_, attempt)| *attempt > killed.attempt)
    });
    assert!(again.0 > killed.token, "{killed:?} {again:?}");
}

/// Asserts for jobs with retries that every tick from the first to the last ran, and ran again only
/// after a crash, with a higher token and attempt.
fn assert_each_tick_ran(place: &TestFolder) {
    let all = recorded_runs(place, "all.log");
    assert!(skipped_ticks(&all).is_empty(), "a tick was left out: {all:?}");
    for file in ["all.log", "long.log"] {
        let runs = recorded_runs(place, file);
        assert!(runs.values().all(|runs| runs.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1)), "{file}: {runs:?}");
        // Only runs in progress at the kill and at the restart ran again.
        let again = runs.values().filter(|runs| runs.len() > 1).count();
        assert!(again <= 4, "{file}: {again} ticks ran again: {runs:?}");
    }
    // Each run completed at most once, and each tick but the last two completed, even if its first
    // run was stopped during the engine's outage.
    let (long, ends) = (recorded_runs(place, "long.log"), place.read("long.end"));
    let ended = |tick: &str| ends.lines().filter(|line| *line == tick).count();
    assert!(ends.lines().all(|tick| long.contains_key(tick)), "{ends} {long:?}");
    assert!(long.iter().all(|(tick, runs)| ended(tick) <= runs.len()), "{ends} {long:?}");
    assert!(long.keys().rev().skip(2).all(|tick| ended(tick) >= 1), "{ends} {long:?}; {}", all_logs(place));
}

/// Asserts for an at-most-once job that no tick started twice, and that every skipped tick has a
/// recorded reason.
fn assert_started_at_most_once(place: &TestFolder, job: &str, ledger: &TickLedger, bound: OutcomeLimits) {
    let runs = recorded_runs(place, &format!("{job}.log"));
    assert!(runs.values().all(|runs| runs.len() == 1), "{job}: {runs:?}");
    assert!(runs.values().flatten().all(|(_, attempt)| *attempt == 1), "{job}: {runs:?}");
    if job == "once" {
        assert!(runs.values().flatten().is_sorted_by(|a, b| a.0 < b.0), "{runs:?}");
    }
    ledger.assert_explains(job, &runs, bound, place);
}

/// Runs the scenario on a server that is killed with KILL and restarts with its data.
async fn run_fleet_on_server(server: Server) {
    let url = server.url();
    run_fleet_at(&url, server).await;
}

async fn run_fleet_at(url: &str, mut server: Server) {
    run_fleet(&TestFolder::new(), url, async |_| {
        server.kill().unwrap();
        server.restart(Data::Keep).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_fleet_runs_each_tick_once_on_redis() {
    let durable = Redis::new().args(&["--appendonly", "yes", "--appendfsync", "always"]);
    run_fleet_on_server(durable.start().await.unwrap()).await;
}

#[tokio::test]
async fn a_fleet_runs_each_tick_once_on_zookeeper() {
    let server = zookeeper::start().await.unwrap();
    run_fleet_at(&format!("zookeeper://{}", server.addr()), server).await;
}

#[tokio::test]
async fn a_fleet_runs_each_tick_once_on_mariadb() {
    run_fleet_on_server(mariadb::start().await.unwrap()).await;
}

#[tokio::test]
async fn a_fleet_runs_each_tick_once_on_postgres() {
    run_fleet_on_server(postgres::start().await.unwrap()).await;
}

/// A folder has no server: all hosts are killed at once, and started again. They are stopped first,
/// so that none of them takes over a killed host's run before it is killed itself.
#[tokio::test]
async fn a_fleet_runs_each_tick_once_on_a_folder() {
    let place = TestFolder::new();
    let url = place.engine();
    run_fleet(&place, &url, async |hosts| {
        for host in &*hosts {
            host.signal(Signal::STOP);
        }
        for host in hosts.drain(..) {
            host.kill();
        }
        hosts.extend(SKEWS.iter().map(|skew| Host::start(&place, &url, *skew)));
    })
    .await;
}
