//! On a terminal: job control in a real shell, and the display while waiting.

use std::process::Command;

use crate::common::pty::Screen;
use crate::common::{LASTING, LEASEHOLD, Place, wait_for};

/// An interactive shell on its own terminal.
fn shell(place: &Place, program: &str) -> Screen {
    let mut command = Command::new(program);
    if program == "bash" {
        command.args(["--norc", "--noprofile", "--noediting"]);
    }
    command.arg("-i").env("PS1", "ready> ").env("LEASEHOLD_ENGINE", place.engine()).env("L", LEASEHOLD);
    command.env_remove("LEASEHOLD_OWNER").env_remove("ENV").current_dir(place.dir.path());
    let mut screen = Screen::start(&command, 200);
    screen.expect("ready> ");
    screen
}

fn wait_held(place: &Place, count: usize) {
    wait_for("a holder", || (place.holders("a") == count).then_some(()));
}

/// Stops, inspects, resumes and ends `cat` under a lock.
fn stop_and_resume(program: &str) {
    let place = Place::new();
    let mut screen = shell(&place, program);
    screen.press("\"$L\" run --ttl 1h a -- cat\n");
    wait_held(&place, 1);
    screen.press("hello\n");
    screen.expect("hello\r\nhello");
    screen.press("\u{1a}");
    screen.expect("stopped; unless continued");
    screen.expect("ready> ");
    screen.press("jobs\n");
    screen.expect("Stopped");
    screen.expect("ready> ");
    assert_eq!(place.holders("a"), 1);
    screen.press("fg\n");
    screen.expect("-- cat");
    screen.press("again\n");
    screen.expect("again\r\nagain");
    screen.press("\u{1a}");
    screen.expect("stopped; unless continued");
    screen.expect("ready> ");
    // In the background it reads from the terminal, and stops again like any job.
    screen.press("bg\n");
    let mut asked = 0;
    wait_for("the stopped job", || {
        // One command at a time, so that no output is left for later.
        if screen.seen().matches("answered").count() < asked {
            return None;
        }
        if screen.seen().contains("Stopped") {
            return Some(());
        }
        screen.press("jobs; echo ans''wered\n");
        asked += 1;
        None
    });
    screen.expect("Stopped");
    screen.press("fg\n");
    screen.expect("fg\r\n");
    screen.expect("-- cat");
    screen.press("third\n");
    screen.expect("third\r\nthird");
    screen.press("\u{4}");
    screen.expect("ready> ");
    screen.press("echo code=$?\n");
    screen.expect("code=0\r\n");
    assert_eq!(place.holders("a"), 0);
    screen.press("exit\n");
}

#[test]
fn job_control_works_in_bash() {
    stop_and_resume("bash");
}

#[test]
fn job_control_works_in_sh() {
    stop_and_resume("sh");
}

#[test]
fn control_c_ends_the_command_and_the_shell_has_its_terminal_back() {
    let place = Place::new();
    let mut screen = shell(&place, "bash");
    screen.press("\"$L\" run --ttl 1h a -- cat\n");
    wait_held(&place, 1);
    screen.press("hello\n");
    screen.expect("hello\r\nhello");
    screen.press("\u{3}");
    screen.expect("ready> ");
    screen.press("echo code=$?\n");
    screen.expect("code=130\r\n");
    // Also after a command that could not be run, but had already been given the terminal.
    screen.press("\"$L\" run --ttl 1h a -- no-such-command; echo code=$?\n");
    screen.expect("code=127\r\n");
    screen.expect("ready> ");
    screen.press("echo still here\n");
    screen.expect("\r\nstill here\r\n");
    assert_eq!(place.holders("a"), 0);
}

#[test]
fn in_a_pipeline_the_command_gets_the_terminal_when_it_asks() {
    let place = Place::new();
    let mut screen = shell(&place, "bash");
    screen.press("\"$L\" run --ttl 1h a -- cat | sed -u s/^/piped-/\n");
    wait_held(&place, 1);
    screen.press("hello\n");
    screen.expect("piped-hello");
    screen.press("\u{4}");
    screen.expect("ready> ");
    screen.press("echo still here\n");
    screen.expect("\r\nstill here\r\n");
}

#[test]
fn a_run_inside_a_run_stops_and_resumes_as_one_job() {
    let place = Place::new();
    let mut screen = shell(&place, "bash");
    screen.press("\"$L\" run --ttl 1h a -- \"$L\" run --ttl 1h a -- cat\n");
    wait_held(&place, 2);
    screen.press("hello\n");
    screen.expect("hello\r\nhello");
    screen.press("\u{1a}");
    screen.expect("Stopped");
    screen.expect("ready> ");
    screen.press("fg\n");
    screen.expect("-- cat");
    screen.press("again\n");
    screen.expect("again\r\nagain");
    screen.press("\u{3}");
    screen.expect("ready> ");
    screen.press("echo code=$?\n");
    screen.expect("code=130\r\n");
    assert_eq!(place.holders("a"), 0);
}

#[test]
fn in_a_script_control_c_ends_the_script() {
    let place = Place::new();
    let mut screen = shell(&place, "bash");
    screen.press("sh -c '\"$L\" run --ttl 1h a -- sleep 1000; exit 7'\n");
    wait_held(&place, 1);
    screen.press("\u{3}");
    screen.expect("ready> ");
    screen.press("echo code=$?\n");
    screen.expect("code=130\r\n");
    assert_eq!(place.holders("a"), 0);
}

#[test]
fn a_script_stops_and_resumes_with_the_command_that_has_its_terminal() {
    let place = Place::new();
    let mut screen = shell(&place, "bash");
    screen.press("sh -c '\"$L\" run --ttl 1h a -- cat; echo after=$?'\n");
    wait_held(&place, 1);
    screen.press("hello\n");
    screen.expect("hello\r\nhello");
    screen.press("\u{1a}");
    screen.expect("Stopped");
    screen.expect("ready> ");
    screen.press("fg\n");
    screen.expect("after=");
    screen.press("again\n");
    screen.expect("again\r\nagain");
    screen.press("\u{4}");
    screen.expect("after=0\r\n");
    screen.expect("ready> ");
}

#[cfg(feature = "nightly")]
#[test]
fn a_stopped_job_is_ended_before_its_lease_is_over() {
    let place = Place::new();
    let mut screen = shell(&place, "bash");
    screen.press("\"$L\" run --ttl 8s a -- sh -c 'echo $$ > child; cat'\n");
    let child = place.wait_for_file("child");
    wait_held(&place, 1);
    screen.press("hello\n");
    screen.expect("hello\r\nhello");
    screen.press("\u{1a}");
    screen.expect("the lock is kept for ");
    screen.expect("the command is ended in ");
    screen.expect("ready> ");
    // Another run acquires the lock; by then the command is gone.
    place.run(["run", "a", "--", "true"]).ok();
    assert!(!crate::common::is_alive(&child));
    screen.press("fg; echo code=$?\n");
    screen.expect("is lost");
    screen.expect("code=75\r\n");
}

#[test]
fn without_a_shell_control_z_does_not_strand_it() {
    let place = Place::new();
    let mut screen = Screen::start(&place.leasehold(["run", "--ttl", LASTING, "a", "--", "cat"]), 80);
    wait_held(&place, 1);
    screen.press("one\n");
    screen.expect("one\r\none");
    screen.press("\u{1a}");
    screen.press("two\n");
    screen.expect("two\r\ntwo");
    screen.press("\u{4}");
    assert_eq!(screen.end(), Some(0));
}

#[test]
fn while_waiting_it_shows_who_holds_and_our_place() {
    let place = Place::new();
    let holder = place.hold(&["--describe", "the nightly job"], "a");
    let first = place.start(["run", "a", "--", "true"]);
    place.wait_for_waiters("a", 1);
    let mut screen = Screen::start(&place.leasehold(["run", "--ttl", LASTING, "a", "--", "echo", "my turn"]), 200);
    screen.expect("waiting for a: 2nd of 2 in line; held by ");
    screen.expect("(the nightly job) for ");
    // It is refreshed in place.
    screen.expect("\r\u{1b}[2Kwaiting for a: 2nd of 2");
    assert!(!screen.seen().contains('\n'));
    holder.finish().ok();
    first.end().ok();
    screen.expect("\r\u{1b}[2Kmy turn");
    assert_eq!(screen.end(), Some(0));
    // Without a terminal it prints nothing.
    let holder = place.hold(&[], "a");
    assert_eq!(place.run_in_time(["run", "-q", "-w", "2", "a", "--", "true"]).err(), "");
    holder.finish().ok();
}

#[test]
fn control_c_while_waiting_leaves_the_queue() {
    let place = Place::new();
    let holder = place.hold(&[], "a");
    let mut screen = shell(&place, "bash");
    screen.press("\"$L\" run --ttl 1h a -- true\n");
    screen.expect("waiting for a: 1st of 1 in line");
    screen.press("\u{3}");
    screen.expect("ready> ");
    screen.press("echo code=$?\n");
    screen.expect("code=130\r\n");
    assert_eq!(place.waiters("a"), 0);
    holder.finish().ok();
}

#[test]
fn evict_asks_on_a_terminal() {
    let place = Place::new();
    let holder = place.hold(&["--on-lost", "ignore"], "a");
    let mut screen = Screen::start(&place.leasehold(["evict", "a"]), 200);
    screen.expect("Force it to release a? [y/N] ");
    screen.press("n\n");
    screen.expect("nothing was changed");
    assert_eq!(screen.end(), Some(1));
    assert_eq!(place.holders("a"), 1);
    let mut screen = Screen::start(&place.leasehold(["evict", "a"]), 200);
    screen.expect("[y/N] ");
    screen.press("y\n");
    screen.expect("evicted from a: ");
    screen.expect("fence token 2");
    assert_eq!(screen.end(), Some(0));
    holder.finish().ok();
}

#[test]
fn tables_fit_the_terminal() {
    let place = Place::new();
    let _holder = place.hold(&["--describe", &"words ".repeat(40)], "a");
    let mut screen = Screen::start(&place.leasehold(["ls"]), 80);
    screen.expect("NAME");
    wait_for("the whole table", || (screen.seen().matches("words").count() == 40).then_some(()));
    assert!(screen.seen().lines().all(|line| line.chars().count() <= 80), "{}", screen.seen());
    assert_eq!(screen.end(), Some(0));
}

#[test]
fn answers_have_colours_on_a_terminal_unless_they_are_unwanted() {
    let place = Place::new();
    let _holder = place.hold(&[], "a");
    let coloured = |args: &[&str], last: &str, plain: bool| {
        let mut command = place.leasehold(args);
        command.env("TERM", "xterm").env("NO_COLOR", if plain { "1" } else { "" });
        let screen = Screen::start(&command, 200);
        wait_for(last, || screen.seen().contains(last).then_some(()));
        let is_coloured = screen.seen().contains("\u{1b}[");
        screen.end();
        is_coloured
    };
    for (args, last) in [(&["ls"][..], "1 lock on "), (&["show", "a"], "DOING"), (&["doctor"], "fit for locks")] {
        assert!(coloured(args, last, false), "{args:?}");
        assert!(!coloured(args, last, true), "{args:?}");
        assert!(!place.run(args).out().contains('\u{1b}'), "{args:?}");
    }
}
