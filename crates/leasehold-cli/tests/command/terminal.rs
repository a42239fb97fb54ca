//! On a terminal: job control in a real shell, and the display while waiting.

use std::process::Command;

use crate::common::pty::PtySession;
use crate::common::{LEASEHOLD, LONG_TTL, TestFolder, wait_for};

/// An interactive shell on its own terminal.
fn start_shell(place: &TestFolder, program: &str) -> PtySession {
    let mut command = Command::new(program);
    if program == "bash" {
        command.args(["--norc", "--noprofile", "--noediting"]);
    }
    command.arg("-i").env("PS1", "ready> ").env("LEASEHOLD_ENGINE", place.engine()).env("L", LEASEHOLD);
    command.env_remove("LEASEHOLD_OWNER").env_remove("ENV").current_dir(place.dir.path());
    let mut screen = PtySession::start(&command, 200);
    screen.expect("ready> ");
    screen
}

/// Waits until exactly `count` claims hold the lock `a`.
fn wait_for_holders(place: &TestFolder, count: usize) {
    wait_for("a holder", || (place.holder_count("a") == count).then_some(()));
}

/// Checks, in this shell, that `cat` under a lock can be stopped, listed, resumed and ended.
fn check_stop_and_resume(program: &str) {
    let place = TestFolder::new();
    let mut screen = start_shell(&place, program);
    screen.send_keys("\"$L\" run --ttl 1h a -- cat\n");
    wait_for_holders(&place, 1);
    screen.send_keys("hello\n");
    screen.expect("hello\r\nhello");
    screen.send_keys("\u{1a}");
    screen.expect("stopped; unless continued");
    screen.expect("ready> ");
    screen.send_keys("jobs\n");
    screen.expect("Stopped");
    screen.expect("ready> ");
    assert_eq!(place.holder_count("a"), 1);
    screen.send_keys("fg\n");
    screen.expect("-- cat");
    screen.send_keys("again\n");
    screen.expect("again\r\nagain");
    screen.send_keys("\u{1a}");
    screen.expect("stopped; unless continued");
    screen.expect("ready> ");
    // In the background it reads from the terminal, and stops again like any job.
    screen.send_keys("bg\n");
    let mut sent = 0;
    wait_for("the stopped job", || {
        // One command at a time, so that no output is left for later.
        if screen.output().matches("answered").count() < sent {
            return None;
        }
        if screen.output().contains("Stopped") {
            return Some(());
        }
        screen.send_keys("jobs; echo ans''wered\n");
        sent += 1;
        None
    });
    screen.expect("Stopped");
    screen.send_keys("fg\n");
    screen.expect("fg\r\n");
    screen.expect("-- cat");
    screen.send_keys("third\n");
    screen.expect("third\r\nthird");
    screen.send_keys("\u{4}");
    screen.expect("ready> ");
    screen.send_keys("echo code=$?\n");
    screen.expect("code=0\r\n");
    assert_eq!(place.holder_count("a"), 0);
    screen.send_keys("exit\n");
}

#[test]
fn job_control_works_in_bash() {
    check_stop_and_resume("bash");
}

#[test]
fn job_control_works_in_sh() {
    check_stop_and_resume("sh");
}

#[test]
fn control_c_ends_the_command_and_the_shell_has_its_terminal_back() {
    let place = TestFolder::new();
    let mut screen = start_shell(&place, "bash");
    screen.send_keys("\"$L\" run --ttl 1h a -- cat\n");
    wait_for_holders(&place, 1);
    screen.send_keys("hello\n");
    screen.expect("hello\r\nhello");
    screen.send_keys("\u{3}");
    screen.expect("ready> ");
    screen.send_keys("echo code=$?\n");
    screen.expect("code=130\r\n");
    // The shell gets it back, too, from a command that could not be run.
    screen.send_keys("\"$L\" run --ttl 1h a -- no-such-command; echo code=$?\n");
    screen.expect("code=127\r\n");
    screen.expect("ready> ");
    screen.send_keys("echo still here\n");
    screen.expect("\r\nstill here\r\n");
    assert_eq!(place.holder_count("a"), 0);
}

#[test]
fn in_a_pipeline_the_command_gets_the_terminal_when_it_reads() {
    let place = TestFolder::new();
    let mut screen = start_shell(&place, "bash");
    screen.send_keys("\"$L\" run --ttl 1h a -- cat | sed -u s/^/piped-/\n");
    wait_for_holders(&place, 1);
    screen.send_keys("hello\n");
    screen.expect("piped-hello");
    screen.send_keys("\u{4}");
    screen.expect("ready> ");
    screen.send_keys("echo still here\n");
    screen.expect("\r\nstill here\r\n");
}

#[test]
fn a_run_inside_a_run_stops_and_resumes_as_one_job() {
    let place = TestFolder::new();
    let mut screen = start_shell(&place, "bash");
    screen.send_keys("\"$L\" run --ttl 1h a -- \"$L\" run --ttl 1h a -- cat\n");
    wait_for_holders(&place, 2);
    screen.send_keys("hello\n");
    screen.expect("hello\r\nhello");
    screen.send_keys("\u{1a}");
    screen.expect("Stopped");
    screen.expect("ready> ");
    screen.send_keys("fg\n");
    screen.expect("-- cat");
    screen.send_keys("again\n");
    screen.expect("again\r\nagain");
    screen.send_keys("\u{3}");
    screen.expect("ready> ");
    screen.send_keys("echo code=$?\n");
    screen.expect("code=130\r\n");
    assert_eq!(place.holder_count("a"), 0);
}

#[test]
fn in_a_script_control_c_ends_the_script() {
    let place = TestFolder::new();
    let mut screen = start_shell(&place, "bash");
    screen.send_keys("sh -c '\"$L\" run --ttl 1h a -- sleep 1000; exit 7'\n");
    wait_for_holders(&place, 1);
    screen.send_keys("\u{3}");
    screen.expect("ready> ");
    screen.send_keys("echo code=$?\n");
    screen.expect("code=130\r\n");
    assert_eq!(place.holder_count("a"), 0);
}

#[test]
fn a_script_stops_and_resumes_with_the_command_that_has_its_terminal() {
    let place = TestFolder::new();
    let mut screen = start_shell(&place, "bash");
    screen.send_keys("sh -c '\"$L\" run --ttl 1h a -- cat; echo after=$?'\n");
    wait_for_holders(&place, 1);
    screen.send_keys("hello\n");
    screen.expect("hello\r\nhello");
    screen.send_keys("\u{1a}");
    screen.expect("Stopped");
    screen.expect("ready> ");
    screen.send_keys("fg\n");
    screen.expect("after=");
    screen.send_keys("again\n");
    screen.expect("again\r\nagain");
    screen.send_keys("\u{4}");
    screen.expect("after=0\r\n");
    screen.expect("ready> ");
}

#[cfg(feature = "nightly")]
#[test]
fn a_stopped_job_is_ended_before_its_lease_is_over() {
    let place = TestFolder::new();
    let mut screen = start_shell(&place, "bash");
    screen.send_keys("\"$L\" run --ttl 8s a -- sh -c 'echo $$ > child; cat'\n");
    let child = place.wait_for_file("child");
    wait_for_holders(&place, 1);
    screen.send_keys("hello\n");
    screen.expect("hello\r\nhello");
    screen.send_keys("\u{1a}");
    screen.expect("the lock is kept for ");
    screen.expect("the command is ended in ");
    screen.expect("ready> ");
    // Another run acquires the lock; by then the command is gone.
    place.run(["run", "a", "--", "true"]).assert_ok();
    assert!(!crate::common::is_alive(&child));
    screen.send_keys("fg; echo code=$?\n");
    screen.expect("is lost");
    screen.expect("code=75\r\n");
}

#[test]
fn without_a_shell_control_z_does_not_stop_the_command() {
    let place = TestFolder::new();
    let mut screen = PtySession::start(&place.command(["run", "--ttl", LONG_TTL, "a", "--", "cat"]), 80);
    wait_for_holders(&place, 1);
    screen.send_keys("one\n");
    screen.expect("one\r\none");
    screen.send_keys("\u{1a}");
    screen.send_keys("two\n");
    screen.expect("two\r\ntwo");
    screen.send_keys("\u{4}");
    assert_eq!(screen.wait(), Some(0));
}

#[test]
fn the_wait_display_shows_the_holder_and_our_position() {
    let place = TestFolder::new();
    let holder = place.start_holder(&["--describe", "the nightly job"], "a");
    let first = place.start(["run", "a", "--", "true"]);
    place.wait_for_waiters("a", 1);
    let mut screen = PtySession::start(&place.command(["run", "--ttl", LONG_TTL, "a", "--", "echo", "my turn"]), 200);
    screen.expect("waiting for a: 2nd of 2 in queue; held by ");
    screen.expect("(the nightly job) for ");
    // The status line is refreshed in place.
    screen.expect("\r\u{1b}[2Kwaiting for a: 2nd of 2");
    assert!(!screen.output().contains('\n'));
    holder.close_input_and_wait().assert_ok();
    first.wait().assert_ok();
    screen.expect("\r\u{1b}[2Kmy turn");
    assert_eq!(screen.wait(), Some(0));
    // Without a terminal, a wait prints no status line.
    let holder = place.start_holder(&[], "a");
    assert_eq!(place.run_with_longer_waits(2.0, &["run", "-q", "-w", "{wait}", "a", "--", "true"]).stderr(), "");
    holder.close_input_and_wait().assert_ok();
}

#[test]
fn control_c_while_waiting_leaves_the_queue() {
    let place = TestFolder::new();
    let holder = place.start_holder(&[], "a");
    let mut screen = start_shell(&place, "bash");
    screen.send_keys("\"$L\" run --ttl 1h a -- true\n");
    screen.expect("waiting for a: 1st of 1 in queue");
    screen.send_keys("\u{3}");
    screen.expect("ready> ");
    screen.send_keys("echo code=$?\n");
    screen.expect("code=130\r\n");
    assert_eq!(place.waiter_count("a"), 0);
    holder.close_input_and_wait().assert_ok();
}

#[test]
fn evict_asks_for_confirmation_on_a_terminal() {
    let place = TestFolder::new();
    let holder = place.start_holder(&["--on-lost", "ignore"], "a");
    let mut screen = PtySession::start(&place.command(["evict", "a"]), 200);
    screen.expect("Force it to release a? [y/N] ");
    screen.send_keys("n\n");
    screen.expect("nothing was changed");
    assert_eq!(screen.wait(), Some(1));
    assert_eq!(place.holder_count("a"), 1);
    let mut screen = PtySession::start(&place.command(["evict", "a"]), 200);
    screen.expect("[y/N] ");
    screen.send_keys("y\n");
    screen.expect("evicted from a: ");
    screen.expect("fence token 2");
    assert_eq!(screen.wait(), Some(0));
    holder.close_input_and_wait().assert_ok();
}

#[test]
fn tables_fit_the_terminal() {
    let place = TestFolder::new();
    let _holder = place.start_holder(&["--describe", &"words ".repeat(40)], "a");
    let mut screen = PtySession::start(&place.command(["ls"]), 80);
    screen.expect("NAME");
    wait_for("the whole table", || (screen.output().matches("words").count() == 40).then_some(()));
    assert!(screen.output().lines().all(|line| line.chars().count() <= 80), "{}", screen.output());
    assert_eq!(screen.wait(), Some(0));
}

#[test]
fn output_has_colours_on_a_terminal_unless_disabled() {
    let place = TestFolder::new();
    let _holder = place.start_holder(&[], "a");
    let coloured = |args: &[&str], last: &str, plain: bool| {
        let mut command = place.command(args);
        command.env("TERM", "xterm").env("NO_COLOR", if plain { "1" } else { "" });
        let screen = PtySession::start(&command, 200);
        wait_for(last, || screen.output().contains(last).then_some(()));
        let is_coloured = screen.output().contains("\u{1b}[");
        screen.wait();
        is_coloured
    };
    for (args, last) in [(&["ls"][..], "1 lock on "), (&["show", "a"], "DOING"), (&["doctor"], "fit for locks")] {
        assert!(coloured(args, last, false), "{args:?}");
        assert!(!coloured(args, last, true), "{args:?}");
        assert!(!place.run(args).stdout().contains('\u{1b}'), "{args:?}");
    }
}
