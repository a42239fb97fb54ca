//! The terminal: lent to the command's group while we are in the foreground, taken back when the
//! command ends or stops.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, OwnedFd};

use rustix::process::{self, Pid, Signal};
use rustix::termios::{isatty, tcgetpgrp, tcsetpgrp};

use super::group;

/// The controlling terminal. SIGTTOU is blocked, so its foreground group can be set from the
/// background.
#[derive(Debug)]
pub(super) struct Terminal {
    tty: File,
    ours: Pid,
    /// Whether the command had the terminal: then it gets it back when we are continued in the
    /// foreground.
    wanted: bool,
}

impl Terminal {
    /// `None` without a terminal: under cron, in a service, in a container.
    pub(super) fn find() -> Option<Self> {
        let tty = OpenOptions::new().read(true).write(true).open("/dev/tty").ok()?;
        Some(Self { tty, ours: process::getpgrp(), wanted: false })
    }

    /// Whether we are in the foreground.
    pub(super) fn is_ours(&self) -> bool {
        tcgetpgrp(&self.tty) == Ok(self.ours)
    }

    /// Whether the command's group is in the foreground.
    pub(super) fn is_lent_to(&self, group: Pid) -> bool {
        tcgetpgrp(&self.tty) == Ok(group)
    }

    /// Whether the command gets the terminal from the start: it reads from the terminal, and we are
    /// alone in the foreground. In a pipeline or a script, the other processes would lose the
    /// terminal and Ctrl-C, so there the command gets it only when it reads from it.
    pub(super) fn is_lent_at_once(&self) -> bool {
        isatty(std::io::stdin()) && self.is_ours() && !group::has_others(self.ours)
    }

    /// A descriptor for the command, which makes itself the foreground group before exec.
    pub(super) fn handle(&mut self) -> Option<OwnedFd> {
        self.wanted = true;
        self.tty.as_fd().try_clone_to_owned().ok()
    }

    /// Lends the terminal to `group`.
    pub(super) fn lend(&mut self, group: Pid) {
        self.wanted = true;
        let _ = tcsetpgrp(&self.tty, group);
    }

    /// Takes the terminal back, unless the shell gave it to another group meanwhile.
    pub(super) fn take_back(&self, group: Option<Pid>) {
        let holder = tcgetpgrp(&self.tty).ok();
        if self.wanted && (group.is_none() || holder == group) && holder != Some(self.ours) {
            let _ = tcsetpgrp(&self.tty, self.ours);
        }
    }

    /// After a stop: lends the terminal again if we are in the foreground again.
    pub(super) fn resume(&mut self, group: Pid) {
        if self.wanted && self.is_ours() {
            self.lend(group);
        }
    }

    /// Decides what to do about a stopped command.
    pub(super) fn on_stop(&self, group: Pid, by: Signal) -> OnStop {
        on_stop(by, self.is_ours(), self.is_lent_to(group), || group::is_orphaned(self.ours))
    }
}

/// What to do about a stopped command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnStop {
    /// It needs the terminal, and we have it.
    Lend,
    /// Nothing would continue us: the command must not stop.
    Continue,
    /// Our shell must see a stopped job.
    StopToo,
    /// Another process stopped it on purpose, and will continue it.
    Leave,
}

fn on_stop(by: Signal, ours: bool, lent: bool, orphaned: impl Fn() -> bool) -> OnStop {
    let wants_terminal = matches!(by, Signal::TTIN | Signal::TTOU);
    if wants_terminal && ours {
        return OnStop::Lend;
    }
    if !(wants_terminal || by == Signal::TSTP || lent) {
        return OnStop::Leave;
    }
    match (orphaned(), by == Signal::TSTP) {
        (false, _) => OnStop::StopToo,
        (true, true) => OnStop::Continue,
        (true, false) => OnStop::Leave,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_by_the_terminal_is_ours_and_one_by_others_is_not() {
        let (shell, alone) = (|| false, || true);
        assert_eq!(on_stop(Signal::TSTP, false, true, shell), OnStop::StopToo);
        assert_eq!(on_stop(Signal::TTIN, false, false, shell), OnStop::StopToo);
        assert_eq!(on_stop(Signal::TTIN, true, false, shell), OnStop::Lend);
        assert_eq!(on_stop(Signal::STOP, false, true, shell), OnStop::StopToo);
        assert_eq!(on_stop(Signal::STOP, false, false, shell), OnStop::Leave);
        assert_eq!(on_stop(Signal::TSTP, false, true, alone), OnStop::Continue);
        assert_eq!(on_stop(Signal::STOP, false, true, alone), OnStop::Leave);
        assert_eq!(on_stop(Signal::TTIN, false, false, alone), OnStop::Leave);
    }
}
