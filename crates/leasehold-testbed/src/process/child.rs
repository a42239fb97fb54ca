//! A child process that only this program signals, and that ends with its owner.

use std::{
    process::{ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use super::{process_tree, spawner};
use crate::{Error, Result, try_eventually};

/// The time limit for the end of a killed process.
const KILL_TIMEOUT: Duration = crate::TEST_TIMEOUT;
const KILL_POLL_INTERVAL: Duration = Duration::from_micros(200);

/// A child process. Dropping this kills it and all its descendants.
#[derive(Debug)]
pub(crate) struct Child {
    /// The program, as errors name it.
    name: String,
    inner: std::process::Child,
}

impl Child {
    /// Starts `command`; errors call it `name`.
    pub(crate) fn spawn(name: &str, command: Command) -> Result<Self> {
        let inner = spawner::spawn(command).map_err(Error::io(format!("starting {name}")))?;
        Ok(Self { name: name.to_owned(), inner })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.inner.id()
    }

    /// Takes standard input, output and error; each is `None` if it is no pipe or was taken before.
    pub(crate) fn take_pipes(&mut self) -> (Option<ChildStdin>, Option<ChildStdout>, Option<ChildStderr>) {
        let inner = &mut self.inner;
        (inner.stdin.take(), inner.stdout.take(), inner.stderr.take())
    }

    /// The exit status of the process if it has ended; this also frees its process id. `None` while
    /// it exists.
    pub(crate) fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        let waiting = Error::io(format!("waiting for {}", self.name));
        self.inner.try_wait().map_err(waiting)
    }

    /// The process id, safe to signal: it is not reused until [`Child::try_wait`] has reaped the
    /// process.
    pub(super) fn running_pid(&mut self) -> Result<Pid> {
        match self.try_wait()? {
            None => Ok(Pid::from_child(&self.inner)),
            Some(_) => Err(Error::NotRunning { program: self.name.clone() }),
        }
    }

    /// Sends a signal to the process alone; an error if it has ended.
    pub(crate) fn signal(&mut self, signal: Signal) -> Result<()> {
        let pid = self.running_pid()?;
        let sending = Error::io(format!("sending {signal:?} to {}", self.name));
        kill_process(pid, signal).map_err(|errno| sending(errno.into()))
    }

    /// Suspends the process and all its descendants (SIGSTOP). When this returns, none of their
    /// threads runs.
    pub(crate) fn stop(&mut self) -> Result<()> {
        let pid = self.running_pid()?;
        process_tree::stop(pid).map(drop).map_err(|stubborn| Error::TimedOut {
            awaited: format!("stop of {}", self.name),
            bound: KILL_TIMEOUT,
            observed: format!("process {stubborn} is still running"),
        })
    }

    /// Whether the process is suspended by [`Child::stop`].
    pub(super) fn is_stopped(&self) -> bool {
        process_tree::is_stopped(Pid::from_child(&self.inner))
    }

    /// Resumes the process and all its descendants (SIGCONT).
    pub(crate) fn resume(&mut self) -> Result<()> {
        process_tree::resume(self.running_pid()?);
        Ok(())
    }

    /// Kills the process and all its descendants. When this returns, they have ended.
    pub(crate) fn kill_tree(&mut self) -> Result<()> {
        if self.try_wait()?.is_none() {
            process_tree::kill(Pid::from_child(&self.inner));
            self.wait_until_dead()?;
        }
        Ok(())
    }

    /// Kills the process, but not its descendants, as a crash does. When this returns, it has
    /// ended.
    pub(crate) fn kill(&mut self) -> Result<()> {
        if self.try_wait()?.is_none() {
            self.signal(Signal::KILL)?;
            self.wait_until_dead()?;
        }
        Ok(())
    }

    /// Waits until a killed process has ended; blocks the thread, because a drop has no runtime.
    fn wait_until_dead(&mut self) -> Result<()> {
        for _ in 0..KILL_TIMEOUT.as_micros() / KILL_POLL_INTERVAL.as_micros() {
            if self.try_wait()?.is_some() {
                return Ok(());
            }
            thread::sleep(KILL_POLL_INTERVAL);
        }
        Err(Error::TimedOut {
            awaited: format!("end of {} after SIGKILL", self.name),
            bound: KILL_TIMEOUT,
            observed: "it still exists".to_owned(),
        })
    }

    /// Waits until the process exits, at most `bound`.
    pub(crate) async fn wait_exit(&mut self, bound: Duration) -> Result<ExitStatus> {
        let awaited = format!("end of {}", self.name);
        try_eventually(&awaited, bound, || {
            let ended = self.try_wait();
            async move {
                match ended {
                    Ok(Some(status)) => Ok(status),
                    Ok(None) => Err("it is still running".to_owned()),
                    Err(error) => Err(error.to_string()),
                }
            }
        })
        .await
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // An error cannot be returned; the parent-death signal is the fallback.
        let _ = self.kill_tree();
    }
}
