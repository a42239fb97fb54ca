//! A child process that takes locks and reports, driven by the test.
//!
//! It speaks JSON lines: one value on each line of its standard output, one on each line of its
//! standard input. What it prints to standard error is kept for error messages. Being a process of
//! its own, it can be stopped and killed as real holders are.

mod output;

use std::{
    os::fd::OwnedFd,
    path::Path,
    process::{Command, ExitStatus, Stdio},
    time::Duration,
};

use output::{LineLog, read_lines};
use serde_json::Value;
use tokio::{
    io::AsyncWriteExt,
    net::unix::pipe,
    sync::mpsc,
    time::{Instant, timeout, timeout_at},
};

use crate::{Error, Result, clock, process::Child};

/// How many lines an actor may be ahead of the test before it has to wait.
const MAX_UNREAD_LINES: usize = 4096;
/// How long an actor may leave its standard input full.
const SEND_TIMEOUT: Duration = crate::TEST_TIMEOUT;

/// A running child process; killed with all that it started when dropped, and when the test process
/// dies.
#[derive(Debug)]
pub struct Actor {
    child: Child,
    input: pipe::Sender,
    output: mpsc::Receiver<String>,
    received_lines: LineLog,
    stderr_lines: LineLog,
}

impl Actor {
    /// Starts `exe` with `args`, and with `env` added to the environment. Must be called within a
    /// tokio runtime.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if it cannot be started.
    pub fn spawn(exe: &Path, args: &[&str], env: &[(&str, &str)]) -> Result<Self> {
        let name = exe.display().to_string();
        let mut command = Command::new(exe);
        command
            .args(args)
            .envs(env.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = Child::spawn(&name, command)?;
        let no_pipe = || Error::NotRunning { program: name.clone() };
        let (stdin, stdout, stderr) = child.take_pipes();
        let input = pipe::Sender::from_owned_fd(OwnedFd::from(stdin.ok_or_else(no_pipe)?))
            .map_err(Error::io(format!("writing to {name}")))?;
        let (lines, output) = mpsc::channel(MAX_UNREAD_LINES);
        let errors = LineLog::default();
        let kept = errors.clone();
        read_lines(stdout.ok_or_else(no_pipe)?, move |line| lines.blocking_send(line).is_ok())?;
        read_lines(stderr.ok_or_else(no_pipe)?, move |line| {
            kept.push(line);
            true
        })?;
        Ok(Self { child, input, output, received_lines: LineLog::default(), stderr_lines: errors })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Sends one line.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if it has closed its input, [`Error::TimedOut`] if it does not read.
    pub async fn send(&mut self, message: &Value) -> Result<()> {
        let line = format!("{message}\n");
        match timeout(SEND_TIMEOUT, self.input.write_all(line.as_bytes())).await {
            Ok(sent) => sent.map_err(Error::io(format!("sending to the actor:\n{}", self.transcript()))),
            Err(_) => Err(self.timed_out_error("room to send to the actor", SEND_TIMEOUT)),
        }
    }

    /// Waits for the next line.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] if none comes, [`Error::Protocol`] if it is no JSON or if the output has
    /// ended; each shows all lines seen and what was printed to standard error.
    pub async fn recv(&mut self, bound: Duration) -> Result<Value> {
        let line = match timeout(bound, self.output.recv()).await {
            Ok(Some(line)) => line,
            Ok(None) => return Err(self.protocol_error("its output ended")),
            Err(_) => return Err(self.timed_out_error("line from the actor", bound)),
        };
        self.received_lines.push(line.clone());
        serde_json::from_str(&line)
            .map_err(|error| self.protocol_error(&format!("a line that is no JSON ({error}): {line}")))
    }

    /// Waits for a line that `matches`; lines before it are passed over.
    ///
    /// # Errors
    ///
    /// As [`Actor::recv`].
    pub async fn recv_matching(&mut self, matches: impl Fn(&Value) -> bool, bound: Duration) -> Result<Value> {
        let deadline = Instant::now() + bound;
        let searching = async {
            loop {
                let value = self.recv(bound).await?;
                if matches(&value) {
                    return Ok(value);
                }
            }
        };
        match timeout_at(deadline, searching).await {
            Ok(found) => found,
            Err(_) => Err(self.timed_out_error("line that matches from the actor", bound)),
        }
    }

    /// Puts a line of our own into its output, behind all that it has printed so far: when one that is stopped is heard of no more
    /// but by this line, all that it had said was heard.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`]; [`Error::TimedOut`] if nobody makes room in its output.
    pub async fn inject_output_line(&mut self, message: &Value) -> Result<()> {
        if self.child.try_wait()?.is_some() {
            return Err(Error::NotRunning { program: "the actor".to_owned() });
        }
        let path = format!("/proc/{}/fd/1", self.child.pid());
        let marking = || Error::io(format!("marking the actor's output in {path}"));
        let mut output = pipe::OpenOptions::new().open_sender(&path).map_err(marking())?;
        let line = format!("{message}\n");
        match timeout(SEND_TIMEOUT, output.write_all(line.as_bytes())).await {
            Ok(marked) => marked.map_err(marking()),
            Err(_) => Err(self.timed_out_error("room in the actor's output", SEND_TIMEOUT)),
        }
    }

    /// Kills it, and only it, as a crash would. When this returns, it is gone. Killing one that has
    /// ended does nothing.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] if it is stuck in the kernel.
    pub fn sigkill(&mut self) -> Result<()> {
        if self.child.try_wait()?.is_none() {
            self.child.kill()?;
            clock::remove_leftovers_of(self.child.pid());
        }
        Ok(())
    }

    /// Stops it with all that it started. When this returns, not one of its threads runs.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`]; [`Error::TimedOut`] if it is stuck in the kernel.
    pub fn sigstop(&mut self) -> Result<()> {
        self.child.stop()
    }

    /// Lets it go on.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`].
    pub fn sigcont(&mut self) -> Result<()> {
        self.child.resume()
    }

    /// Waits until it ends by itself.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`], with all lines seen and what was printed to standard error.
    pub async fn wait_exit(&mut self, bound: Duration) -> Result<ExitStatus> {
        match self.child.wait_exit(bound).await {
            Err(Error::TimedOut { .. }) => Err(self.timed_out_error("end of the actor", bound)),
            other => other,
        }
    }

    /// All lines received so far and what was printed to standard error, for a test's own messages.
    pub fn transcript(&self) -> String {
        format!("lines:\n{}stderr:\n{}", self.received_lines.text(), self.stderr_lines.text())
    }

    fn timed_out_error(&self, awaited: &str, bound: Duration) -> Error {
        Error::TimedOut { awaited: awaited.to_owned(), bound, observed: self.transcript() }
    }

    fn protocol_error(&self, problem: &str) -> Error {
        Error::Protocol { peer: "the actor".to_owned(), problem: format!("{problem}\n{}", self.transcript()) }
    }
}

/// With a wall clock of the test it leaves something in shared memory when it is killed.
impl Drop for Actor {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // Nobody is left to tell; dropping the child tries it again.
            let _ = self.child.kill_tree();
            clock::remove_leftovers_of(self.child.pid());
        }
    }
}
