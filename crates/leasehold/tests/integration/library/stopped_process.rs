//! A process that was stopped past its TTL finds at its first check that its lock is lost.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use leasehold::blocking::Locks;
use leasehold::clock::Clock;
use rustix::process::{Pid, Signal, kill_process};

use crate::TEST_TIMEOUT;

const TTL: Duration = Duration::from_secs(1);
const ROLE_VARIABLE: &str = "LEASEHOLD_TEST_STOPPED";

/// The main function of the process that is stopped. As an ordinary test it returns at once.
#[test]
fn holder_process() {
    if std::env::var_os(ROLE_VARIABLE).is_none() {
        return;
    }
    let locks = Locks::builder().ttl(TTL).open("memory:").unwrap();
    let guard = locks.mutex("a").lock().unwrap();
    print_line("running");
    // The test writes a line while this process is stopped, so it continues here when it resumes.
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let held = guard.is_held();
    print_line(&format!("resumed held={held} reason={:?}", guard.lost_reason()));
}

/// Prints a line for the test, marked with `@`.
fn print_line(line: &str) {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "@{line}").unwrap();
    stdout.flush().unwrap();
}

/// The process that holds the lock; killed on drop, whether the test passes or fails.
struct HolderProcess(Child);

impl Drop for HolderProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl HolderProcess {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
    }
}

#[test]
fn a_resumed_holder_reports_at_once_that_the_lock_is_lost() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let test = crate::test_name(concat!(module_path!(), "::holder_process"));
    command.args([test, "--exact", "--nocapture"]).env(ROLE_VARIABLE, "yes").stdin(Stdio::piped());
    let mut holder = HolderProcess(command.stdout(Stdio::piped()).spawn().unwrap());
    let lines = BufReader::new(holder.0.stdout.take().unwrap()).lines().map(|line| line.unwrap());
    let mut messages = lines.filter_map(|line| line.split_once('@').map(|(_, message)| message.to_owned()));
    assert_eq!(messages.next().as_deref(), Some("running"));

    holder.signal(Signal::STOP);
    let clock = Clock::system();
    let checked_at = clock.now();
    while !holder.is_stopped() {
        if clock.now().duration_since(checked_at) >= TEST_TIMEOUT {
            panic!("not stopped");
        }
        std::thread::yield_now();
    }
    let stopped = clock.now();
    while clock.now().duration_since(stopped) < TTL * 2 {
        std::thread::sleep(TTL / 4);
    }
    holder.0.stdin.take().unwrap().write_all(b"go\n").unwrap();
    holder.signal(Signal::CONT);
    assert_eq!(messages.next().as_deref(), Some("resumed held=false reason=Some(Expired)"));
}
