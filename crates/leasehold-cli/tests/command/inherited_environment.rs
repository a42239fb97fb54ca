//! Processes that a command leaves behind inherit its environment: re-entry must end with the hold,
//! not with the environment.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use crate::common::short_leases::{UNAVAILABLE, retry_with_longer_waits};
use crate::common::{LONG_TTL, TestFolder, wait_for};
use leasehold_testbed::redis;

/// Starts a run of lock `a` whose command leaves a daemon behind. The daemon waits for the file
/// `go`, does `work`, and then writes the file `ended`.
fn start_daemon_under_lock(place: &TestFolder, options: &str, work: &str) -> crate::common::RunningCommand {
    let script = format!(
        "run() {{ \"$L\" run --ttl {LONG_TTL} {options} \"$@\"; }}\n\
         there() {{ until [ -e \"$1\" ]; do sleep 0.01; done; }}\n\
         echo > apart\nthere go\n{work}\nwait\necho done > ended\n"
    );
    std::fs::write(place.path("daemon.sh"), script).unwrap();
    let start = "setsid sh daemon.sh > daemon.log 2>&1 < /dev/null & echo $LEASEHOLD_TOKEN > outer; cat";
    let mut args = vec!["run", "--ttl", LONG_TTL];
    args.extend(options.split_whitespace());
    args.extend(["a", "-c", start]);
    let outer = place.start(args);
    place.wait_for_file("outer");
    // The daemon has its own session now; before, it would be killed with the command's group.
    place.wait_for_file("apart");
    outer
}

/// Lets the daemon do its work, and waits for its end.
fn release_daemon(place: &TestFolder) {
    std::fs::write(place.path("go"), "").unwrap();
    place.wait_for_file("ended");
}

/// Checks that the daemon's runs exclude each other once the outer run has ended.
fn check_daemon_runs_exclude_each_other(place: &TestFolder, options: &str) {
    let turn = "run a -c 'mkdir busy || echo OVERLAP >> log; echo $LEASEHOLD_TOKEN >> log; sleep 0.02; rmdir busy'";
    let hold = "run a -c 'touch in; until [ -e out ]; do sleep 0.01; done' &";
    let work = format!(
        "{hold}\nthere in\nrun -n a -- true; echo $? > second\ntouch out\nwait\n\
         for i in 1 2 3 4; do (for j in 1 2 3; do {turn}; done) & done"
    );
    start_daemon_under_lock(place, options, &work).close_input_and_wait().assert_ok();
    release_daemon(place);
    assert_eq!(place.read("second"), "1\n", "{}", place.read("daemon.log"));
    let log = place.read("log");
    let tokens: Vec<u64> = log.lines().map(|line| line.parse().expect(&log)).collect();
    assert_eq!(tokens.len(), 12, "{log}{}", place.read("daemon.log"));
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    assert!(tokens[0] > place.read("outer").trim().parse().unwrap(), "{tokens:?}");
}

/// Checks that a run that the daemon starts after the outer run has ended does not re-enter a hold
/// that another run of the daemon re-entered before.
fn check_hold_outliving_the_outer_run_is_not_re_entered(place: &TestFolder, options: &str) {
    let hold = "run a -c 'echo $LEASEHOLD_TOKEN > in; until [ -e out ]; do sleep 0.01; done' &";
    let again = "run -n a -- true; echo $? > inside";
    let work = format!(
        "{hold}\nthere in\n{again}\necho said > said\nthere over\nrun -n a -- true; echo $? > second\ntouch out"
    );
    let outer = start_daemon_under_lock(place, options, &work);
    std::fs::write(place.path("go"), "").unwrap();
    place.wait_for_file("said");
    assert_eq!(place.read("in"), place.read("outer"), "it re-enters the outer hold");
    assert_eq!(place.read("inside"), "0\n", "another run re-enters it, too");
    outer.close_input_and_wait().assert_ok();
    std::fs::write(place.path("over"), "").unwrap();
    place.wait_for_file("ended");
    assert_eq!(place.read("second"), "1\n", "{}", place.read("daemon.log"));
}

#[test]
fn runs_of_a_daemon_exclude_each_other_on_files() {
    check_daemon_runs_exclude_each_other(&TestFolder::new(), "");
}

#[test]
fn a_hold_that_outlives_the_outer_run_is_not_re_entered_on_files() {
    check_hold_outliving_the_outer_run_is_not_re_entered(&TestFolder::new(), "");
}

#[tokio::test]
async fn runs_of_a_daemon_exclude_each_other_and_no_ended_hold_is_re_entered_on_redis() {
    let server = redis::start().await.unwrap();
    let options = format!("--engine {}?connect-timeout=60s", server.url());
    let work = move || {
        check_daemon_runs_exclude_each_other(&TestFolder::new(), &options);
        check_hold_outliving_the_outer_run_is_not_re_entered(&TestFolder::new(), &options);
    };
    tokio::task::spawn_blocking(work).await.unwrap();
}

/// The engine keeps the hold of a killed run until the lease ends; the processes that it left
/// behind wait for that like all others.
#[tokio::test]
async fn the_hold_of_a_killed_run_is_not_re_entered() {
    let server = redis::start().await.unwrap();
    let options = format!("--engine {}?connect-timeout=60s", server.url());
    let work = move || {
        let place = TestFolder::new();
        let outer = start_daemon_under_lock(&place, &options, "run -n a -- true; echo $? > first");
        outer.signal(rustix::process::Signal::KILL);
        drop(outer);
        release_daemon(&place);
        assert_eq!(place.read("first"), "1\n", "{}", place.read("daemon.log"));
        assert!(place.read("daemon.log").contains("is held by "), "{}", place.read("daemon.log"));
    };
    tokio::task::spawn_blocking(work).await.unwrap();
}

#[test]
fn commands_of_a_run_that_lost_its_lock_exclude_each_other() {
    let place = TestFolder::new();
    let hold = "\"$L\" run a -c 'touch in; until [ -e out ]; do sleep 0.01; done' &";
    let script = format!(
        "\"$L\" evict --yes a > evicted; {hold} until [ -e in ]; do sleep 0.01; done; \"$L\" run -n a -- true; echo $?; touch out; wait"
    );
    let ran = place.run(["run", "--ttl", LONG_TTL, "--on-lost", "ignore", "a", "-c", &script]);
    assert_eq!(ran.stdout(), "1\n", "{}", ran.stderr());
}

#[test]
fn four_nested_runs_share_one_hold_even_after_a_middle_one_ended() {
    let place = TestFolder::new();
    let deepest = "\"$L\" run -n a -c 'echo $LEASEHOLD_TOKEN'";
    std::fs::write(place.path("deepest"), deepest).unwrap();
    // The middle run leaves a daemon behind, which is still inside the outer hold.
    std::fs::write(place.path("between"), "setsid sh deepest > deepest.out 2>&1 < /dev/null &").unwrap();
    let script = "echo $LEASEHOLD_TOKEN; \"$L\" run -n a -- \"$L\" run -n b -- sh deepest; \"$L\" run -n a -- sh between; \
                  until [ -s deepest.out ]; do sleep 0.01; done; cat deepest.out";
    assert_eq!(place.run(["run", "--ttl", LONG_TTL, "a", "-c", script]).assert_ok().stdout(), "1\n1\n1\n");
    // The daemon's run has printed, but may not have released yet.
    wait_for("a free lock", || (place.holder_count("a") == 0).then_some(()));
}

#[tokio::test]
async fn an_engine_without_inspection_refuses_only_while_the_outer_run_lives() {
    let server = redis::start().await.unwrap();
    let options = format!("--engine {}?protocol=simple", server.url());
    let work = move || {
        let place = TestFolder::new();
        let outer = start_daemon_under_lock(&place, &options, "run a -- true; echo $? > first");
        outer.close_input_and_wait().assert_ok();
        release_daemon(&place);
        assert_eq!(place.read("first"), "0\n", "{}", place.read("daemon.log"));
    };
    tokio::task::spawn_blocking(work).await.unwrap();
}

#[tokio::test]
async fn a_lock_held_by_an_outer_run_under_another_url_is_the_same_lock() {
    let server = redis::start().await.unwrap();
    let (url, port) = (format!("{}?connect-timeout=60s", server.url()), server.addr().port());
    let work = move || retry_with_longer_waits(0.3, |wait| attempt_re_entry_by_another_url(&url, port, wait));
    tokio::task::spawn_blocking(work).await.unwrap();
}

/// One attempt of the test; `None` if the engine did not answer within the wait.
fn attempt_re_entry_by_another_url(url: &str, port: u16, wait: &str) -> Option<()> {
    let place = TestFolder::new();
    let other = format!("redis://localhost:{port}?connect-timeout=60s");
    // With LEASEHOLD_OWNER, the inner run re-enters. Without it, a run that would wait forever is
    // refused, and one with a timeout is not.
    let inner = format!("\"$L\" run --engine '{other}' a -c 'echo $LEASEHOLD_TOKEN'");
    let script = format!(
        "echo $LEASEHOLD_TOKEN; {inner}; env -u LEASEHOLD_OWNER {inner} 2> stranger; echo $?; \
         env -u LEASEHOLD_OWNER \"$L\" run --engine '{other}' -w {wait} a -- true 2> bounded; echo $?"
    );
    let out = place.start(["run", "--ttl", LONG_TTL, "--engine", url, "a", "-c", &script]).wait().assert_ok().stdout();
    let lines: Vec<_> = out.lines().collect();
    assert_eq!((lines[0] == lines[1], lines[2]), (true, "64"), "{out}");
    let output =
        wait_for("the error of the inner run", || Some(place.read("stranger")).filter(|output| !output.is_empty()));
    assert!(output.contains("would wait for itself"), "{output}");
    assert!(output.contains(&format!("localhost:{port}")), "{output}");
    if lines[3] == UNAVAILABLE.to_string() {
        return None;
    }
    assert_eq!(lines[3], "1", "{out}");
    Some(())
}

#[test]
fn a_job_that_waits_for_its_own_lock_is_refused() {
    let place = TestFolder::new();
    let inner = "\"$L\" run cron:job -- true 2> errors; echo $? > code; exit 0";
    let once = ["run", "--ttl", LONG_TTL, "--once-per", "@every 1s", "--missed", "once", "job", "-c", inner];
    place.start(once).wait().assert_ok();
    assert_eq!(place.read("code"), "64\n", "{}", place.read("errors"));
    assert!(place.read("errors").contains("would wait for itself"), "{}", place.read("errors"));
}

/// Without inspection, only `LEASEHOLD_HELD` shows that the lock may be an outer run's: the wait is
/// not refused, but its likely reason is printed, once.
#[tokio::test]
async fn a_wait_that_may_be_for_an_outer_run_prints_a_warning_without_inspection() {
    let server = redis::start().await.unwrap();
    let (url, port) = (format!("{}?protocol=simple&connect-timeout=60s", server.url()), server.addr().port());
    let work = move || retry_with_longer_waits(1.0, |wait| attempt_deadlock_warning(&url, port, wait));
    tokio::task::spawn_blocking(work).await.unwrap();
}

/// One attempt of the test; `None` if the engine did not answer within the wait.
fn attempt_deadlock_warning(url: &str, port: u16, wait: &str) -> Option<()> {
    let place = TestFolder::new();
    let inner = format!("\"$L\" run --engine 'redis://localhost:{port}?protocol=simple&connect-timeout=60s'");
    let script = format!(
        "{inner} -w {wait} a -- true 2> bounded; echo $?; {inner} b -- true 2> other; echo $?; \
         {inner} -w {wait} --json a -- true 2> json; echo $?"
    );
    let out = place.start(["run", "--engine", url, "a", "-c", &script]).wait().assert_ok().stdout();
    if out.lines().any(|line| line == UNAVAILABLE.to_string()) {
        return None;
    }
    assert_eq!(out, "1\n0\n1\n", "{}", place.read("bounded"));
    let output = place.read("bounded");
    assert_eq!(output.matches("may wait for its own ancestor").count(), 1, "{output}");
    assert!(output.contains(&format!("redis://127.0.0.1:{port}")) && output.contains("localhost"), "{output}");
    assert!(output.contains("-w"), "how to avoid it: {output}");
    assert!(!place.read("other").contains("ancestor"), "{}", place.read("other"));
    let warnings = place.read("json").matches("\"event\":\"warning\"").count();
    assert_eq!(warnings, 1, "{}", place.read("json"));
    Some(())
}
