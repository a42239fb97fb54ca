//! Signals to a process and all it has started, through `/proc`.
//!
//! A server may be many processes: PostgreSQL has one for each connection (in a session of its own,
//! so a process group would not do), Redis forks to rewrite its files. Pausing or killing only the
//! first would leave the others at work.
//!
//! Every function here must be called with a root that has not been waited for. Its descendants
//! are signalled only after their parent has stopped: a stopped parent cannot reap, so their
//! process ids cannot have passed to others.

use std::{fs, path::Path, thread, time::Duration};

use rustix::process::{Pid, Signal, kill_process};

/// How long a process may take to stop or die; one that waits for its disk takes a while.
const STATE_TIMEOUT: Duration = crate::TEST_TIMEOUT;
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// Stops `root` and then its descendants; returns them all, parents first, when they have stopped.
///
/// `Err` has the process that would not stop.
pub(super) fn stop(root: Pid) -> Result<Vec<Pid>, Pid> {
    let mut stopped = Vec::new();
    let mut waiting = vec![root];
    while let Some(pid) = waiting.pop() {
        // It may have ended meanwhile: the wait sees that too.
        let _ = kill_process(pid, Signal::STOP);
        if !wait_until(pid, |state| matches!(state, 'T' | 't' | 'Z' | 'X')) {
            return Err(pid);
        }
        stopped.push(pid);
        waiting.extend(children(pid));
    }
    Ok(stopped)
}

/// Whether `root` is stopped.
pub(super) fn is_stopped(root: Pid) -> bool {
    thread_states(root).contains(&'T')
}

/// Lets `root` and its descendants go on, if it is stopped.
pub(super) fn resume(root: Pid) {
    if !is_stopped(root) {
        return;
    }
    // Last to stop, first to go on: no parent runs before we are done with its children.
    for pid in with_descendants(root).into_iter().rev() {
        let _ = kill_process(pid, Signal::CONT);
    }
}

/// Kills `root` and its descendants. The root must then be waited for by whoever spawned it.
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

/// Whether all threads of `pid` came into a wanted state within the bound, or it is gone.
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

/// The main thread alone says little: the others stop a moment later.
fn thread_states(pid: Pid) -> Vec<char> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    threads.flatten().filter_map(|thread| read_stat(&thread.path().join("stat"))).map(|(state, _)| state).collect()
}

/// State and parent out of a `stat` file. The name before them may hold blanks and brackets.
fn read_stat(stat: &Path) -> Option<(char, i32)> {
    let text = fs::read_to_string(stat).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.next()?.parse().ok()?))
}
