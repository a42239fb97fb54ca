//! A child process that acquires locks and reports, controlled by the test.
//!
//! It uses JSON lines: one value per line of its standard output and standard input. Its standard
//! error is stored for error messages. As a separate process it can be stopped and killed like a
//! real holder.

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

/// The maximum number of unread lines; then the actor has to wait.
const MAX_UNREAD_LINES: usize = 4096;
/// The timeout of a write to an actor whose standard input is full.
const SEND_TIMEOUT: Duration = crate::TEST_TIMEOUT;

/// A running child process. It and all its descendants are killed when this is dropped, and when
/// the test process dies.
#[derive(Debug)]
pub struct Actor {
    child: Child,
    input: pipe::Sender,
    /// Lines of its standard output that the test has not received yet.
    output: mpsc::Receiver<String>,
    /// The last lines that the test has received, for error messages.
    received_lines: LineLog,
    /// The last lines of its standard error, for error messages.
    stderr_lines: LineLog,
}

impl Actor {
    /// Starts the program `exe` with `args`, and with the variables `env` added to the environment.
    /// Must be called within a tokio runtime.
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

    /// Writes a JSON value as one line to the actor's standard input.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if it has closed its input, [`Error::TimedOut`] if it does not read.
    pub async fn send(&mut self, message: &Value) -> Result<()> {
        let line = format!("{message}\n");
        match timeout(SEND_TIMEOUT, self.input.write_all(line.as_bytes())).await {
            Ok(sent) => sent.map_err(Error::io(format!("sending to the actor:\n{}", self.transcript()))),
            Err(_) => Err(self.timed_out_error("space in the actor's input", SEND_TIMEOUT)),
        }
    }

    /// Waits for the next line of the actor's standard output, at most `bound`, and parses it as
    /// JSON.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] without a line, [`Error::Protocol`] if it is not JSON or if the output
    /// has ended. Each shows all lines so far and the standard error.
    pub async fn recv(&mut self, bound: Duration) -> Result<Value> {
        let line = match timeout(bound, self.output.recv()).await {
            Ok(Some(line)) => line,
            Ok(None) => return Err(self.protocol_error("its output ended")),
            Err(_) => return Err(self.timed_out_error("line from the actor", bound)),
        };
        self.received_lines.push(line.clone());
        serde_json::from_str(&line)
            .map_err(|error| self.protocol_error(&format!("a line is not JSON ({error}): {line}")))
    }

    /// Waits for a line that `matches`, at most `bound`; skips lines before it.
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
            Err(_) => Err(self.timed_out_error("matching line from the actor", bound)),
        }
    }

    /// Appends a line of the test to the actor's output, after all that the actor has printed so
    /// far. For a stopped actor: when this line arrives, all its earlier lines have arrived.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`]; [`Error::TimedOut`] if its output stays full.
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
            Err(_) => Err(self.timed_out_error("space in the actor's output", SEND_TIMEOUT)),
        }
    }

    /// Kills only this process, as a crash does. When this returns, the process has ended. Has no
    /// effect on an ended process.
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

    /// Suspends the actor and all its descendants. When this returns, none of their threads runs.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`]; [`Error::TimedOut`] if it is stuck in the kernel.
    pub fn sigstop(&mut self) -> Result<()> {
        self.child.stop()
    }

    /// Resumes the actor and all its descendants.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`].
    pub fn sigcont(&mut self) -> Result<()> {
        self.child.resume()
    }

    /// Waits until the actor exits, at most `bound`.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`], with all lines so far and the standard error.
    pub async fn wait_exit(&mut self, bound: Duration) -> Result<ExitStatus> {
        match self.child.wait_exit(bound).await {
            Err(Error::TimedOut { .. }) => Err(self.timed_out_error("end of the actor", bound)),
            other => other,
        }
    }

    /// All lines received so far and the standard error, for a test's own messages.
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

/// Kills the actor, and removes what a [`WallClock`](crate::WallClock) of a killed process leaves
/// in shared memory.
impl Drop for Actor {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // An error cannot be returned; dropping the child kills it again.
            let _ = self.child.kill_tree();
            clock::remove_leftovers_of(self.child.pid());
        }
    }
}
