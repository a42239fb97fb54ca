//! Leases and waits that end during a test. A busy machine may be too slow for a short time. Then the
//! attempt is inconclusive, and the test repeats it with a longer time.

use std::time::Duration;

use leasehold::clock::{Clock, Instant};
use rustix::process::Signal;

use super::{CommandOutput, RunningCommand, TestFolder, wait_for};

/// The exit code of a command whose engine did not answer in time.
pub(crate) const UNAVAILABLE: i32 = 69;

/// A script that prints the process ids in the files `child` and `grandchild` whose processes still
/// run; zombies do not.
pub(crate) const LIST_LIVING_FAMILY: &str = "for pid in $(cat child grandchild); do \
    [ ! -e /proc/$pid ] || grep -q '^State:.Z' /proc/$pid/status || echo $pid; done";

/// Repeats an attempt with longer and longer TTLs, until it returns a value. An attempt returns
/// `None` if the lease ended before the step under test.
#[track_caller]
pub(crate) fn retry_with_longer_ttls<T>(attempt: impl FnMut(&str) -> Option<T>) -> T {
    let shown = ["3s", "6s", "12s", "24s", "48s"].into_iter().find_map(attempt);
    shown.expect("a conclusive attempt, at the latest with the longest time")
}

/// No lease of this length that is granted from now on ends before this time.
pub(crate) fn earliest_lease_end(length: &str) -> Instant {
    let seconds = length.strip_suffix('s').and_then(|seconds| seconds.parse().ok()).expect("whole seconds");
    Clock::system().now().saturating_add(Duration::from_secs(seconds))
}

/// Polls `look` until it returns a value; `None` if `running` ended before, and with it its hold.
#[track_caller]
pub(crate) fn wait_while_held<T>(
    running: &mut RunningCommand,
    what: &str,
    mut look: impl FnMut() -> Option<T>,
) -> Option<T> {
    wait_for(what, || match look() {
        Some(seen) => Some(Some(seen)),
        None => running.try_wait().map(|_| None),
    })
}

/// Waits for a file that the command of `running` writes; returns its contents, `None` if `running`
/// ended before.
#[track_caller]
pub(crate) fn wait_for_file_while_held(place: &TestFolder, running: &mut RunningCommand, name: &str) -> Option<String> {
    wait_while_held(running, &format!("file {name}"), || Some(place.read(name)).filter(|text| text.ends_with('\n')))
}

/// Waits for the process ids that the command of `running` and its child write; `None` if `running`
/// ended before.
#[track_caller]
pub(crate) fn wait_for_family_while_held(place: &TestFolder, running: &mut RunningCommand) -> Option<[String; 2]> {
    Some([wait_for_file_while_held(place, running, "child")?, wait_for_file_while_held(place, running, "grandchild")?])
}

/// Repeats an attempt with longer and longer waits in seconds, the first of which is `shortest`,
/// until it returns a value. An attempt returns `None` if the engine did not answer within the
/// wait.
#[track_caller]
pub(crate) fn retry_with_longer_waits<T>(shortest: f64, attempt: impl FnMut(&str) -> Option<T>) -> T {
    let waits = [1.0, 4.0, 16.0, 64.0].map(|factor| (shortest * factor).to_string());
    let shown = waits.iter().map(String::as_str).find_map(attempt);
    shown.expect("an engine that answers within the longest wait")
}

impl TestFolder {
    /// Starts a process that holds `name` on this engine, and kills it, so that its lease expires.
    #[track_caller]
    pub(crate) fn start_killed_holder(&self, engine: &str, name: &str) -> RunningCommand {
        retry_with_longer_ttls(|ttl| {
            let _ = std::fs::remove_file(self.path("begun"));
            let command = "echo > begun; exec sleep 600";
            let mut holder = self.start(["run", "--engine", engine, "--ttl", ttl, name, "-c", command]);
            wait_for_file_while_held(self, &mut holder, "begun")?;
            holder.signal(Signal::KILL);
            Some(holder)
        })
    }

    /// Starts a holder of `name` on this engine, and force releases it; returns the output of
    /// `evict` and that of the holder. A holder learns of it at its next renewal, so its TTL must
    /// be short.
    #[track_caller]
    pub(crate) fn start_and_evict_holder(&self, engine: &str, name: &str) -> (CommandOutput, CommandOutput) {
        retry_with_longer_ttls(|ttl| {
            let mut holder = self.start(["run", "--engine", engine, "--ttl", ttl, name, "--", "cat"]);
            wait_while_held(&mut holder, "a holder", || {
                self.run(["show", "--engine", engine, name]).stdout().contains("held").then_some(())
            })?;
            let evicted = self.run(["evict", "--engine", engine, "--yes", name]);
            let ended = holder.wait();
            // Exit code 1: the lease had expired, so there was no holder.
            if evicted.exit_code() == 1 {
                return None;
            }
            Some((evicted.assert_ok(), ended))
        })
    }

    /// Runs `leasehold` with longer and longer waits until the engine answers within one. Each
    /// `{wait}` in the arguments becomes the wait in seconds, which begins with `shortest`.
    #[track_caller]
    pub(crate) fn run_with_longer_waits(&self, shortest: f64, args: &[&str]) -> CommandOutput {
        retry_with_longer_waits(shortest, |wait| {
            let ran = self.run(args.iter().map(|arg| arg.replace("{wait}", wait)));
            (ran.exit_code() != UNAVAILABLE).then_some(ran)
        })
    }
}
