//! The state of a fleet's jobs, as monitoring sees it, and the hosts' log lines.

use std::process::Stdio;

use crate::common::{LONG_TTL, RunningCommand, TestFolder, wait_for};
use crate::cron::{job_status, start_host, start_host_with_log, wait_for_event, write_file};
use rustix::process::Signal;

/// A run that does not end on its own.
const ENDLESS_COMMAND: &str = "echo > began; exec sleep 1000";

#[test]
fn status_lists_live_hosts_and_its_check_fails_without_any() {
    let place = TestFolder::new();
    write_file(&place, "jobs.cron", "one: @yearly true\ntwo: @yearly true\n");
    let output = place.run(["cron", "status", "--check", "jobs.cron"]).assert_failed(1, "0 live hosts on file://");
    assert!(
        output.stdout().contains(&format!("no host runs `leasehold cron` on {}", place.engine())),
        "{}",
        output.stdout()
    );
    let first = start_host(&place, &[]);
    let second = start_host(&place, &[]);
    let listed = wait_for("both hosts", || {
        Some(place.run(["cron", "status"]).assert_ok().stdout()).filter(|text| text.contains("2 live hosts on file://"))
    });
    for host in [&first, &second] {
        assert!(listed.contains(&format!(":{}  jobs.cron, 2 jobs  for ", host.pid().as_raw_nonzero())), "{listed}");
    }
    wait_for("the job to be known", || job_status(&place, "one").filter(|status| status["live_hosts"] == 2));
    place.run(["cron", "status", "--check", "--min-hosts", "2"]).assert_ok();
    place.run(["cron", "status", "--check", "--min-hosts", "3"]).assert_failed(1, "2 live hosts on file://");
    first.signal(Signal::TERM);
    first.wait().assert_ok();
    second.signal(Signal::KILL);
    wait_for("the end of it", || no_host_is_listed(&place));
    place.run(["cron", "status", "--check"]).assert_failed(1, "0 live hosts");
    place.run(["cron", "status", "--check", "--min-hosts", "0"]).assert_ok();
}

/// `Some` if `cron status` lists no host.
fn no_host_is_listed(place: &TestFolder) -> Option<()> {
    place.run(["cron", "status"]).assert_ok().stdout().contains("no host runs").then_some(())
}

#[test]
fn a_run_whose_host_died_is_reported_dead() {
    let place = TestFolder::new();
    write_file(&place, "jobs.cron", &format!("CRON_SECONDS=yes\nlong: * * * * * * {ENDLESS_COMMAND}\n"));
    let host = start_host(&place, &[]);
    place.wait_for_file("began");
    assert_eq!(job_status(&place, "long").unwrap()["dead"].as_array().map(Vec::len), Some(0));
    place.run(["cron", "status", "--check"]).assert_ok();
    host.signal(Signal::KILL);
    drop(host);
    let dead = wait_for("the death to be seen", || {
        let ran = place.run(["cron", "status", "--check", "--min-hosts", "0"]);
        (ran.exit_code() == 1).then_some(ran)
    });
    assert!(dead.stderr().contains("long: DEAD: the host of the run with token "), "{}", dead.stderr());
    assert!(dead.stdout().contains("DEAD"), "{}", dead.stdout());
}

#[test]
fn log_lines_have_timestamps_and_report_a_stop() {
    let place = TestFolder::new();
    write_file(&place, "jobs.cron", "one: @yearly true\n");
    let mut command = place.command(["cron", "--ttl", LONG_TTL, "jobs.cron"]);
    command.stdout(Stdio::null()).stderr(std::fs::File::create(place.path("host.log")).unwrap());
    let host = RunningCommand(Some(command.spawn().unwrap()));
    wait_for("a word", || place.read("host.log").contains("one: @yearly").then_some(()));
    host.signal(Signal::TERM);
    host.wait().assert_ok();
    let output = place.read("host.log");
    for line in output.lines() {
        let (time, rest) = line.split_once(' ').unwrap();
        assert!(time.len() == "2026-11-18T03:00:00.000Z".len() && time.ends_with('Z'), "{line}");
        assert!(rest.starts_with("leasehold: "), "{line}");
    }
    assert!(output.contains("leasehold: TERM: no more runs start here"), "{output}");
    assert!(output.ends_with("leasehold: stopped\n"), "{output}");
    // With --json, each event has a `time` of 24 characters.
    let host = start_host_with_log(&place, &[], "events");
    wait_for_event(&place, "events", "joined");
    host.signal(Signal::INT);
    host.wait().assert_ok();
    let stopping = wait_for_event(&place, "events", "stopping");
    assert_eq!((&stopping["signal"], stopping["time"].as_str().map(str::len)), (&"INT".into(), Some(24)));
    wait_for_event(&place, "events", "stopped");
}

#[test]
fn a_system_crontab_is_refused_with_corrections() {
    let place = TestFolder::new();
    write_file(&place, "jobs.cron", "MAILTO=root\n17 *\t* * *\troot\tcd / && run-parts\n");
    let output =
        place.run(["cron", "check", "jobs.cron"]).assert_failed(64, "jobs.cron:1: leasehold sends no mail").stderr();
    assert!(output.contains("jobs.cron:2: this line has no name") && !output.contains("\\u{9}"), "{output}");
    assert!(output.contains("17 * * * * root cd / && run-parts"), "{output}");
    // The user before the command, which would run as a command of that name.
    assert!(output.contains("the user root before its command"), "{output}");
    assert!(output.contains("remove `root` and write `cd: 17 * * * * cd / && run-parts`"), "{output}");
    write_file(
        &place,
        "named.cron",
        "a: 17 * * * * root\tcd / && run-parts\nb: @daily nobody ./report\nc: @daily true root\nd: @daily root\n\
         PATH=/nowhere\ne: @daily mail -s x root\n",
    );
    let output = place
        .run(["cron", "check", "named.cron"])
        .assert_failed(64, "named.cron:1: this line has the user root")
        .stderr();
    assert!(output.contains("remove `root` and write `a: 17 * * * * cd / && run-parts`"), "{output}");
    assert!(output.contains("named.cron:2: this line has the user nobody"), "{output}");
    assert!(
        output.contains("named.cron:6: this line has the user mail"),
        "no program in its PATH is called so: {output}"
    );
    assert_eq!(output.lines().count(), 3, "`true` and a lone `root` are commands: {output}");
    write_file(&place, "mail.cron", "CRON_TZ=UTC\nPATH=bin\nc: @daily mail -s x root\n");
    std::fs::create_dir(place.path("bin")).unwrap();
    write_file(&place, "bin/mail", "");
    place.run(["cron", "check", "mail.cron"]).assert_ok();
    write_file(&place, "quiet.cron", "MAILTO=\"\"\na: @daily true\n");
    place.run(["cron", "check", "quiet.cron"]).assert_ok();
}

#[test]
fn a_manual_call_reports_what_it_waits_for() {
    let place = TestFolder::new();
    let call = ["run", "--ttl", LONG_TTL, "--once-per", "0 0 * * *", "--skew", "24h", "-v", "job", "--", "true"];
    // The first call runs the last tick, and later ones wait for the next.
    wait_for("a call that waits for the next tick", || {
        let mut command = place.command(call);
        command.stdout(Stdio::null()).stderr(std::fs::File::create(place.path("host.log")).unwrap());
        let mut running = RunningCommand(Some(command.spawn().unwrap()));
        let waits = wait_for("a word, or its end", || {
            if place.read("host.log").contains("job: no tick is due; waiting for the tick at ") {
                return Some(true);
            }
            running.try_wait().map(|_| false)
        });
        if waits {
            running.signal(Signal::TERM);
            assert_eq!(running.wait().exit_code(), 143);
        }
        waits.then_some(())
    });
}

/// A user of /etc/crontab that this host does not have looks like a command.
#[test]
fn a_user_column_with_an_unknown_user_is_warned_of() {
    let place = TestFolder::new();
    let fine = "b: * * * * * cd /srv && true\nc: * * * * * exec /bin/true\nd: * * * * * true /bin\n\
                e: * * * * * /opt/not-here /bin/true\nf: * * * * * X=1 /bin/true\ng: * * * * * not-here ./x\n";
    write_file(&place, "jobs.cron", &format!("a: * * * * * deploy-user-not-here /bin/true\n{fine}"));
    let output = place.run(["cron", "check", "jobs.cron"]).assert_ok();
    let line = "jobs.cron:1: warning: `deploy-user-not-here` is no program here, and looks like the user";
    assert!(output.stderr().contains(line), "{}", output.stderr());
    assert_eq!(output.stderr().lines().count(), 1, "{}", output.stderr());
    assert!(output.stderr().contains("write `a: * * * * * /bin/true`"), "{}", output.stderr());
    write_file(&place, "nameless.cron", "* * * * * someuser-not-here /bin/true\n");
    let output = place.run(["cron", "check", "nameless.cron"]).assert_failed(64, "this line has no name").stderr();
    assert!(output.contains("remove `someuser-not-here` and write `true: * * * * * /bin/true`"), "{output}");
    // A program in the PATH that the file sets is not taken for a user.
    write_file(&place, "deploy", "");
    write_file(&place, "path.cron", &format!("PATH={}\na: * * * * * deploy /bin/true\n", place.path("").display()));
    assert_eq!(place.run(["cron", "check", "path.cron"]).assert_ok().stderr(), "");
}
