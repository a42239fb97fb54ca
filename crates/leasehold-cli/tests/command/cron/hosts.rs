//! Hosts that run scheduled jobs, die, and are stopped.

use crate::common::short_leases::retry_with_longer_ttls;
use crate::common::{TestFolder, wait_for};
use crate::cron::{
    RECORD_TICK, job_status, recorded_runs, remove_running_host, request_runs, start_host, start_host_with_log,
    wait_for_history, write_file,
};
use rustix::process::Signal;
use serde_json::Value;

#[test]
fn four_hosts_run_each_second_once() {
    let place = TestFolder::new();
    write_file(&place, "jobs.cron", &format!("CRON_SECONDS=yes\nbeat [overlap=queue]: * * * * * * {RECORD_TICK}\n"));
    let hosts: Vec<_> = (0..4).map(|_| start_host(&place, &[])).collect();
    wait_for("three ticks", || (recorded_runs(&place).len() >= 3).then_some(()));
    for host in &hosts {
        host.signal(Signal::TERM);
    }
    let mut started = 0;
    for host in hosts {
        let ended = host.wait();
        assert_eq!(ended.exit_code(), 0, "{}", ended.stderr());
        for output in ended.stderr().lines().map(|line| serde_json::from_str::<Value>(line).expect(line)) {
            let of_the_host = output["event"] == "stopping" || output["event"] == "stopped";
            assert!(of_the_host || output["job"] == "beat", "of which job? {output}");
            started += usize::from(output["event"] == "started");
        }
    }
    let ran = recorded_runs(&place);
    assert!(started >= 3, "{started} of {ran:?}");
    assert!(ran.values().all(|runs| runs.len() == 1), "{ran:?}");
    let tokens: Vec<_> = ran.values().map(|runs| runs[0].0).collect();
    assert!(tokens.is_sorted_by(|a, b| a < b), "{ran:?}");
    let status = job_status(&place, "beat").unwrap();
    assert_eq!(
        (&status["last"]["outcome"], &status["running"]),
        (&Value::from("done"), &Value::from(Vec::<Value>::new()))
    );
    let history: Value =
        serde_json::from_str(&place.run(["cron", "history", "beat", "--json"]).assert_ok().stdout()).unwrap();
    // The completed runs are the last of all runs: the history has twenty entries at most.
    let history: Vec<&str> = history
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| {
            assert_eq!(entry["outcome"], "done", "{entry}");
            entry["tick"].as_str().unwrap()
        })
        .collect();
    let newest: Vec<&str> = ran.keys().map(String::as_str).rev().take(20).collect();
    assert_eq!(history.into_iter().rev().collect::<Vec<_>>(), newest);
    let table = place.run(["cron", "history", "beat"]).assert_ok().stdout();
    assert!(table.contains("OUTCOME") && table.contains("done"), "{table}");
}

#[test]
fn a_host_continues_after_its_folder_was_removed_and_restored() {
    let place = TestFolder::new();
    write_file(&place, "jobs.cron", &format!("CRON_SECONDS=yes\nbeat: * * * * * * {RECORD_TICK}\n"));
    let host = start_host_with_log(&place, &[], "host.log");
    wait_for("a tick", || (!recorded_runs(&place).is_empty()).then_some(()));
    wait_for("the folder to be gone", || {
        // The host may create a file in it meanwhile.
        let _ = std::fs::remove_dir_all(place.path("locks"));
        (!place.path("locks").exists()).then_some(())
    });
    wait_for("the host to notice", || place.read("host.log").contains("\"trouble\"").then_some(()));
    place.run(["run", "other", "--", "true"]).assert_ok();
    let before = recorded_runs(&place).len();
    wait_for("further ticks", || (recorded_runs(&place).len() > before + 1).then_some(()));
    host.signal(Signal::TERM);
    assert_eq!(host.wait().exit_code(), 0);
    assert!(place.read("host.log").contains("opened again"), "{}", place.read("host.log"));
}

#[test]
fn a_killed_hosts_run_is_taken_over_with_a_higher_token_or_not_at_all() {
    for (policy, begins) in [("retry:3", 2), ("at-most-once", 1)] {
        let place = TestFolder::new();
        // The first run hangs, and records that; a second one ends. Only one tick matters.
        let work = "echo $LEASEHOLD_TICK $LEASEHOLD_TOKEN $LEASEHOLD_ATTEMPT >> log; [ -e hung ] || { echo x > hung; exec sleep 600; }";
        let year = "59 59 23 31 12 *";
        write_file(&place, "jobs.cron", &format!("CRON_SECONDS=yes\none [crash={policy}]: {year} {work}\n"));
        request_runs(&place, "jobs.cron", &["one"]);
        let mut hosts: Vec<_> = (0..3).map(|_| start_host(&place, &[])).collect();
        place.wait_for_file("hung");
        remove_running_host(&place, "one", &mut hosts).signal(Signal::KILL);
        if begins == 1 {
            // A new host detects the crash when it starts, without another tick. A later run does
            // not change that outcome.
            hosts.push(start_host(&place, &[]));
            let crashed = wait_for_history(&place, "one", 1).remove(0);
            // A request in the same second would get the same tick; the folder's clock may be
            // slightly behind the test's.
            let tick: jiff::Timestamp = crashed["tick"].as_str().unwrap().parse().unwrap();
            wait_for("the next second", || (jiff::Timestamp::now().as_second() > tick.as_second() + 1).then_some(()));
            place.run(["cron", "run-now", "one"]).assert_ok();
            hosts.push(start_host(&place, &[]));
        }
        let history = wait_for_history(&place, "one", 2);
        assert_eq!(history[0]["outcome"], "crashed");
        assert_eq!(history[1]["outcome"], "done");
        assert!(history[0]["token"].as_u64().unwrap() < history[1]["token"].as_u64().unwrap());
        assert_eq!(history[1]["attempt"], begins, "{policy}");
        assert_eq!(history[0]["tick"] == history[1]["tick"], begins == 2, "{policy}");
        for host in hosts {
            host.signal(Signal::TERM);
            host.wait().assert_ok();
        }
    }
}

/// A host that is stopped ends slow runs. Whatever the command's exit status, the host ended it:
/// the run is neither a failure nor done.
#[test]
fn a_run_ended_with_its_host_is_taken_over_or_recorded_as_lost() {
    std::thread::scope(|scope| {
        for policy in ["retry:3", "at-most-once"] {
            for on_term in ["'exit 0'", "-"] {
                scope.spawn(move || check_run_ended_with_its_host(policy, on_term));
            }
        }
    });
}

fn check_run_ended_with_its_host(policy: &str, on_term: &str) {
    let place = TestFolder::new();
    let hang = format!("trap {on_term} TERM; echo x > hung; while :; do sleep 0.01; done");
    let work = format!("{RECORD_TICK}; [ -e hung ] || {{ {hang}; }}");
    write_file(&place, "jobs.cron", &format!("one [crash={policy}]: @yearly {work}\n"));
    request_runs(&place, "jobs.cron", &["one"]);
    let mut hosts: Vec<_> = (0..2).map(|_| start_host(&place, &["--stop-grace", "50ms"])).collect();
    place.wait_for_file("hung");
    let stopped = remove_running_host(&place, "one", &mut hosts);
    stopped.signal(Signal::TERM);
    let ended = stopped.wait();
    assert_eq!(ended.exit_code(), 0, "{}", ended.stderr());
    let expected = if policy == "at-most-once" { &["lost"][..] } else { &["crashed", "done"] };
    let history = wait_for_history(&place, "one", expected.len());
    let outcomes: Vec<_> = history.iter().map(|entry| entry["outcome"].as_str().unwrap()).collect();
    assert_eq!(outcomes, expected, "{policy}, {on_term}: {history:?}");
    let ran = recorded_runs(&place);
    let attempts: Vec<u32> = ran.values().flatten().map(|(_, attempt)| *attempt).collect();
    assert_eq!((ran.len(), &attempts[..]), (1, &[1, 2][..expected.len()]), "{policy}, {on_term}");
    hosts[0].signal(Signal::TERM);
    hosts.remove(0).wait().assert_ok();
}

#[test]
fn a_run_that_takes_too_long_is_ended_with_all_its_processes() {
    retry_with_longer_ttls(attempt_ending_long_run);
}

/// One attempt of the test; `None` if the hold ended before the command had begun.
fn attempt_ending_long_run(max_hold: &str) -> Option<()> {
    let place = TestFolder::new();
    let work = "sleep 600 & echo $! > pid; trap '' TERM; wait; sleep 600";
    write_file(
        &place,
        "jobs.cron",
        &format!("one [max-hold={max_hold} kill-after=1s crash=retry:3]: @yearly {work}\n"),
    );
    request_runs(&place, "jobs.cron", &["one"]);
    let host = start_host(&place, &[]);
    let last = || Some(job_status(&place, "one")?["last"].clone()).filter(|last| !last.is_null());
    wait_for("its end", last);
    let pid = Some(place.read("pid")).filter(|pid| pid.ends_with('\n'));
    if let Some(pid) = &pid {
        wait_for("the end of its group", || (!crate::common::is_alive(pid)).then_some(()));
    }
    host.signal(Signal::TERM);
    host.wait().assert_ok();
    pid.map(|_| ())
}

/// The outcome is recorded a second before --max-hold is over: a twentieth of twenty seconds.
#[cfg(feature = "nightly")]
#[test]
fn a_run_that_takes_too_long_is_recorded_as_timed_out_and_ended_with_all_its_processes() {
    let place = TestFolder::new();
    let work = "sleep 600 & echo $! > pid; trap '' TERM; wait; sleep 600";
    write_file(&place, "jobs.cron", &format!("one [max-hold=20s kill-after=5s crash=retry:3]: @yearly {work}\n"));
    request_runs(&place, "jobs.cron", &["one"]);
    let host = start_host(&place, &[]);
    let pid = place.wait_for_file("pid");
    let last = wait_for("its end", || Some(job_status(&place, "one")?["last"].clone()).filter(|last| !last.is_null()));
    assert_eq!(
        (&last["outcome"], &last["attempt"]),
        (&Value::from("timed-out"), &Value::from(1)),
        "and it is no crash"
    );
    wait_for("the end of its group", || (!crate::common::is_alive(&pid)).then_some(()));
    host.signal(Signal::TERM);
    host.wait().assert_ok();
}
