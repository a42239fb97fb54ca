//! `leasehold run --once-per`: one run per tick, by the first call.

use std::io::{BufRead, BufReader};

use crate::common::{TestFolder, wait_for};
use crate::cron::{RECORD_TICK, job_status, recorded_runs};
use rustix::process::Signal;
use serde_json::Value;

#[test]
fn once_per_runs_once_among_concurrent_calls() {
    let place = TestFolder::new();
    // The tick of a year is hardly ever near: a call shortly before a tick would wait for it.
    let call = |command: &str| {
        place
            .command(["run", "--once-per", "@yearly", "--missed", "once", "-v", "mail", "-c", command])
            .output()
            .unwrap()
    };
    let calls: Vec<_> = std::thread::scope(|scope| {
        let calls: Vec<_> = (0..8).map(|_| scope.spawn(|| call(RECORD_TICK))).collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    for call in &calls {
        assert_eq!(call.status.code(), Some(0), "{}", String::from_utf8_lossy(&call.stderr));
    }
    let ran = recorded_runs(&place);
    assert_eq!(ran.len(), 1, "{ran:?}");
    assert!(ran.iter().all(|(tick, runs)| tick.ends_with("-01-01T00:00:00Z") && runs.len() == 1), "{ran:?}");
    let quiet =
        calls.iter().filter(|call| String::from_utf8_lossy(&call.stderr).contains("no tick is due here")).count();
    assert_eq!(quiet, 7);
    assert_eq!(job_status(&place, "mail").unwrap()["last"]["outcome"], "done");
}

/// Calls with -n succeed even while another one holds the lock and has not recorded its run yet.
#[test]
fn once_per_calls_that_do_not_wait_succeed() {
    let place = TestFolder::new();
    for round in 0..8 {
        let job = format!("mail{round}");
        let call = || {
            let once = ["run", "--once-per", "@yearly", "--missed", "once", "-n", &job, "-c", "echo x >> log"];
            place.run(once)
        };
        let calls: Vec<_> = std::thread::scope(|scope| {
            let calls: Vec<_> = (0..8).map(|_| scope.spawn(call)).collect();
            calls.into_iter().map(|call| call.join().unwrap()).collect()
        });
        for call in calls {
            assert_eq!(call.exit_code(), 0, "{}", call.stderr());
        }
        assert_eq!(place.read("log").lines().count(), round + 1);
    }
}

/// The signal comes when the command has ended, and only --min-hold keeps the lock.
#[test]
fn once_per_a_signal_after_the_end_keeps_the_commands_exit_code() {
    let place = TestFolder::new();
    for code in [0, 3] {
        let (job, command) = (format!("job{code}"), format!("exit {code}"));
        let once = ["run", "--once-per", "@yearly", "--missed", "once", "--min-hold", "600s", "--json"];
        let mut call = place.start([&once[..], &[&job, "-c", &command]].concat());
        let output = BufReader::new(call.0.as_mut().unwrap().stderr.take().unwrap());
        let is_end = |line: &String| serde_json::from_str::<Value>(line).unwrap()["entered"] == true;
        output.lines().map(Result::unwrap).find(is_end).expect("an end that is entered");
        assert_eq!(place.holder_count(&format!("cron:{job}")), 1);
        call.signal(Signal::TERM);
        assert_eq!(call.wait().exit_code(), code);
    }
}

#[test]
fn once_per_returns_the_commands_exit_code() {
    let place = TestFolder::new();
    let once = ["run", "--once-per", "@yearly", "--missed", "once"];
    assert_eq!(place.run([&once[..], &["a", "-c", "exit 7"]].concat()).exit_code(), 7);
    assert_eq!(place.run([&once[..], &["a", "-c", "exit 7"]].concat()).exit_code(), 0, "it has run");
    assert_eq!(place.run([&once[..], &["b", "--", "./no-such-command"]].concat()).exit_code(), 127);
    place.run(["run", "--once-per", "61 * * * *", "a", "--", "true"]).assert_failed(64, "field 1 (minute)");
    place.run(["run", "--zone", "UTC", "a", "--", "true"]).assert_failed(64, "--once-per");
    // A run is active elsewhere, and does not end.
    let held = place.start([&once[..], &["c", "--", "cat"]].concat());
    wait_for("the run", || Some(()).filter(|()| place.holder_count("cron:c") == 1));
    place.run([&once[..], &["c", "-n", "-E", "9", "--", "true"]].concat()).assert_ok();
    let retry = ["run", "--once-per", "@yearly", "--crash", "retry:2", "-n", "-E", "9", "c", "--", "true"];
    assert_eq!(place.run(retry).exit_code(), 9, "it would take over, and does not wait");
    held.close_input_and_wait().assert_ok();
}

#[test]
fn once_per_takes_over_a_killed_run_and_forwards_signals() {
    let place = TestFolder::new();
    let call = |job: &str, command: &str| {
        place.start(["run", "--once-per", "@yearly", "--missed", "once", "--crash", "retry:3", job, "-c", command])
    };
    let hung = call("a", &format!("{RECORD_TICK}; echo > begun; exec sleep 600"));
    place.wait_for_file("begun");
    let waiting = call("a", RECORD_TICK);
    place.wait_for_waiters("cron:a", 1);
    hung.signal(Signal::KILL);
    assert_eq!(waiting.wait().exit_code(), 0);
    let ran = recorded_runs(&place);
    let runs = ran.values().next().unwrap();
    assert_eq!((ran.len(), runs.len()), (1, 2), "{ran:?}");
    assert!(runs[0].0 < runs[1].0 && (runs[0].1, runs[1].1) == (1, 2), "{ran:?}");

    let running = call("b", "trap 'echo > term; exit 5' TERM; echo > up; while :; do sleep 0.01; done");
    place.wait_for_file("up");
    let idle = call("b", "true");
    place.wait_for_waiters("cron:b", 1);
    idle.signal(Signal::TERM);
    assert_eq!(idle.wait().exit_code(), 143, "it waited");
    running.signal(Signal::TERM);
    assert_eq!((running.wait().exit_code(), place.read("term").as_str()), (5, "\n"));
}
