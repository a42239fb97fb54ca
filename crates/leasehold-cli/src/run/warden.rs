//! Our side of the warden: the process that ends the command's group if we cannot.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use leasehold::clock::{Clock, Moment};
use rustix::fs::OFlags;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;

use super::lost::Schedule;
use super::message::Message;

/// The first argument that makes this program the warden.
pub(crate) const WARDEN: &str = "__warden";

/// How often a killed warden is replaced.
const REPLACEMENTS: u32 = 8;

/// A running warden.
#[derive(Debug)]
pub(super) struct Warden {
    process: Child,
    pipe: OwnedFd,
    /// The descriptor that keeps the lock; the next warden gets it, too.
    lifeline: Option<OwnedFd>,
    replaced: u32,
    told: Schedule,
    /// It sent TERM or KILL, or may have, because we were stopped.
    stepped_in: bool,
}

impl Warden {
    /// Starts a warden. It keeps `lifeline` open while it lives, so the lock is not free before the
    /// group is gone.
    pub(super) fn start(lifeline: Option<OwnedFd>) -> io::Result<Self> {
        let (process, pipe) = spawn(lifeline.as_ref(), None)?;
        Ok(Self { process, pipe, lifeline, replaced: 0, told: Schedule::NEVER, stepped_in: false })
    }

    /// Starts another warden for `group` if the last one was killed.
    pub(super) fn replace_if_gone(&mut self, group: Pid) {
        if self.replaced >= REPLACEMENTS || !matches!(self.process.try_wait(), Ok(Some(_))) {
            return;
        }
        self.replaced += 1;
        match spawn(self.lifeline.as_ref(), Some(group)) {
            Ok((process, pipe)) => {
                (self.process, self.pipe) = (process, pipe);
                self.send(Message::Schedule(self.told));
            }
            Err(error) => tracing::warn!(%error, "the warden was killed, and there is no other"),
        }
    }

    /// The pipe over which the command reports its own group before exec.
    pub(super) fn pipe(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }

    /// Sends the schedule that the warden follows if no later message arrives.
    pub(super) fn tell(&mut self, schedule: Schedule, now: Moment) {
        self.stepped_in |= self.has_stepped_in(now);
        if self.told != schedule {
            self.told = schedule;
            self.send(Message::Schedule(schedule));
        }
    }

    /// Whether the warden had reason to act before `now`.
    pub(super) fn has_stepped_in(&self, now: Moment) -> bool {
        self.stepped_in || now >= self.told.next()
    }

    /// The command has ended. The warden must not signal its group any more, because the group's id
    /// may soon be reused.
    pub(super) fn dismiss(&mut self) {
        self.send(Message::Done);
    }

    /// Waits, with a time limit, until the warden has exited.
    pub(super) async fn gone(mut self, clock: &Clock) {
        let bound = clock.now().after(Duration::from_secs(1));
        drop(self.pipe);
        while matches!(self.process.try_wait(), Ok(None)) && clock.now() < bound {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    fn send(&mut self, message: Message) {
        match rustix::io::write(&self.pipe, &message.encode()) {
            Ok(_) => {}
            // It did not read thousands of messages. We must not block on it: it is killed, and
            // replaced as if another process had killed it.
            Err(rustix::io::Errno::AGAIN) => {
                let killed = self.process.kill();
                tracing::warn!(?killed, "the warden stands still; there will be another");
            }
            // It was killed. Until it is replaced, the command still has its parent-death signal.
            Err(error) => tracing::warn!(%error, "the warden does not listen any more"),
        }
    }
}

/// Starts a warden, for a command that is about to start or for one that runs in `group`.
fn spawn(lifeline: Option<&OwnedFd>, group: Option<Pid>) -> io::Result<(Child, OwnedFd)> {
    let (ears, pipe) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::fs::fcntl_setfl(&pipe, OFlags::NONBLOCK)?;
    let lifeline = lifeline.map(OwnedFd::try_clone).transpose()?;
    let process = Command::new("/proc/self/exe")
        .arg0("leasehold")
        .arg(WARDEN)
        .args(group.map(|group| group.as_raw_nonzero().to_string()))
        .env_remove(leasehold_command::secret::VARIABLE)
        .current_dir("/")
        .stdin(ears)
        // As its standard output, the descriptor is inherited by the warden only.
        .stdout(lifeline.map_or_else(Stdio::null, Stdio::from))
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()?;
    Ok((process, pipe))
}
