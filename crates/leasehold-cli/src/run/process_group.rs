//! Process groups, as the kernel shows them.

use std::fs;

use rustix::process::{self, Pid, Signal};

/// Sends a signal to every process of a group; ignores a group that no longer exists.
pub(super) fn send_signal(group: Pid, signal: Signal) {
    let _ = process::kill_process_group(group, signal);
}

/// Sends a signal, then CONT: a stopped process must run to handle the signal.
pub(super) fn signal_and_continue(group: Pid, signal: Signal) {
    self::send_signal(group, signal);
    self::send_signal(group, Signal::CONT);
}

/// Whether a process of the group still runs. Zombies do not count.
pub(super) fn is_alive(group: Pid) -> bool {
    if process::test_kill_process_group(group) == Err(rustix::io::Errno::SRCH) {
        return false;
    }
    let members = members(group);
    // A group that exists, but whose members are not visible, counts as alive.
    members.is_empty() || members.iter().any(|member| !member.has_ended())
}

/// Whether no shell controls the process group `own_group`, so that no process would continue it
/// after a stop.
pub(super) fn is_orphaned(own_group: Pid) -> bool {
    !members(own_group).iter().any(|member| {
        ProcessStat::read(&member.parent.to_string())
            .is_some_and(|parent| parent.session == member.session && parent.group != member.group)
    })
}

/// Whether `own_group` has processes besides this one: a pipeline, or a script.
pub(super) fn has_other_processes(own_group: Pid) -> bool {
    let own = process::getpid().as_raw_nonzero().get();
    members(own_group).iter().any(|member| member.pid != own && !member.has_ended())
}

/// The processes of a group, zombies included; empty if /proc cannot be read.
fn members(group: Pid) -> Vec<ProcessStat> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let wanted = group.as_raw_nonzero().get();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let processes = names.filter(|name| name.starts_with(|c: char| c.is_ascii_digit()));
    processes.filter_map(|pid| ProcessStat::read(&pid)).filter(|stat| stat.group == wanted).collect()
}

/// A process's entry in `/proc/PID/stat`.
#[derive(Debug, PartialEq, Eq)]
struct ProcessStat {
    pid: i32,
    state: char,
    parent: i32,
    group: i32,
    session: i32,
}

impl ProcessStat {
    /// Reads the entry of this process id; `None` if there is no such process.
    fn read(pid: &str) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Parses a process's `stat` line, in which the program's name may contain blanks and brackets.
    fn parse(line: &str) -> Option<Self> {
        let (pid, rest) = line.split_once(' ')?;
        let mut fields = rest.rsplit_once(')')?.1.split_whitespace();
        Some(Self {
            pid: pid.parse().ok()?,
            state: fields.next()?.chars().next()?,
            parent: fields.next()?.parse().ok()?,
            group: fields.next()?.parse().ok()?,
            session: fields.next()?.parse().ok()?,
        })
    }

    /// Whether it is a zombie, or dead.
    fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_any_name_is_parsed() {
        let stat = ProcessStat::parse("42 (a) b (c) S 1 40 39 0 -1").unwrap();
        assert_eq!(stat, ProcessStat { pid: 42, state: 'S', parent: 1, group: 40, session: 39 });
        assert_eq!(ProcessStat::parse("nonsense"), None);
    }

    #[test]
    fn our_own_group_is_alive() {
        assert!(is_alive(process::getpgrp()));
        assert!(!is_alive(Pid::from_raw(i32::MAX).unwrap()));
    }
}
