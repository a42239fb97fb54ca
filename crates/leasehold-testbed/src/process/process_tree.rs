//! Signals to a process and all its descendants, through `/proc`.
//!
//! A server may be many processes: PostgreSQL has one for each connection (in its own session, so a
//! process group is not enough), Redis forks to rewrite its files. Signals to the first process
//! alone would leave the others running.
//!
//! Every function here needs a root that has not been reaped. Descendants get signals only after
//! their parent has stopped: a stopped parent cannot reap them, so their process ids cannot be
//! reused.

use std::{fs, path::Path, thread, time::Duration};

use rustix::process::{Pid, Signal, kill_process};

/// The time limit for a process to stop or die; a wait for the disk delays it.
const STATE_TIMEOUT: Duration = crate::TEST_TIMEOUT;
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// Suspends `root` and then its descendants; returns all of them, parents first, once they have
/// stopped. `Err`: this process did not stop in time.
pub(super) fn stop(root: Pid) -> Result<Vec<Pid>, Pid> {
    let mut stopped = Vec::new();
    let mut waiting = vec![root];
    while let Some(pid) = waiting.pop() {
        // An error is ignored: the process may have ended meanwhile, which the wait detects.
        let _ = kill_process(pid, Signal::STOP);
        if !wait_until(pid, |state| matches!(state, 'T' | 't' | 'Z' | 'X')) {
            return Err(pid);
        }
        stopped.push(pid);
        waiting.extend(children(pid));
    }
    Ok(stopped)
}

/// Whether `root` is suspended.
pub(super) fn is_stopped(root: Pid) -> bool {
    thread_states(root).contains(&'T')
}

/// Resumes `root` and its descendants, if `root` is suspended.
pub(super) fn resume(root: Pid) {
    if !is_stopped(root) {
        return;
    }
    // Children are resumed before their parent, so that no parent reaps a child meanwhile.
    for pid in with_descendants(root).into_iter().rev() {
        let _ = kill_process(pid, Signal::CONT);
    }
}

/// Kills `root` and its descendants. The spawner of the root must then reap it.
pub(super) fn kill(root: Pid) {
    let pids = stop(root).unwrap_or_else(|_| vec![root]);
    for &pid in pids.iter().rev().filter(|&&pid| pid != root) {
        let _ = kill_process(pid, Signal::KILL);
        wait_until(pid, |state| matches!(state, 'Z' | 'X'));
    }
    let _ = kill_process(root, Signal::KILL);
}

/// `root` and its descendants as they are now, parents first.
pub(super) fn with_descendants(root: Pid) -> Vec<Pid> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&pid) = found.get(next) {
        found.extend(children(pid));
        next += 1;
    }
    found
}

fn children(parent: Pid) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
        .filter(|pid| {
            let stat = Path::new("/proc").join(pid.to_string()).join("stat");
            read_stat(&stat).is_some_and(|(_, ppid)| ppid == parent.as_raw_nonzero().get())
        })
        .collect()
}

/// Waits until all threads of `pid` are in a `wanted` state, or it has ended; `false` if they are
/// not in time.
fn wait_until(pid: Pid, wanted: fn(char) -> bool) -> bool {
    let rounds = STATE_TIMEOUT.as_micros() / POLL_INTERVAL.as_micros();
    for _ in 0..rounds {
        if thread_states(pid).into_iter().all(wanted) {
            return true;
        }
        thread::sleep(POLL_INTERVAL);
    }
    false
}

/// The states of all threads of `pid`, as in `/proc`: `T` is stopped, `Z` and `X` have ended. The
/// main thread alone is not enough: the others stop a moment later.
fn thread_states(pid: Pid) -> Vec<char> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    threads.flatten().filter_map(|thread| read_stat(&thread.path().join("stat"))).map(|(state, _)| state).collect()
}

/// Reads the state and the parent's process id from a `stat` file; `None` if there is none any
/// more. The name before them may contain blanks and brackets.
fn read_stat(stat: &Path) -> Option<(char, i32)> {
    let text = fs::read_to_string(stat).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.next()?.parse().ok()?))
}
