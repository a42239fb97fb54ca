//! `leasehold cron` and `leasehold run --once-per`, on a folder: real processes, the real clock.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::common::{Place, Running, wait_for};
use rustix::process::Signal;
use serde_json::Value;

/// What the jobs of these tests do: they say for which tick they run, and with which token.
const SAY: &str = "echo $LEASEHOLD_TICK $LEASEHOLD_TOKEN $LEASEHOLD_ATTEMPT >> log";

fn write(place: &Place, name: &str, text: &str) {
    std::fs::write(place.path(name), text).unwrap();
}

/// A host that runs the file.
fn host(place: &Place, options: &[&str]) -> Running {
    // In a folder a dead host's lock is free at once: a long TTL costs nothing, and no host that stands still loses its lock.
    place.start([&["cron", "--json", "--ttl", "20s"], options, &["jobs.cron"]].concat())
}

/// The same, and what it says goes into a file.
fn host_that_says(place: &Place, options: &[&str], file: &str) -> Running {
    let mut command = place.leasehold([&["cron", "--json", "--ttl", "20s"], options, &["jobs.cron"]].concat());
    command.stdout(Stdio::null()).stderr(std::fs::File::create(place.path(file)).unwrap());
    Running(Some(command.spawn().unwrap()))
}

/// Everything in a file that a host says, each line of which must be an event.
fn events(place: &Place, file: &str) -> Vec<Value> {
    place.read(file).lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

/// Waits until a host has said so.
fn wait_for_event(place: &Place, file: &str, event: &str) -> Value {
    // The last line may be half of one.
    let lines =
        |text: String| text.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(str::to_owned).collect();
    wait_for(event, || {
        let lines: Vec<String> = lines(place.read(file));
        lines.iter().map(|line| serde_json::from_str::<Value>(line).expect(line)).find(|said| said["event"] == event)
    })
}

/// Takes the host that runs this job now out of the others.
fn who_runs(place: &Place, job: &str, hosts: &mut Vec<Running>) -> Running {
    let node = status(place, job).unwrap()["running"][0]["node"].as_str().unwrap().to_owned();
    let at = hosts.iter().position(|host| node.ends_with(&format!(":{}", host.pid().as_raw_nonzero()))).unwrap();
    hosts.remove(at)
}

/// Waits until a job's history is so long.
fn history(place: &Place, job: &str, length: usize) -> Vec<Value> {
    wait_for("the end of it", || {
        let history = place.run(["cron", "history", job, "--json"]).ok().out();
        let history: Vec<Value> = serde_json::from_str(&history).unwrap();
        (history.len() == length).then_some(history)
    })
}

/// What was run: tick -> (token, attempt).
fn log(place: &Place) -> BTreeMap<String, Vec<(u64, u32)>> {
    let mut ran: BTreeMap<String, Vec<(u64, u32)>> = BTreeMap::new();
    for line in place.read("log").lines() {
        let words: Vec<_> = line.split(' ').collect();
        ran.entry(words[0].to_owned()).or_default().push((words[1].parse().unwrap(), words[2].parse().unwrap()));
    }
    ran
}

fn status(place: &Place, job: &str) -> Option<Value> {
    let all: Value = serde_json::from_str(&place.run(["cron", "status", "--json"]).ok().out()).unwrap();
    all.as_array().unwrap().iter().find(|status| status["job"] == job).cloned()
}

#[test]
fn four_hosts_run_each_second_once() {
    let place = Place::new();
    write(&place, "jobs.cron", &format!("CRON_SECONDS=yes\nbeat [overlap=queue]: * * * * * * {SAY}\n"));
    let hosts: Vec<_> = (0..4).map(|_| host(&place, &[])).collect();
    wait_for("five ticks", || (log(&place).len() >= 5).then_some(()));
    for host in &hosts {
        host.signal(Signal::TERM);
    }
    let mut started = 0;
    for host in hosts {
        let ended = host.end();
        assert_eq!(ended.code(), 0, "{}", ended.err());
        for said in ended.err().lines().map(|line| serde_json::from_str::<Value>(line).expect(line)) {
            assert!(said["job"] == "beat", "of which job? {said}");
            started += usize::from(said["event"] == "started");
        }
    }
    let ran = log(&place);
    assert!(started >= 5, "{started} of {ran:?}");
    assert!(ran.values().all(|runs| runs.len() == 1), "{ran:?}");
    let tokens: Vec<_> = ran.values().map(|runs| runs[0].0).collect();
    assert!(tokens.is_sorted_by(|a, b| a < b), "{ran:?}");
    let status = status(&place, "beat").unwrap();
    assert_eq!(
        (&status["last"]["outcome"], &status["running"]),
        (&Value::from("done"), &Value::from(Vec::<Value>::new()))
    );
    let history: Value = serde_json::from_str(&place.run(["cron", "history", "beat", "--json"]).ok().out()).unwrap();
    // Those that were done are the last of those that ran: it has twenty entries at most.
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
    let table = place.run(["cron", "history", "beat"]).ok().out();
    assert!(table.contains("OUTCOME") && table.contains("done"), "{table}");
}

#[test]
fn a_killed_hosts_run_is_taken_over_with_a_higher_token_or_not_at_all() {
    for (policy, begins) in [("retry:3", 2), ("at-most-once", 1)] {
        let place = Place::new();
        // The first run hangs, and says so; a second one ends. Only one tick is of interest.
        let work = "echo $LEASEHOLD_TICK $LEASEHOLD_TOKEN $LEASEHOLD_ATTEMPT >> log; [ -e hung ] || { echo x > hung; exec sleep 600; }";
        let year = "59 59 23 31 12 *";
        write(&place, "jobs.cron", &format!("CRON_SECONDS=yes\none [crash={policy}]: {year} {work}\n"));
        let mut hosts: Vec<_> = (0..3).map(|_| host(&place, &[])).collect();
        wait_for("the job to be known", || status(&place, "one"));
        place.run(["cron", "run-now", "one"]).ok();
        place.wait_for_file("hung");
        who_runs(&place, "one", &mut hosts).signal(Signal::KILL);
        if begins == 1 {
            // Found without another tick; and another run has nothing to do with it.
            history(&place, "one", 1);
            place.run(["cron", "run-now", "one"]).ok();
        }
        let history = history(&place, "one", 2);
        assert_eq!(history[0]["outcome"], "crashed");
        assert_eq!(history[1]["outcome"], "done");
        assert!(history[0]["token"].as_u64().unwrap() < history[1]["token"].as_u64().unwrap());
        assert_eq!(history[1]["attempt"], begins, "{policy}");
        assert_eq!(history[0]["tick"] == history[1]["tick"], begins == 2, "{policy}");
        for host in hosts {
            host.signal(Signal::TERM);
            host.end().ok();
        }
    }
}

/// A host that is told to stop ends what takes too long. That is its own doing, whatever the command makes of it: no failure, and not done.
#[test]
fn a_run_that_is_ended_with_its_host_is_taken_over_or_entered_as_lost() {
    std::thread::scope(|scope| {
        for policy in ["retry:3", "at-most-once"] {
            for on_term in ["'exit 0'", "-"] {
                scope.spawn(move || ended_with_its_host(policy, on_term));
            }
        }
    });
}

fn ended_with_its_host(policy: &str, on_term: &str) {
    let place = Place::new();
    let hang = format!("trap {on_term} TERM; echo x > hung; while :; do sleep 0.01; done");
    let work = format!("{SAY}; [ -e hung ] || {{ {hang}; }}");
    write(&place, "jobs.cron", &format!("one [crash={policy}]: @yearly {work}\n"));
    let mut hosts: Vec<_> = (0..2).map(|_| host(&place, &["--stop-grace", "50ms"])).collect();
    wait_for("the job to be known", || status(&place, "one"));
    place.run(["cron", "run-now", "one"]).ok();
    place.wait_for_file("hung");
    let stopped = who_runs(&place, "one", &mut hosts);
    stopped.signal(Signal::TERM);
    let ended = stopped.end();
    assert_eq!(ended.code(), 0, "{}", ended.err());
    let expected = if policy == "at-most-once" { &["lost"][..] } else { &["crashed", "done"] };
    let history = history(&place, "one", expected.len());
    let outcomes: Vec<_> = history.iter().map(|entry| entry["outcome"].as_str().unwrap()).collect();
    assert_eq!(outcomes, expected, "{policy}, {on_term}: {history:?}");
    let ran = log(&place);
    let attempts: Vec<u32> = ran.values().flatten().map(|(_, attempt)| *attempt).collect();
    assert_eq!((ran.len(), &attempts[..]), (1, &[1, 2][..expected.len()]), "{policy}, {on_term}");
    hosts[0].signal(Signal::TERM);
    hosts.remove(0).end().ok();
}

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
    let host = place.start(["cron", "--json", "jobs.toml"]);
    for job in ["good", "bad", "none"] {
        wait_for("the job to be known", || status(&place, job));
    }
    // One that nobody knows keeps none of the others from it.
    let ran = place.run(["cron", "run-now", "good", "nobody", "bad", "none"]).failed(64, "nobody");
    assert_eq!(ran.out().lines().count(), 3, "{}", ran.out());
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
    host.signal(Signal::TERM);
    let events = host.end().events();
    let said = |what: &str, job: &str| events.iter().any(|event| event["event"] == what && event["job"] == job);
    assert!(said("joined", "good") && said("began", "bad") && said("ended", "none"), "{events:?}");
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
    // A wrong file changes nothing, a right one is taken up; its new job runs though the other is paused.
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

#[test]
fn every_mistake_of_a_file_is_told_and_nothing_is_begun() {
    let place = Place::new();
    write(
        &place,
        "jobs.cron",
        "0 3 * * * ./backup.sh\na: 61 * * * * x\nb [missed=maybe]: @daily x\nc [ttl=1s kill-after=1s]: @daily x\nd [overlap=allow:65]: @daily x\ne [missed=all:1001]: @daily x\n",
    );
    for command in [&["cron", "jobs.cron"][..], &["cron", "check", "jobs.cron"]] {
        let ran = place.run(command).failed(64, "jobs.cron:1: this line has no name");
        let said = ran.err();
        assert_eq!(said.lines().count(), 6, "a line each: {said}");
        assert!(said.contains("write `backup: 0 3 * * * ./backup.sh`"), "{said}");
        assert!(said.contains("jobs.cron:2: ") && said.contains("field 1 (minute) is \"61\""), "{said}");
        assert!(said.contains("jobs.cron:3: ") && said.contains("write skip, once"), "{said}");
        assert!(said.contains("jobs.cron:4: kill-after"), "{said}");
        assert!(said.contains("jobs.cron:5: ") && said.contains("64 at most"), "{said}");
        assert!(said.contains("jobs.cron:6: ") && said.contains("1000 at most"), "{said}");
    }
    // Six fields where five were said: the sixth would be the command.
    write(&place, "six.cron", "probe: */10 * * * * *  ./probe\nfive: */10 * * * *  ./*\n");
    let said = place.run(["cron", "check", "six.cron"]).failed(64, "six.cron:1: this line has six fields").err();
    assert!(said.contains("CRON_SECONDS=yes") && !said.contains("six.cron:2"), "{said}");
    // For programs, too.
    let ran = place.run(["cron", "--json", "jobs.cron"]);
    let [error] = &ran.events()[..] else { panic!("{}", ran.err()) };
    assert_eq!((ran.code(), &error["event"], &error["kind"]), (64, &Value::from("error"), &Value::from("usage")));
    place.run(["cron", "none.cron"]).failed(64, "cannot read none.cron");
    place.run(["cron", "stauts"]).failed(64, "leasehold cron --help");
    place.run(["cron"]).failed(64, "which timetable?");
    write(&place, "empty.cron", "# nothing\n");
    place.run(["cron", "empty.cron"]).failed(64, "has no jobs");
    place.run(["cron", "history", "nobody"]).failed(64, "no job \"nobody\"");
    place.run(["cron", "pause", "nobody"]).failed(64, "no job \"nobody\"");
}

#[test]
fn a_file_can_be_checked_without_an_engine() {
    let place = Place::new();
    write(&place, "jobs.cron", "CRON_TZ=Europe/Berlin\nnightly: 30 2 * * * ./send\n");
    let shown = place.run(["cron", "check", "--from", "2026-03-28T12:00:00Z", "-n", "2", "jobs.cron"]).ok().out();
    assert!(shown.contains("2026-03-29T01:00:00Z  2026-03-29 03:00:00 CEST"), "{shown}");
    assert!(shown.contains("2026-03-30T00:30:00Z  2026-03-30 02:30:00 CEST"), "{shown}");
    let json = place.run(["cron", "check", "--json", "--from", "2026-03-28T12:00:00Z", "jobs.cron"]).ok().out();
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json[0]["zone"], json[0]["next"].as_array().unwrap().len()), (&Value::from("Europe/Berlin"), 5));
    place.run(["cron", "check", "--from", "yesterday", "jobs.cron"]).failed(64, "is no time");
}

#[test]
fn once_per_tick_whoever_is_started() {
    let place = Place::new();
    // A whole year is one tick, which is hardly ever near. (Near the end of a day each call would wait for the next day.)
    let call = |command: &str| {
        place
            .leasehold(["run", "--once-per", "@yearly", "--missed", "once", "-v", "mail", "-c", command])
            .output()
            .unwrap()
    };
    let calls: Vec<_> = std::thread::scope(|scope| {
        let calls: Vec<_> = (0..8).map(|_| scope.spawn(|| call(SAY))).collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    for call in &calls {
        assert_eq!(call.status.code(), Some(0), "{}", String::from_utf8_lossy(&call.stderr));
    }
    let ran = log(&place);
    assert_eq!(ran.len(), 1, "{ran:?}");
    assert!(ran.iter().all(|(tick, runs)| tick.ends_with("-01-01T00:00:00Z") && runs.len() == 1), "{ran:?}");
    let quiet =
        calls.iter().filter(|call| String::from_utf8_lossy(&call.stderr).contains("nothing is due here")).count();
    assert_eq!(quiet, 7);
    assert_eq!(status(&place, "mail").unwrap()["last"]["outcome"], "done");
}

/// Also those that come between the grant of the lock and the entry of the run: nothing stands in the record then.
#[test]
fn once_per_tick_nobody_who_does_not_wait_fails() {
    let place = Place::new();
    for round in 0..8 {
        let job = format!("mail{round}");
        let call = || {
            let once = ["run", "--once-per", "@yearly", "--missed", "once", "-n", &job, "-c", "echo x >> log"];
            // With -n the engine has a quarter of a second, which a busy machine may take for itself: that is not what this is about.
            wait_for("an engine that is reached", || {
                Some(place.run(once)).filter(|call| !call.err().contains("could not be reached within"))
            })
        };
        let calls: Vec<_> = std::thread::scope(|scope| {
            let calls: Vec<_> = (0..8).map(|_| scope.spawn(call)).collect();
            calls.into_iter().map(|call| call.join().unwrap()).collect()
        });
        for call in calls {
            assert_eq!(call.code(), 0, "{}", call.err());
        }
        assert_eq!(place.read("log").lines().count(), round + 1);
    }
}

/// The command has ended, and what it came to is known; only the lock is kept.
#[test]
fn once_per_a_signal_after_the_end_does_not_change_how_the_command_ended() {
    let place = Place::new();
    for code in [0, 3] {
        let (job, command) = (format!("job{code}"), format!("exit {code}"));
        let once = ["run", "--once-per", "@yearly", "--missed", "once", "--min-hold", "600s", "--json"];
        let mut call = place.start([&once[..], &[&job, "-c", &command]].concat());
        let said = BufReader::new(call.0.as_mut().unwrap().stderr.take().unwrap());
        let is_end = |line: &String| serde_json::from_str::<Value>(line).unwrap()["entered"] == true;
        said.lines().map(Result::unwrap).find(is_end).expect("an end that is entered");
        assert_eq!(place.holders(&format!("cron:{job}")), 1);
        call.signal(Signal::TERM);
        assert_eq!(call.end().code(), code);
    }
}

/// What a program reads is what a person sees; and each knows what did not run.
#[test]
fn the_last_run_is_the_same_for_people_and_programs() {
    let place = Place::new();
    let work = "echo > begun; while [ ! -e go ]; do sleep 0.01; done";
    write(&place, "jobs.cron", &format!("CRON_SECONDS=yes\nbeat: * * * * * * {work}\nnone: 0 0 3 1 1 * true\n"));
    write(&place, "only.cron", "CRON_SECONDS=yes\nbeat: * * * * * * true\n");
    // Nobody runs them yet, but when they are due is known.
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
    // The run ends after the next tick, which is left out.
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
fn once_per_says_how_its_command_ended() {
    let place = Place::new();
    let once = ["run", "--once-per", "@yearly", "--missed", "once"];
    assert_eq!(place.run([&once[..], &["a", "-c", "exit 7"]].concat()).code(), 7);
    assert_eq!(place.run([&once[..], &["a", "-c", "exit 7"]].concat()).code(), 0, "it has run");
    assert_eq!(place.run([&once[..], &["b", "--", "./no-such-command"]].concat()).code(), 127);
    place.run(["run", "--once-per", "61 * * * *", "a", "--", "true"]).failed(64, "field 1 (minute)");
    place.run(["run", "--zone", "UTC", "a", "--", "true"]).failed(64, "--once-per");
    // Somebody runs it elsewhere, and does not end.
    let held = place.start([&once[..], &["c", "--", "cat"]].concat());
    wait_for("the run", || Some(()).filter(|()| place.holders("cron:c") == 1));
    place.run([&once[..], &["c", "-n", "-E", "9", "--", "true"]].concat()).ok();
    let retry = ["run", "--once-per", "@yearly", "--crash", "retry:2", "-n", "-E", "9", "c", "--", "true"];
    assert_eq!(place.run(retry).code(), 9, "it would take over, and does not wait");
    held.finish().ok();
}

#[test]
fn a_stop_gives_a_run_its_time_and_one_that_is_sent_twice_is_one() {
    let place = Place::new();
    let work = "echo > begun; while [ ! -e go ]; do sleep 0.01; done; echo > ended";
    write(&place, "jobs.cron", &format!("one: @yearly {work}\n"));
    let mut host = host(&place, &["--stop-grace", "600s"]);
    wait_for("the job to be known", || status(&place, "one"));
    place.run(["cron", "run-now", "one"]).ok();
    place.wait_for_file("begun");
    host.signal(Signal::TERM);
    host.signal(Signal::TERM);
    // It does not begin another, and does not end the first.
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
    let mut host = host(&place, &["--stop-grace", "600s"]);
    wait_for("the job to be known", || status(&place, "one"));
    place.run(["cron", "run-now", "one"]).ok();
    place.wait_for_file("begun");
    host.signal(Signal::TERM);
    host.signal(Signal::HUP);
    // Whoever took part would take this up when the first run has ended.
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

#[test]
fn a_run_that_takes_too_long_is_ended_with_all_its_processes() {
    let place = Place::new();
    let work = "sleep 600 & echo $! > pid; trap '' TERM; wait; sleep 600";
    write(&place, "jobs.cron", &format!("one [max-hold=4s kill-after=1s crash=retry:3]: @yearly {work}\n"));
    let host = host(&place, &[]);
    wait_for("the job to be known", || status(&place, "one"));
    place.run(["cron", "run-now", "one"]).ok();
    let pid = place.wait_for_file("pid");
    let last = wait_for("its end", || Some(status(&place, "one")?["last"].clone()).filter(|last| !last.is_null()));
    assert_eq!(
        (&last["outcome"], &last["attempt"]),
        (&Value::from("timed-out"), &Value::from(1)),
        "and it is no crash"
    );
    wait_for("the end of its group", || (!crate::common::is_alive(&pid)).then_some(()));
    host.signal(Signal::TERM);
    host.end().ok();
}

#[test]
fn once_per_takes_over_from_a_killed_one_and_passes_signals_on() {
    let place = Place::new();
    let call = |job: &str, command: &str| {
        place.start(["run", "--once-per", "@yearly", "--missed", "once", "--crash", "retry:3", job, "-c", command])
    };
    let hung = call("a", &format!("{SAY}; echo > begun; exec sleep 600"));
    place.wait_for_file("begun");
    let waiting = call("a", SAY);
    place.wait_for_waiters("cron:a", 1);
    hung.signal(Signal::KILL);
    assert_eq!(waiting.end().code(), 0);
    let ran = log(&place);
    let runs = ran.values().next().unwrap();
    assert_eq!((ran.len(), runs.len()), (1, 2), "{ran:?}");
    assert!(runs[0].0 < runs[1].0 && (runs[0].1, runs[1].1) == (1, 2), "{ran:?}");

    let running = call("b", "trap 'echo > term; exit 5' TERM; echo > up; while :; do sleep 0.01; done");
    place.wait_for_file("up");
    let idle = call("b", "true");
    place.wait_for_waiters("cron:b", 1);
    idle.signal(Signal::TERM);
    assert_eq!(idle.end().code(), 143, "it waited");
    running.signal(Signal::TERM);
    assert_eq!((running.end().code(), place.read("term").as_str()), (5, "\n"));
}
