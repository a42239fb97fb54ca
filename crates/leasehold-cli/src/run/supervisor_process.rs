//! Starts and controls the supervisor process, which ends the command's group if this process
//! cannot.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use leasehold::clock::{Clock, Instant};
use rustix::fs::OFlags;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;

use super::loss_policy::SignalSchedule;
use super::supervisor_message::SupervisorMessage;

/// The first argument that makes this program the supervisor process.
pub(crate) const SUPERVISOR_ARGUMENT: &str = "__supervisor";

/// How often a killed supervisor is replaced, at most.
const MAX_REPLACEMENTS: u32 = 8;

/// A running supervisor process.
#[derive(Debug)]
pub(super) struct SupervisorProcess {
    process: Child,
    /// This process's end of the pipe for messages to it.
    pipe: OwnedFd,
    /// The descriptor that keeps the lock while a process has it open; `None` if the engine has
    /// none. A replacement of the supervisor gets it, too.
    liveness_fd: Option<OwnedFd>,
    replaced_count: u32,
    last_schedule: SignalSchedule,
    /// Whether it may have sent TERM or KILL, because this process was stopped when a signal was
    /// due.
    may_have_acted: bool,
}

impl SupervisorProcess {
    /// Starts a supervisor. It keeps `liveness_fd` open while it runs, so the lock is not free before
    /// the group is gone.
    pub(super) fn spawn(liveness_fd: Option<OwnedFd>) -> io::Result<Self> {
        let (process, pipe) = spawn_process(liveness_fd.as_ref(), None)?;
        Ok(Self {
            process,
            pipe,
            liveness_fd,
            replaced_count: 0,
            last_schedule: SignalSchedule::NEVER,
            may_have_acted: false,
        })
    }

    /// Starts another supervisor for `group` if the last one was killed.
    pub(super) fn replace_if_dead(&mut self, group: Pid) {
        if self.replaced_count >= MAX_REPLACEMENTS || !matches!(self.process.try_wait(), Ok(Some(_))) {
            return;
        }
        self.replaced_count += 1;
        match spawn_process(self.liveness_fd.as_ref(), Some(group)) {
            Ok((process, pipe)) => {
                (self.process, self.pipe) = (process, pipe);
                self.send(SupervisorMessage::Schedule(self.last_schedule));
            }
            Err(error) => tracing::warn!(%error, "the supervisor process was killed and could not be replaced"),
        }
    }

    /// The pipe over which the command reports its own group before exec.
    pub(super) fn pipe(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }

    /// Sends the schedule that the supervisor follows if no later message arrives.
    pub(super) fn send_schedule(&mut self, schedule: SignalSchedule, now: Instant) {
        self.may_have_acted |= self.has_acted(now);
        if self.last_schedule != schedule {
            self.last_schedule = schedule;
            self.send(SupervisorMessage::Schedule(schedule));
        }
    }

    /// Whether a signal was due for the supervisor before `now`, which it may have sent.
    pub(super) fn has_acted(&self, now: Instant) -> bool {
        self.may_have_acted || now >= self.last_schedule.next_signal_at()
    }

    /// Tells the supervisor to exit, because the command has ended. It must not signal the group
    /// any more: the group's id may soon be reused.
    pub(super) fn send_done(&mut self) {
        self.send(SupervisorMessage::Done);
    }

    /// Waits until the supervisor has exited, for at most a second.
    pub(super) async fn wait_exited(mut self, clock: &Clock) {
        let bound = clock.now().saturating_add(Duration::from_secs(1));
        drop(self.pipe);
        while matches!(self.process.try_wait(), Ok(None)) && clock.now() < bound {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Writes a message to the supervisor's pipe. Kills a supervisor that no longer reads it.
    fn send(&mut self, message: SupervisorMessage) {
        match rustix::io::write(&self.pipe, &message.encode()) {
            Ok(_) => {}
            // The pipe is full: the supervisor did not read thousands of messages. This process
            // must not block on it, so it is killed, and replaced as if another process had killed
            // it.
            Err(rustix::io::Errno::AGAIN) => {
                let killed = self.process.kill();
                tracing::warn!(?killed, "the supervisor process hangs; it is killed and replaced");
            }
            // The supervisor was killed. Until it is replaced, the command still has its
            // parent-death signal.
            Err(error) => tracing::warn!(%error, "cannot write to the supervisor process"),
        }
    }
}

/// Starts a supervisor, for a command that is about to start or for one that runs in `group`.
/// Returns its process and this process's end of the pipe for messages to it.
fn spawn_process(liveness_fd: Option<&OwnedFd>, group: Option<Pid>) -> io::Result<(Child, OwnedFd)> {
    let (reader, pipe) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::fs::fcntl_setfl(&pipe, OFlags::NONBLOCK)?;
    let liveness_fd = liveness_fd.map(OwnedFd::try_clone).transpose()?;
    let process = Command::new("/proc/self/exe")
        .arg0("leasehold")
        .arg(SUPERVISOR_ARGUMENT)
        .args(group.map(|group| group.as_raw_nonzero().to_string()))
        .env_remove(leasehold_command::secret::HIDDEN_URL_VARIABLE)
        .current_dir("/")
        .stdin(reader)
        // The descriptor is passed as standard output, so that only the supervisor inherits it.
        .stdout(liveness_fd.map_or_else(Stdio::null, Stdio::from))
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()?;
    Ok((process, pipe))
}
