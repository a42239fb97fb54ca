//! An operator's actions: manual runs, pauses, reloads, stops, and their output.

use crate::common::{LASTING, Place, wait_for};
use crate::cron::{SAY, events, host, host_that_says, log, status, wait_for_event, wanted, write};
use rustix::process::Signal;
use serde_json::Value;

#[test]
fn commands_have_their_environment_and_say_how_they_failed() {
    let place = Place::new();
    let text = "\
[env]\nGREETING = \"hello\"\n\
[job.good]\nschedule = \"@yearly\"\n\
argv = [\"sh\", \"-c\", \"echo $GREETING $LEASEHOLD_JOB $LEASEHOLD_NAME $LEASEHOLD_ATTEMPT > good; cat >> good\"]\n\
[job.bad]\nschedule = \"@yearly\"\ncommand = \"exit 3\"\n\
[job.none]\nschedule = \"@yearly\"\nargv = [\"./no-such-command\"]\n";
    write(&place, "jobs.toml", text);
    wanted(&place, "jobs.toml", &["none"]);
    // An unknown job does not affect the others.
    let ran = place.run(["cron", "run-now", "good", "nobody", "bad"]).failed(64, "nobody");
    assert_eq!(ran.out().lines().count(), 2, "{}", ran.out());
    let host = place.start(["cron", "--json", "--ttl", LASTING, "jobs.toml"]);
    let last =
        |job: &str| wait_for("its end", || Some(status(&place, job)?["last"].clone()).filter(|last| !last.is_null()));
    assert_eq!(last("good")["outcome"], "done");
    assert_eq!(place.read("good"), "hello good cron:good 1\n", "and no standard input");
    let bad = last("bad");
    assert_eq!((bad["outcome"].as_str(), bad["text"].as_str()), (Some("failed"), Some("exit code 3")));
    let none = last("none");
    assert_eq!(none["outcome"], "failed");
    assert!(none["text"].as_str().unwrap().contains("no-such-command"), "{none}");
    assert_eq!(none["manual"], true);
    let table = place.run(["cron", "status", "jobs.toml"]).ok().out();
    assert!(table.contains("failed (exit code 3), by hand") && table.contains("@yearly"), "{table}");
    place.run(["cron", "reset", "good"]).ok();
    host.signal(Signal::TERM);
    let events = host.end().events();
    let said = |what: &str, job: &str| events.iter().any(|event| event["event"] == what && event["job"] == job);
    assert!(said("joined", "good") && said("began", "bad") && said("ended", "none"), "{events:?}");
}

/// Without a restart: an idle host looks every ten seconds.
#[cfg(feature = "nightly")]
#[test]
fn a_run_by_hand_is_noticed_by_a_host_that_sleeps() {
    let place = Place::new();
    write(&place, "jobs.cron", &format!("one: @yearly {SAY}\n"));
    let host = host(&place, &[]);
    wait_for("the job to be known", || status(&place, "one"));
    place.run(["cron", "run-now", "one"]).ok();
    assert_eq!(crate::cron::history(&place, "one", 1)[0]["outcome"], "done");
    host.signal(Signal::TERM);
    host.end().ok();
}

#[test]
fn a_pause_a_reload_and_a_stop_are_heeded() {
    let place = Place::new();
    write(&place, "jobs.cron", &format!("CRON_SECONDS=yes\nbeat: * * * * * * {SAY}\n"));
    let host = host_that_says(&place, &["--stop-grace", "100ms"], "said");
    wait_for("a tick", || (!log(&place).is_empty()).then_some(()));
    place.run(["cron", "pause", "beat"]).ok();
    wait_for("no run", || status(&place, "beat")?["running"].as_array()?.is_empty().then_some(()));
    let before = log(&place).len();
    assert_eq!(status(&place, "beat").unwrap()["paused"], true);
    let table = place.run(["cron", "status"]).ok().out();
    assert!(table.contains("paused by") && table.contains("  paused  "), "{table}");
    // A file with mistakes changes nothing, a correct one is loaded; its new job runs although the
    // other one is paused.
    write(&place, "jobs.cron", "nonsense\n");
    host.signal(Signal::HUP);
    let refused = wait_for_event(&place, "said", "refused");
    assert!(refused["message"].as_str().unwrap().contains("jobs.cron:1: "), "{refused}");
    write(
        &place,
        "jobs.cron",
        &format!(
            "CRON_SECONDS=yes\nbeat: * * * * * * {SAY}\nslow: * * * * * * exec 2>/dev/null; trap 'echo term > term; exit 0' TERM; echo > slow; while :; do sleep 0.01; done\n"
        ),
    );
    host.signal(Signal::HUP);
    wait_for_event(&place, "said", "reloaded");
    place.wait_for_file("slow");
    assert_eq!(log(&place).len(), before, "the pause holds");
    host.signal(Signal::TERM);
    assert_eq!((host.end().code(), place.read("term").trim()), (0, "term"), "{}", place.read("said"));
    assert!(events(&place, "said").iter().any(|event| event["event"] == "ended" && event["outcome"] == "lost"));
    assert_eq!(status(&place, "slow").unwrap()["running"].as_array().unwrap().len(), 0);
}

/// The JSON output and the table agree, and both include ticks that did not run.
#[test]
fn the_last_run_is_the_same_for_people_and_programs() {
    let place = Place::new();
    let work = "echo > begun; while [ ! -e go ]; do sleep 0.01; done";
    write(&place, "jobs.cron", &format!("CRON_SECONDS=yes\nbeat: * * * * * * {work}\nnone: 0 0 3 1 1 * true\n"));
    write(&place, "only.cron", "CRON_SECONDS=yes\nbeat: * * * * * * true\n");
    // No host runs them yet, but their next times are known.
    let new: Vec<Value> =
        serde_json::from_str(&place.run(["cron", "status", "--json", "jobs.cron"]).ok().out()).unwrap();
    assert!(new.iter().all(|job| job["known"] == false && job["next"].is_string()), "{new:?}");
    let table = place.run(["cron", "status", "jobs.cron"]).ok().out();
    assert!(table.contains("-01-01 03:00:00 UTC") && table.contains("not run anywhere yet"), "{table}");
    let host = host(&place, &[]);
    place.wait_for_file("begun");
    let running = status(&place, "beat").unwrap()["running"][0]["tick"].as_str().unwrap().to_owned();
    let table = place.run(["cron", "status"]).ok().out();
    assert!(table.contains(&format!("runs {running} on ")), "{table}");
    // The run ends after the next tick, which is skipped.
    let tick = running.parse::<jiff::Timestamp>().unwrap();
    wait_for("the next tick", || (jiff::Timestamp::now() > tick + jiff::SignedDuration::from_secs(2)).then_some(()));
    write(&place, "go", "");
    let status = wait_for("a tick that is left out", || {
        status(&place, "beat").filter(|status| status["last_entry"]["outcome"] == "overlapped")
    });
    assert_eq!(status["last"]["outcome"], "done", "{status}");
    host.signal(Signal::TERM);
    host.end().ok();
}

#[test]
fn a_stop_gives_a_run_its_time_and_one_that_is_sent_twice_is_one() {
    let place = Place::new();
    let work = "echo > begun; while [ ! -e go ]; do sleep 0.01; done; echo > ended";
    write(&place, "jobs.cron", &format!("one: @yearly {work}\n"));
    wanted(&place, "jobs.cron", &["one"]);
    let mut host = host(&place, &["--stop-grace", "600s"]);
    place.wait_for_file("begun");
    host.signal(Signal::TERM);
    host.signal(Signal::TERM);
    // It starts no further run, and does not end the first.
    place.run(["cron", "run-now", "one"]).ok();
    assert!(host.ended().is_none());
    write(&place, "go", "");
    let ended = host.end();
    assert_eq!(ended.code(), 0, "{}", ended.err());
    assert_eq!(place.read("ended"), "\n");
    let status = status(&place, "one").unwrap();
    assert_eq!((&status["last"]["outcome"], &status["wanted"]), (&Value::from("done"), &Value::from(1)));
}

/// As systemd does it with `SendSIGHUP=yes`.
#[test]
fn a_reload_after_a_stop_begins_nothing() {
    let place = Place::new();
    let work = "echo $LEASEHOLD_TICK >> begun; while [ ! -e go ]; do sleep 0.01; done; echo > ended";
    write(&place, "jobs.cron", &format!("one: @yearly {work}\n"));
    wanted(&place, "jobs.cron", &["one"]);
    let mut host = host(&place, &["--stop-grace", "600s"]);
    place.wait_for_file("begun");
    host.signal(Signal::TERM);
    host.signal(Signal::HUP);
    // A participating host would start this when the first run has ended.
    place.run(["cron", "run-now", "one"]).ok();
    host.signal(Signal::HUP);
    assert!(host.ended().is_none());
    write(&place, "go", "");
    let ended = host.end();
    assert_eq!((ended.code(), place.read("ended").as_str()), (0, "\n"), "{}", ended.err());
    assert_eq!(place.read("begun").lines().count(), 1);
    let status = status(&place, "one").unwrap();
    assert_eq!((&status["last"]["outcome"], &status["wanted"]), (&Value::from("done"), &Value::from(1)));
}
