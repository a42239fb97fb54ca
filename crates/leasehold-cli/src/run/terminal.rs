//! The terminal: lent to the command's group while this process is in the foreground, taken back
//! when the command ends or stops.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, OwnedFd};

use rustix::process::{self, Pid, Signal};
use rustix::termios::{isatty, tcgetpgrp, tcsetpgrp};

use super::process_group;

/// The controlling terminal. SIGTTOU is blocked, so its foreground group can be set from the
/// background.
#[derive(Debug)]
pub(super) struct Terminal {
    tty: File,
    own_group: Pid,
    /// Whether the command had the terminal: then it gets it back when this process is continued in
    /// the foreground.
    was_lent: bool,
}

impl Terminal {
    /// `None` without a terminal: under cron, in a service, in a container.
    pub(super) fn open() -> Option<Self> {
        let tty = OpenOptions::new().read(true).write(true).open("/dev/tty").ok()?;
        Some(Self { tty, own_group: process::getpgrp(), was_lent: false })
    }

    /// Whether this process's group is in the foreground.
    pub(super) fn is_foreground(&self) -> bool {
        tcgetpgrp(&self.tty) == Ok(self.own_group)
    }

    /// Whether the command's group is in the foreground.
    pub(super) fn is_lent_to(&self, group: Pid) -> bool {
        tcgetpgrp(&self.tty) == Ok(group)
    }

    /// Whether the command gets the terminal from the start: it reads from the terminal, and this
    /// process is alone in the foreground. In a pipeline or a script, the other processes would
    /// lose the terminal and Ctrl-C, so there the command gets it only when it reads from it.
    pub(super) fn is_lent_at_start(&self) -> bool {
        isatty(std::io::stdin()) && self.is_foreground() && !process_group::has_other_processes(self.own_group)
    }

    /// A descriptor for the command, which makes itself the foreground group before exec.
    pub(super) fn child_handle(&mut self) -> Option<OwnedFd> {
        self.was_lent = true;
        self.tty.as_fd().try_clone_to_owned().ok()
    }

    /// Lends the terminal to `group`.
    pub(super) fn lend(&mut self, group: Pid) {
        self.was_lent = true;
        let _ = tcsetpgrp(&self.tty, group);
    }

    /// Takes the terminal back, unless the shell gave it to another group meanwhile.
    pub(super) fn reclaim(&self, group: Option<Pid>) {
        let holder = tcgetpgrp(&self.tty).ok();
        if self.was_lent && (group.is_none() || holder == group) && holder != Some(self.own_group) {
            let _ = tcsetpgrp(&self.tty, self.own_group);
        }
    }

    /// Called when a shell has continued this process: lends the terminal to `group` again, if this
    /// process is in the foreground.
    pub(super) fn resume(&mut self, group: Pid) {
        if self.was_lent && self.is_foreground() {
            self.lend(group);
        }
    }

    /// Decides what to do about a command that the signal `by` has stopped.
    pub(super) fn stop_action(&self, group: Pid, by: Signal) -> StopAction {
        decide_stop_action(by, self.is_foreground(), self.is_lent_to(group), || {
            process_group::is_orphaned(self.own_group)
        })
    }
}

/// What to do about a stopped command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopAction {
    /// Lend it the terminal, which it needs and this process has, and continue it.
    LendTerminal,
    /// Continue it: no shell controls this process that would do so later.
    Continue,
    /// Stop this process as well, so that the shell sees a stopped job.
    StopToo,
    /// Do nothing: another process stopped it on purpose, and will continue it.
    Ignore,
}

/// What to do about a command that the signal `by` has stopped. `is_foreground`: this process's
/// group has the terminal; `is_lent`: the command's group has it; `is_orphaned`: no shell controls
/// this process.
fn decide_stop_action(by: Signal, is_foreground: bool, is_lent: bool, is_orphaned: impl Fn() -> bool) -> StopAction {
    let wants_terminal = matches!(by, Signal::TTIN | Signal::TTOU);
    if wants_terminal && is_foreground {
        return StopAction::LendTerminal;
    }
    if !(wants_terminal || by == Signal::TSTP || is_lent) {
        return StopAction::Ignore;
    }
    match (is_orphaned(), by == Signal::TSTP) {
        (false, _) => StopAction::StopToo,
        (true, true) => StopAction::Continue,
        (true, false) => StopAction::Ignore,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_stops_are_handled_and_other_stops_are_ignored() {
        let (shell, alone) = (|| false, || true);
        assert_eq!(decide_stop_action(Signal::TSTP, false, true, shell), StopAction::StopToo);
        assert_eq!(decide_stop_action(Signal::TTIN, false, false, shell), StopAction::StopToo);
        assert_eq!(decide_stop_action(Signal::TTIN, true, false, shell), StopAction::LendTerminal);
        assert_eq!(decide_stop_action(Signal::STOP, false, true, shell), StopAction::StopToo);
        assert_eq!(decide_stop_action(Signal::STOP, false, false, shell), StopAction::Ignore);
        assert_eq!(decide_stop_action(Signal::TSTP, false, true, alone), StopAction::Continue);
        assert_eq!(decide_stop_action(Signal::STOP, false, true, alone), StopAction::Ignore);
        assert_eq!(decide_stop_action(Signal::TTIN, false, false, alone), StopAction::Ignore);
    }
}
