//! An operator's actions: manual runs, pauses, reloads, stops, and their output.

use crate::common::{LONG_TTL, TestFolder, wait_for};
use crate::cron::{
    RECORD_TICK, job_status, read_events, recorded_runs, request_runs, start_host, start_host_with_log, wait_for_event,
    write_file,
};
use rustix::process::Signal;
use serde_json::Value;

#[test]
fn commands_get_their_environment_and_their_failures_are_recorded() {
    let place = TestFolder::new();
    let text = "\
[env]\nGREETING = \"hello\"\n\
[job.good]\nschedule = \"@yearly\"\n\
argv = [\"sh\", \"-c\", \"echo $GREETING $LEASEHOLD_JOB $LEASEHOLD_NAME $LEASEHOLD_ATTEMPT > good; cat >> good\"]\n\
[job.bad]\nschedule = \"@yearly\"\ncommand = \"exit 3\"\n\
[job.none]\nschedule = \"@yearly\"\nargv = [\"./no-such-command\"]\n";
    write_file(&place, "jobs.toml", text);
    request_runs(&place, "jobs.toml", &["none"]);
    // An unknown job does not affect the others.
    let ran = place.run(["cron", "run-now", "good", "nobody", "bad"]).assert_failed(64, "nobody");
    assert_eq!(ran.stdout().lines().count(), 2, "{}", ran.stdout());
    let host = place.start(["cron", "--json", "--ttl", LONG_TTL, "jobs.toml"]);
    let last = |job: &str| {
        wait_for("its end", || Some(job_status(&place, job)?["last"].clone()).filter(|last| !last.is_null()))
    };
    assert_eq!(last("good")["outcome"], "done");
    assert_eq!(place.read("good"), "hello good cron:good 1\n", "and no standard input");
    let bad = last("bad");
    assert_eq!((bad["outcome"].as_str(), bad["text"].as_str()), (Some("failed"), Some("exit code 3")));
    let none = last("none");
    assert_eq!(none["outcome"], "failed");
    assert!(none["text"].as_str().unwrap().contains("no-such-command"), "{none}");
    assert_eq!(none["manual"], true);
    let table = place.run(["cron", "status", "jobs.toml"]).assert_ok().stdout();
    assert!(table.contains("failed (exit code 3), by hand") && table.contains("@yearly"), "{table}");
    place.run(["cron", "reset", "good"]).assert_ok();
    host.signal(Signal::TERM);
    let events = host.wait().events();
    let has_event = |what: &str, job: &str| events.iter().any(|event| event["event"] == what && event["job"] == job);
    assert!(has_event("joined", "good") && has_event("began", "bad") && has_event("ended", "none"), "{events:?}");
}

/// The host is not restarted: an idle host looks for manual runs every ten seconds.
#[cfg(feature = "nightly")]
#[test]
fn an_idle_host_notices_a_manual_run() {
    let place = TestFolder::new();
    write_file(&place, "jobs.cron", &format!("one: @yearly {RECORD_TICK}\n"));
    let host = start_host(&place, &[]);
    wait_for("the job to be known", || job_status(&place, "one"));
    place.run(["cron", "run-now", "one"]).assert_ok();
    assert_eq!(crate::cron::wait_for_history(&place, "one", 1)[0]["outcome"], "done");
    host.signal(Signal::TERM);
    host.wait().assert_ok();
}

#[test]
fn hosts_obey_pause_reload_and_stop() {
    let place = TestFolder::new();
    write_file(&place, "jobs.cron", &format!("CRON_SECONDS=yes\nbeat: * * * * * * {RECORD_TICK}\n"));
    let host = start_host_with_log(&place, &["--stop-grace", "100ms"], "host.log");
    wait_for("a tick", || (!recorded_runs(&place).is_empty()).then_some(()));
    place.run(["cron", "pause", "beat"]).assert_ok();
    wait_for("no run", || job_status(&place, "beat")?["running"].as_array()?.is_empty().then_some(()));
    let before = recorded_runs(&place).len();
    assert_eq!(job_status(&place, "beat").unwrap()["paused"], true);
    let table = place.run(["cron", "status"]).assert_ok().stdout();
    assert!(table.contains("paused by") && table.contains("  paused  "), "{table}");
    // A file with mistakes is refused, a correct one is loaded; its new job runs although the
    // other one is paused.
    write_file(&place, "jobs.cron", "nonsense\n");
    host.signal(Signal::HUP);
    let refused = wait_for_event(&place, "host.log", "refused");
    assert!(refused["message"].as_str().unwrap().contains("jobs.cron:1: "), "{refused}");
    write_file(
        &place,
        "jobs.cron",
        &format!(
            "CRON_SECONDS=yes\nbeat: * * * * * * {RECORD_TICK}\nslow: * * * * * * exec 2>/dev/null; trap 'echo term > term; exit 0' TERM; echo > slow; while :; do sleep 0.01; done\n"
        ),
    );
    host.signal(Signal::HUP);
    wait_for_event(&place, "host.log", "reloaded");
    place.wait_for_file("slow");
    assert_eq!(recorded_runs(&place).len(), before, "the pause holds");
    host.signal(Signal::TERM);
    assert_eq!((host.wait().exit_code(), place.read("term").trim()), (0, "term"), "{}", place.read("host.log"));
    assert!(
        read_events(&place, "host.log").iter().any(|event| event["event"] == "ended" && event["outcome"] == "lost")
    );
    assert_eq!(job_status(&place, "slow").unwrap()["running"].as_array().unwrap().len(), 0);
}

/// The JSON output and the table agree, and both include ticks that did not run.
#[test]
fn the_table_and_the_json_show_the_same_last_run() {
    let place = TestFolder::new();
    let work = "echo > begun; while [ ! -e go ]; do sleep 0.01; done";
    write_file(&place, "jobs.cron", &format!("CRON_SECONDS=yes\nbeat: * * * * * * {work}\nnone: 0 0 3 1 1 * true\n"));
    write_file(&place, "only.cron", "CRON_SECONDS=yes\nbeat: * * * * * * true\n");
    // No host runs them yet, but their next times are known.
    let new: Vec<Value> =
        serde_json::from_str(&place.run(["cron", "status", "--json", "jobs.cron"]).assert_ok().stdout()).unwrap();
    assert!(new.iter().all(|job| job["known"] == false && job["next"].is_string()), "{new:?}");
    let table = place.run(["cron", "status", "jobs.cron"]).assert_ok().stdout();
    assert!(table.contains("-01-01 03:00:00 UTC") && table.contains("not run anywhere yet"), "{table}");
    let host = start_host(&place, &[]);
    place.wait_for_file("begun");
    let running = job_status(&place, "beat").unwrap()["running"][0]["tick"].as_str().unwrap().to_owned();
    let table = place.run(["cron", "status"]).assert_ok().stdout();
    assert!(table.contains(&format!("runs {running} on ")), "{table}");
    // The run ends after the next tick, which is skipped.
    let tick = running.parse::<jiff::Timestamp>().unwrap();
    wait_for("the next tick", || (jiff::Timestamp::now() > tick + jiff::SignedDuration::from_secs(2)).then_some(()));
    write_file(&place, "go", "");
    let status = wait_for("a tick that is left out", || {
        job_status(&place, "beat").filter(|status| status["last_entry"]["outcome"] == "overlapped")
    });
    assert_eq!(status["last"]["outcome"], "done", "{status}");
    host.signal(Signal::TERM);
    host.wait().assert_ok();
}

#[test]
fn a_stop_grants_the_grace_and_a_repeated_signal_counts_once() {
    let place = TestFolder::new();
    let work = "echo > begun; while [ ! -e go ]; do sleep 0.01; done; echo > ended";
    write_file(&place, "jobs.cron", &format!("one: @yearly {work}\n"));
    request_runs(&place, "jobs.cron", &["one"]);
    let mut host = start_host(&place, &["--stop-grace", "600s"]);
    place.wait_for_file("begun");
    host.signal(Signal::TERM);
    host.signal(Signal::TERM);
    // After the stop, the host starts no further run, and does not end the active one.
    place.run(["cron", "run-now", "one"]).assert_ok();
    assert!(host.try_wait().is_none());
    write_file(&place, "go", "");
    let ended = host.wait();
    assert_eq!(ended.exit_code(), 0, "{}", ended.stderr());
    assert_eq!(place.read("ended"), "\n");
    let status = job_status(&place, "one").unwrap();
    assert_eq!((&status["last"]["outcome"], &status["wanted"]), (&Value::from("done"), &Value::from(1)));
}

/// The signals of systemd with `SendSIGHUP=yes`: TERM, then HUP.
#[test]
fn a_reload_after_a_stop_starts_no_run() {
    let place = TestFolder::new();
    let work = "echo $LEASEHOLD_TICK >> begun; while [ ! -e go ]; do sleep 0.01; done; echo > ended";
    write_file(&place, "jobs.cron", &format!("one: @yearly {work}\n"));
    request_runs(&place, "jobs.cron", &["one"]);
    let mut host = start_host(&place, &["--stop-grace", "600s"]);
    place.wait_for_file("begun");
    host.signal(Signal::TERM);
    host.signal(Signal::HUP);
    // A participating host would start this when the first run has ended.
    place.run(["cron", "run-now", "one"]).assert_ok();
    host.signal(Signal::HUP);
    assert!(host.try_wait().is_none());
    write_file(&place, "go", "");
    let ended = host.wait();
    assert_eq!((ended.exit_code(), place.read("ended").as_str()), (0, "\n"), "{}", ended.stderr());
    assert_eq!(place.read("begun").lines().count(), 1);
    let status = job_status(&place, "one").unwrap();
    assert_eq!((&status["last"]["outcome"], &status["wanted"]), (&Value::from("done"), &Value::from(1)));
}
