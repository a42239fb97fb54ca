//! A child process that is ours alone to signal, and that ends with its owner.

use std::{
    process::{ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use super::{spawner, tree};
use crate::{Error, Result, try_eventually};

/// How long a killed process may take to be gone.
const DEATH_BOUND: Duration = crate::BOUND;
const DEATH_PAUSE: Duration = Duration::from_micros(200);

#[derive(Debug)]
pub(crate) struct Child {
    name: String,
    inner: std::process::Child,
}

impl Child {
    /// Starts `command`; `name` stands for it in errors.
    pub(crate) fn spawn(name: &str, command: Command) -> Result<Self> {
        let inner = spawner::spawn(command).map_err(Error::io(format!("starting {name}")))?;
        Ok(Self { name: name.to_owned(), inner })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.inner.id()
    }

    pub(crate) fn pipes(&mut self) -> (Option<ChildStdin>, Option<ChildStdout>, Option<ChildStderr>) {
        let inner = &mut self.inner;
        (inner.stdin.take(), inner.stdout.take(), inner.stderr.take())
    }

    /// How it ended, if it has; this also gives its process id back to the system.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        let waiting = Error::io(format!("waiting for {}", self.name));
        self.inner.try_wait().map_err(waiting)
    }

    /// The process id, safe to signal: it stays ours until [`Child::ended`] has seen the end.
    pub(super) fn running(&mut self) -> Result<Pid> {
        match self.ended()? {
            None => Ok(Pid::from_child(&self.inner)),
            Some(_) => Err(Error::NotRunning { program: self.name.clone() }),
        }
    }

    pub(crate) fn signal(&mut self, signal: Signal) -> Result<()> {
        let pid = self.running()?;
        let sending = Error::io(format!("sending {signal:?} to {}", self.name));
        kill_process(pid, signal).map_err(|errno| sending(errno.into()))
    }

    /// Stops it and all it has started; when this returns, not one of their threads runs.
    pub(crate) fn stop(&mut self) -> Result<()> {
        let pid = self.running()?;
        tree::stop(pid).map(drop).map_err(|stubborn| Error::TimedOut {
            awaited: format!("stop of {}", self.name),
            bound: DEATH_BOUND,
            seen: format!("process {stubborn} still runs"),
        })
    }

    /// Whether it stands still since [`Child::stop`].
    pub(super) fn is_stopped(&self) -> bool {
        tree::is_stopped(Pid::from_child(&self.inner))
    }

    /// Lets it and all it has started go on.
    pub(crate) fn resume(&mut self) -> Result<()> {
        tree::resume(self.running()?);
        Ok(())
    }

    /// Kills it and all it has started; when this returns, it is gone.
    pub(crate) fn kill_family(&mut self) -> Result<()> {
        if self.ended()?.is_none() {
            tree::kill(Pid::from_child(&self.inner));
            self.await_death()?;
        }
        Ok(())
    }

    /// Kills only this process, as a crash would; when this returns, it is gone.
    pub(crate) fn kill(&mut self) -> Result<()> {
        if self.ended()?.is_none() {
            self.signal(Signal::KILL)?;
            self.await_death()?;
        }
        Ok(())
    }

    /// Waits without a runtime, since a drop has none.
    fn await_death(&mut self) -> Result<()> {
        for _ in 0..DEATH_BOUND.as_micros() / DEATH_PAUSE.as_micros() {
            if self.ended()?.is_some() {
                return Ok(());
            }
            thread::sleep(DEATH_PAUSE);
        }
        Err(Error::TimedOut {
            awaited: format!("end of {} after SIGKILL", self.name),
            bound: DEATH_BOUND,
            seen: "it is still there".to_owned(),
        })
    }

    /// Waits until it ends by itself.
    pub(crate) async fn wait_exit(&mut self, bound: Duration) -> Result<ExitStatus> {
        let awaited = format!("end of {}", self.name);
        try_eventually(&awaited, bound, || {
            let ended = self.ended();
            async move {
                match ended {
                    Ok(Some(status)) => Ok(status),
                    Ok(None) => Err("it still runs".to_owned()),
                    Err(error) => Err(error.to_string()),
                }
            }
        })
        .await
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Nobody is left to tell; the parent-death signal is the second net.
        let _ = self.kill_family();
    }
}
