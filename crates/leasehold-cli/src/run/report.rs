//! The output of `leasehold run` on standard error: little by default, as lines for people or JSON
//! for programs.

use std::sync::Arc;
use std::time::Duration;

use leasehold::engine::LockView;
use leasehold::{LockName, LostReason, Outcome, Token};
use serde::Serialize;

use super::child::Status;
use super::options::RunArgs;
use super::refusal::Refusal;
use crate::duration::human;
use crate::exit::Failure;
use crate::output;
use crate::view::PartyJson;

/// The verbosity and the format of the output.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    json: bool,
    verbose: bool,
    /// Whether a lock that is not acquired is reported by the exit code only.
    quiet: bool,
    /// The job that the lines are about, if there are several.
    job: Option<Arc<str>>,
}

/// A JSON line.
#[derive(Debug, Serialize)]
struct Line<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<String>,
    #[serde(flatten)]
    event: &'a Event<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<&'a str>,
}

/// An event in a JSON line.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
enum Event<'a> {
    Waiting { name: &'a str, engine: &'a str, holders: Vec<PartyJson<'a>>, waiters: Option<usize> },
    Acquired { name: &'a str, engine: &'a str, token: u64, waited_seconds: f64 },
    NotAcquired { name: &'a str, engine: &'a str, holders: Vec<PartyJson<'a>>, ahead: usize, waited_seconds: f64 },
    Started { pid: u32 },
    Stopped { message: &'a str },
    Lost { name: &'a str, engine: &'a str, reason: &'a str, action: &'a str },
    ReleaseRequested { name: &'a str, engine: &'a str, action: &'a str },
    Ended { code: Option<u8>, signal: Option<i32> },
    Note { message: &'a str },
    Warning { message: &'a str },
    Released { name: &'a str, engine: &'a str, outcome: &'a str },
    Error { kind: &'a str, message: &'a str },
    Exit { code: u8 },
}

impl Report {
    pub(super) fn new(args: &RunArgs) -> Self {
        Self { json: args.json, verbose: args.verbose, quiet: args.quiet, job: None }
    }

    /// A report for a job: only what must be printed.
    pub(crate) fn quiet(json: bool, job: &str) -> Self {
        Self { json, verbose: false, quiet: false, job: Some(job.into()) }
    }

    /// Whether every step is reported.
    pub(super) fn is_talkative(&self) -> bool {
        self.json || self.verbose
    }

    pub(super) fn is_json(&self) -> bool {
        self.json
    }

    pub(super) fn waiting(&self, name: &LockName, engine: &str, view: Option<&LockView>, line: &str) {
        let holders = view.iter().flat_map(|view| &view.holders).map(PartyJson::new).collect();
        let waiters = view.map(|view| view.waiters.len());
        self.if_asked(&Event::Waiting { name: name.as_str(), engine, holders, waiters }, line);
    }

    pub(super) fn acquired(&self, name: &LockName, engine: &str, token: Token, waited: Duration) {
        let waited_seconds = waited.as_secs_f64();
        let event = Event::Acquired { name: name.as_str(), engine, token: token.0, waited_seconds };
        self.if_asked(&event, &format!("acquired token {token} after {} on {engine}", human(waited)));
    }

    /// Printed except with --quiet: the exit code alone does not name the holder.
    pub(super) fn not_acquired(&self, refusal: &Refusal<'_>) {
        if self.quiet {
            return;
        }
        let event = Event::NotAcquired {
            name: refusal.name.as_str(),
            engine: &refusal.engine,
            holders: refusal.holders().iter().map(PartyJson::new).collect(),
            ahead: refusal.ahead().len(),
            waited_seconds: refusal.waited.unwrap_or_default().as_secs_f64(),
        };
        self.tell(&event, &refusal.line());
    }

    pub(super) fn started(&self, pid: u32) {
        self.if_asked(&Event::Started { pid }, &format!("started process {pid}"));
    }

    /// Always printed: another process may hold the lock now.
    pub(super) fn lost(&self, name: &LockName, engine: &str, reason: LostReason, action: &str) {
        if reason == LostReason::ReleaseRequested {
            let event = Event::ReleaseRequested { name: name.as_str(), engine, action };
            let line = format!("an operator asks for the release of the lock {name} on {engine}; {action}");
            return self.tell(&event, &line);
        }
        let words = match reason {
            LostReason::MaxHold => "--max-hold is over".to_owned(),
            other => other.to_string(),
        };
        let event = Event::Lost { name: name.as_str(), engine, reason: reason.as_str(), action };
        self.tell(&event, &format!("the lock {name} is lost on {engine}: {words}; {action}"));
    }

    pub(super) fn released(&self, name: &LockName, engine: &str, outcome: Outcome) {
        let outcome = match outcome {
            Outcome::Released => "released",
            Outcome::WasLost(_) => "was-lost",
        };
        self.if_asked(&Event::Released { name: name.as_str(), engine, outcome }, outcome);
    }

    pub(super) fn ended(&self, status: Status) {
        let (event, line) = match status {
            Status::Exited(code) => {
                (Event::Ended { code: Some(code), signal: None }, format!("the command ended with code {code}"))
            }
            Status::Signalled(number) => {
                (Event::Ended { code: None, signal: Some(number) }, format!("signal {number} ended the command"))
            }
        };
        self.if_asked(&event, &line);
    }

    /// Printed where a user sees the job stop.
    pub(super) fn stopped(&self, message: &str) {
        if self.json || rustix::termios::isatty(std::io::stderr()) {
            self.tell(&Event::Stopped { message }, message);
        }
    }

    pub(super) fn note(&self, message: &str) {
        self.if_asked(&Event::Note { message }, message);
    }

    /// Printed except with --quiet: the job runs elsewhere.
    pub(super) fn not_run(&self, message: &str) {
        if !self.quiet {
            self.always(message);
        }
    }

    /// Always printed; not a problem.
    pub(super) fn always(&self, message: &str) {
        self.tell(&Event::Note { message }, message);
    }

    /// Always printed.
    pub(super) fn warning(&self, message: &str) {
        self.tell(&Event::Warning { message }, message);
    }

    /// JSON only: people see the exit code in their shell.
    pub(super) fn exit(&self, code: u8) {
        if self.json {
            self.tell(&Event::Exit { code }, "");
        }
    }

    /// Printed here as JSON; otherwise the caller prints it, as for all commands.
    pub(super) fn failure(&self, failure: Failure) -> Failure {
        if !self.json {
            return failure;
        }
        self.tell(&Event::Error { kind: failure.kind, message: &failure.message }, "");
        self.exit(failure.code);
        Failure { message: String::new(), ..failure }
    }

    fn if_asked(&self, event: &Event<'_>, line: &str) {
        if self.is_talkative() {
            self.tell(event, line);
        }
    }

    fn tell(&self, event: &Event<'_>, line: &str) {
        if self.json {
            output::err(&output::json(&Line { time: output::stamp(), event, job: self.job.as_deref() }));
        } else {
            output::say(line);
        }
    }
}
