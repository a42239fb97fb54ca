//! The state of a fleet's jobs, as monitoring sees it, and the hosts' log lines.

use std::process::Stdio;

use crate::common::{LASTING, Place, Running, wait_for};
use crate::cron::{host, host_that_says, status, wait_for_event, write};
use rustix::process::Signal;

/// A run that does not end on its own.
const FOREVER: &str = "echo > began; exec sleep 1000";

#[test]
fn status_lists_live_hosts_and_its_check_fails_without_any() {
    let place = Place::new();
    write(&place, "jobs.cron", "one: @yearly true\ntwo: @yearly true\n");
    let said = place.run(["cron", "status", "--check", "jobs.cron"]).failed(1, "0 live hosts on file://");
    assert!(said.out().contains(&format!("no host runs a timetable on {}", place.engine())), "{}", said.out());
    let first = host(&place, &[]);
    let second = host(&place, &[]);
    let listed = wait_for("both hosts", || {
        Some(place.run(["cron", "status"]).ok().out()).filter(|text| text.contains("2 live hosts on file://"))
    });
    for host in [&first, &second] {
        assert!(listed.contains(&format!(":{}  jobs.cron, 2 jobs  for ", host.pid().as_raw_nonzero())), "{listed}");
    }
    wait_for("the job to be known", || status(&place, "one").filter(|status| status["live_hosts"] == 2));
    place.run(["cron", "status", "--check", "--min-hosts", "2"]).ok();
    place.run(["cron", "status", "--check", "--min-hosts", "3"]).failed(1, "2 live hosts on file://");
    first.signal(Signal::TERM);
    first.end().ok();
    second.signal(Signal::KILL);
    wait_for("the end of it", || second_ended(&place));
    // At first: `waits`, and exit code 0.
    place.run(["cron", "status", "--check"]).failed(1, "0 live hosts");
    place.run(["cron", "status", "--check", "--min-hosts", "0"]).ok();
}

fn second_ended(place: &Place) -> Option<()> {
    place.run(["cron", "status"]).ok().out().contains("no host runs").then_some(())
}

#[test]
fn a_run_whose_host_died_is_no_run_that_goes_on() {
    let place = Place::new();
    write(&place, "jobs.cron", &format!("CRON_SECONDS=yes\nlong: * * * * * * {FOREVER}\n"));
    let host = host(&place, &[]);
    place.wait_for_file("began");
    assert_eq!(status(&place, "long").unwrap()["dead"].as_array().map(Vec::len), Some(0));
    place.run(["cron", "status", "--check"]).ok();
    host.signal(Signal::KILL);
    drop(host);
    let dead = wait_for("the death to be seen", || {
        let ran = place.run(["cron", "status", "--check", "--min-hosts", "0"]);
        (ran.code() == 1).then_some(ran)
    });
    assert!(dead.err().contains("long: DEAD: the host of the run with token "), "{}", dead.err());
    assert!(dead.out().contains("DEAD"), "{}", dead.out());
}

#[test]
fn a_log_has_the_time_and_says_when_it_is_told_to_stop() {
    let place = Place::new();
    write(&place, "jobs.cron", "one: @yearly true\n");
    let mut command = place.leasehold(["cron", "--ttl", LASTING, "jobs.cron"]);
    command.stdout(Stdio::null()).stderr(std::fs::File::create(place.path("said")).unwrap());
    let host = Running(Some(command.spawn().unwrap()));
    wait_for("a word", || place.read("said").contains("one: @yearly").then_some(()));
    host.signal(Signal::TERM);
    host.end().ok();
    let said = place.read("said");
    for line in said.lines() {
        let (time, rest) = line.split_once(' ').unwrap();
        assert!(time.len() == "2026-11-18T03:00:00.000Z".len() && time.ends_with('Z'), "{line}");
        assert!(rest.starts_with("leasehold: "), "{line}");
    }
    assert!(said.contains("leasehold: TERM: nothing more begins here"), "{said}");
    assert!(said.ends_with("leasehold: stopped\n"), "{said}");
    // As JSON, too.
    let host = host_that_says(&place, &[], "events");
    wait_for_event(&place, "events", "joined");
    host.signal(Signal::INT);
    host.end().ok();
    let stopping = wait_for_event(&place, "events", "stopping");
    assert_eq!((&stopping["signal"], stopping["time"].as_str().map(str::len)), (&"INT".into(), Some(24)));
    wait_for_event(&place, "events", "stopped");
}

#[test]
fn a_crontab_of_the_system_is_read_without_surprises() {
    let place = Place::new();
    write(&place, "jobs.cron", "MAILTO=root\n17 *\t* * *\troot\tcd / && run-parts\n");
    let said = place.run(["cron", "check", "jobs.cron"]).failed(64, "jobs.cron:1: leasehold sends no mail").err();
    assert!(said.contains("jobs.cron:2: this line has no name") && !said.contains("\\u{9}"), "{said}");
    assert!(said.contains("17 * * * * root cd / && run-parts"), "{said}");
    // The user before the command, which would run as a command of that name.
    assert!(said.contains("the user root before its command"), "{said}");
    assert!(said.contains("remove `root` and write `cd: 17 * * * * cd / && run-parts`"), "{said}");
    write(
        &place,
        "named.cron",
        "a: 17 * * * * root\tcd / && run-parts\nb: @daily nobody ./report\nc: @daily true root\nd: @daily root\n\
         PATH=/nowhere\ne: @daily mail -s x root\n",
    );
    let said = place.run(["cron", "check", "named.cron"]).failed(64, "named.cron:1: this line has the user root").err();
    assert!(said.contains("remove `root` and write `a: 17 * * * * cd / && run-parts`"), "{said}");
    assert!(said.contains("named.cron:2: this line has the user nobody"), "{said}");
    assert!(said.contains("named.cron:6: this line has the user mail"), "no program in its PATH is called so: {said}");
    assert_eq!(said.lines().count(), 3, "`true` and a lone `root` are commands: {said}");
    write(&place, "mail.cron", "CRON_TZ=UTC\nPATH=bin\nc: @daily mail -s x root\n");
    std::fs::create_dir(place.path("bin")).unwrap();
    write(&place, "bin/mail", "");
    place.run(["cron", "check", "mail.cron"]).ok();
    write(&place, "quiet.cron", "MAILTO=\"\"\na: @daily true\n");
    place.run(["cron", "check", "quiet.cron"]).ok();
}

#[test]
fn a_call_by_hand_says_what_it_waits_for() {
    let place = Place::new();
    let call = ["run", "--ttl", LASTING, "--once-per", "0 0 * * *", "--skew", "24h", "-v", "job", "--", "true"];
    // The first call runs the last tick, and later ones wait for the next.
    wait_for("its words", || {
        let mut command = place.leasehold(call);
        command.stdout(Stdio::null()).stderr(std::fs::File::create(place.path("said")).unwrap());
        let mut running = Running(Some(command.spawn().unwrap()));
        let waits = wait_for("a word, or its end", || {
            if place.read("said").contains("job: nothing is due; waiting for the tick at ") {
                return Some(true);
            }
            running.ended().map(|_| false)
        });
        if waits {
            running.signal(Signal::TERM);
            assert_eq!(running.end().code(), 143);
        }
        waits.then_some(())
    });
}

/// A user that this host does not have looks like a command.
#[test]
fn a_user_column_with_an_unknown_user_is_warned_of() {
    let place = Place::new();
    let fine = "b: * * * * * cd /srv && true\nc: * * * * * exec /bin/true\nd: * * * * * true /bin\n\
                e: * * * * * /opt/not-here /bin/true\nf: * * * * * X=1 /bin/true\ng: * * * * * not-here ./x\n";
    write(&place, "jobs.cron", &format!("a: * * * * * deploy-user-not-here /bin/true\n{fine}"));
    let said = place.run(["cron", "check", "jobs.cron"]).ok();
    let line = "jobs.cron:1: warning: `deploy-user-not-here` is no program here, and looks like the user";
    assert!(said.err().contains(line), "{}", said.err());
    assert_eq!(said.err().lines().count(), 1, "{}", said.err());
    assert!(said.err().contains("write `a: * * * * * /bin/true`"), "{}", said.err());
    write(&place, "nameless.cron", "* * * * * someuser-not-here /bin/true\n");
    let said = place.run(["cron", "check", "nameless.cron"]).failed(64, "this line has no name").err();
    assert!(said.contains("remove `someuser-not-here` and write `true: * * * * * /bin/true`"), "{said}");
    // What is right is not warned of, also where the file sets the PATH.
    write(&place, "deploy", "");
    write(&place, "path.cron", &format!("PATH={}\na: * * * * * deploy /bin/true\n", place.path("").display()));
    assert_eq!(place.run(["cron", "check", "path.cron"]).ok().err(), "");
}
