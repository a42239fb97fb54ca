//! Leases and waits that end during a test. A busy machine may be too slow for a short time. Then the
//! attempt is inconclusive, and the test repeats it with a longer time.

use std::time::Duration;

use leasehold::clock::{Clock, Instant};
use rustix::process::Signal;

use super::{CommandOutput, RunningCommand, TestFolder, wait_for};

/// The exit code of a command whose engine did not answer in time.
pub(crate) const UNAVAILABLE: i32 = 69;

/// A script that prints which processes of the family still run. A dead process that was not reaped
/// is a zombie.
pub(crate) const LIST_LIVING_FAMILY: &str = "for pid in $(cat child grandchild); do \
    [ ! -e /proc/$pid ] || grep -q '^State:.Z' /proc/$pid/status || echo $pid; done";

/// Repeats a test of a lease's end with longer and longer TTLs, until it returns a value. `None`: the
/// lease ended before the step under test.
#[track_caller]
pub(crate) fn with_a_lease<T>(test: impl FnMut(&str) -> Option<T>) -> T {
    let shown = ["3s", "6s", "12s", "24s", "48s"].into_iter().find_map(test);
    shown.expect("a conclusive attempt, at the latest with the longest time")
}

/// Before this time, no lease of this length ends that is granted from now on.
pub(crate) fn earliest_end(length: &str) -> Instant {
    let seconds = length.strip_suffix('s').and_then(|seconds| seconds.parse().ok()).expect("whole seconds");
    Clock::system().now().saturating_add(Duration::from_secs(seconds))
}

/// Waits for an event while `running` holds its lock. `None`: it ended before.
#[track_caller]
pub(crate) fn while_held<T>(
    running: &mut RunningCommand,
    what: &str,
    mut look: impl FnMut() -> Option<T>,
) -> Option<T> {
    wait_for(what, || match look() {
        Some(seen) => Some(Some(seen)),
        None => running.try_wait().map(|_| None),
    })
}

/// The contents of a file that the command writes while `running` holds its lock.
#[track_caller]
pub(crate) fn file_while_held(place: &TestFolder, running: &mut RunningCommand, name: &str) -> Option<String> {
    while_held(running, &format!("file {name}"), || Some(place.read(name)).filter(|text| text.ends_with('\n')))
}

/// The process ids that the command and its child write while `running` holds its lock.
#[track_caller]
pub(crate) fn family_while_held(place: &TestFolder, running: &mut RunningCommand) -> Option<[String; 2]> {
    Some([file_while_held(place, running, "child")?, file_while_held(place, running, "grandchild")?])
}

/// The test of a wait with a timeout in seconds, of which `shortest` is the first. `None`: the engine
/// did not answer within that time.
#[track_caller]
pub(crate) fn with_a_wait<T>(shortest: f64, test: impl FnMut(&str) -> Option<T>) -> T {
    let waits = [1.0, 4.0, 16.0, 64.0].map(|factor| (shortest * factor).to_string());
    let shown = waits.iter().map(String::as_str).find_map(test);
    shown.expect("an engine that answers within the longest wait")
}

impl TestFolder {
    /// A process that held `name` on this engine when it was killed, so that its lease expires.
    #[track_caller]
    pub(crate) fn start_killed_holder(&self, engine: &str, name: &str) -> RunningCommand {
        with_a_lease(|ttl| {
            let _ = std::fs::remove_file(self.path("begun"));
            let command = "echo > begun; exec sleep 600";
            let mut holder = self.start(["run", "--engine", engine, "--ttl", ttl, name, "-c", command]);
            file_while_held(self, &mut holder, "begun")?;
            holder.signal(Signal::KILL);
            Some(holder)
        })
    }

    /// Evicts a holder of `name` on this engine; returns the eviction's and the holder's output. A
    /// holder learns of it at its next renewal, so its TTL must be short.
    #[track_caller]
    pub(crate) fn evict_a_holder(&self, engine: &str, name: &str) -> (CommandOutput, CommandOutput) {
        with_a_lease(|ttl| {
            let mut holder = self.start(["run", "--engine", engine, "--ttl", ttl, name, "--", "cat"]);
            while_held(&mut holder, "a holder", || {
                self.run(["show", "--engine", engine, name]).stdout().contains("held").then_some(())
            })?;
            let evicted = self.run(["evict", "--engine", engine, "--yes", name]);
            let ended = holder.wait();
            // The lease had expired: there was no holder to evict.
            if evicted.exit_code() == 1 {
                return None;
            }
            Some((evicted.assert_ok(), ended))
        })
    }

    /// Runs it with the first wait within which the engine answers. `{wait}` in the arguments is that
    /// wait, in seconds.
    #[track_caller]
    pub(crate) fn run_with_a_wait(&self, shortest: f64, args: &[&str]) -> CommandOutput {
        with_a_wait(shortest, |wait| {
            let ran = self.run(args.iter().map(|arg| arg.replace("{wait}", wait)));
            (ran.exit_code() != UNAVAILABLE).then_some(ran)
        })
    }
}
