//! The command: started in its own process group, so that it cannot outlive this process.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use leasehold::Guard;
use nix::sys::signal::SigSet;
use rustix::process::{self, Pid, Signal, WaitId, WaitIdOptions};
use rustix::termios::tcsetpgrp;

use super::RunContext;
use super::ancestors::Hold;
use super::supervisor_message::SupervisorMessage;
use crate::exit::{self, Failure};

/// A started command that is not reaped yet.
#[derive(Debug)]
pub(super) struct Child {
    pid: Pid,
}

/// A change of the command's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StateChange {
    /// The command was stopped by this signal.
    Stopped(Signal),
    /// The command has ended.
    Ended(ExitStatus),
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExitStatus {
    /// The command exited with this code.
    Exited(u8),
    /// The signal with this number ended the command.
    Signalled(i32),
}

impl ExitStatus {
    /// The exit code that a shell would report.
    pub(super) fn exit_code(self) -> u8 {
        match self {
            Self::Exited(code) => code,
            Self::Signalled(number) => exit::signal_exit_code(number),
        }
    }
}

/// What the command's process does between fork and exec.
pub(super) struct ChildSetup {
    /// The pipe to the supervisor process, which must know the group before the command runs.
    pub(super) supervisor_pipe: OwnedFd,
    /// The terminal, if the command gets it from the start.
    pub(super) terminal: Option<OwnedFd>,
    /// The command's signal mask.
    pub(super) mask: SigSet,
}

impl ChildSetup {
    /// Runs in the new process before exec. Only makes system calls, and neither allocates nor
    /// locks: another thread may have held a lock at the fork.
    fn prepare(&self, parent: Pid) -> io::Result<()> {
        process::set_parent_process_death_signal(Some(Signal::KILL))?;
        if process::getppid() != Some(parent) {
            return Err(rustix::io::Errno::SRCH.into());
        }
        let own = process::getpid();
        rustix::io::write(&self.supervisor_pipe, &SupervisorMessage::Group(own).encode())?;
        if let Some(terminal) = &self.terminal {
            // SIGTTOU is still blocked, so this works from the background. If it fails, the command
            // requests the terminal later.
            let _ = tcsetpgrp(terminal, own);
        }
        self.mask.thread_set_mask().map_err(io::Error::from)
    }
}

impl Child {
    /// Starts the command in its own process group, with the lock in its environment.
    pub(super) fn spawn(run: &RunContext<'_>, guard: &Guard, setup: ChildSetup) -> Result<Self, Failure> {
        let Some((program, arguments)) = run.plan.command.split_first() else {
            return Err(Failure::usage("there is no command to run"));
        };
        let mut command = Command::new(program);
        command.args(arguments).process_group(0);
        command.env("LEASEHOLD_NAME", guard.name().as_str()).env("LEASEHOLD_TOKEN", guard.token().to_string());
        run.engine.set_env(&mut command);
        command.envs(run.plan.env.iter().map(|(key, value)| (key, value)));
        if run.plan.is_detached {
            command.stdin(Stdio::null());
        }
        // Uses the engine's own URL, so that different spellings of a URL are one engine.
        for (key, value) in run.ancestors.env_with(&Hold::from_guard(guard, run.owner, &run.locks.url())) {
            match value {
                Some(value) => command.env(key, value),
                None => command.env_remove(key),
            };
        }
        let parent = process::getpid();
        // SAFETY: between fork and exec only async-signal-safe functions may be called. `prepare` only
        // makes system calls, on values that were created before the fork.
        #[allow(unsafe_code, reason = "std's `pre_exec` is unsafe")]
        unsafe {
            command.pre_exec(move || setup.prepare(parent));
        }
        let child = command.spawn().map_err(|error| spawn_failure(program, &error))?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        Ok(Self { pid: pid.ok_or_else(|| Failure::system("cannot run", "the process id is invalid"))? })
    }

    /// The command's process group, whose id is the command's process id.
    pub(super) fn group(&self) -> Pid {
        self.pid
    }

    /// The change since the last call, if any. An ended command stays a zombie until `reap`, so
    /// that its process id is not reused.
    pub(super) fn poll_change(&self) -> Option<StateChange> {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        if let Ok(Some(status)) = process::waitid(WaitId::Pid(self.pid), options)
            && let Some(by) = status.stopping_signal().and_then(Signal::from_named_raw)
        {
            return Some(StateChange::Stopped(by));
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = match process::waitid(WaitId::Pid(self.pid), options) {
            Ok(status) => status?,
            Err(rustix::io::Errno::INTR) => return None,
            // Other code in this process reaped it; its exit status is unknown.
            Err(_) => return Some(StateChange::Ended(ExitStatus::Exited(exit::SYSTEM))),
        };
        Some(StateChange::Ended(match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => ExitStatus::Exited(u8::try_from(code & 0xff).unwrap_or(u8::MAX)),
            (None, Some(number)) => ExitStatus::Signalled(number),
            (None, None) => return None,
        }))
    }

    /// Reaps the ended command; from then on, its process id may be reused.
    pub(super) fn reap(self) {
        let _ = process::waitid(WaitId::Pid(self.pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    }
}

/// The failure for a command that could not be started: code 127 if it was not found, else 126.
fn spawn_failure(program: &std::ffi::OsStr, error: &io::Error) -> Failure {
    let message = format!("cannot run {}: {error}", program.display());
    match error.kind() {
        io::ErrorKind::NotFound => Failure::new(exit::NOT_FOUND, "not-found", message),
        _ => Failure::new(exit::NOT_EXECUTABLE, "not-executable", message),
    }
}
