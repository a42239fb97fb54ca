//! The output of `leasehold run` on standard error: little by default, as lines for people or JSON
//! for programs.

use std::sync::Arc;
use std::time::Duration;

use leasehold::engine::LockView;
use leasehold::{LockName, LostReason, ReleaseOutcome, Token};
use serde::Serialize;

use super::child::ExitStatus;
use super::options::RunArgs;
use super::refusal::Refusal;
use crate::duration::format_duration;
use crate::exit::Failure;
use crate::output;
use crate::view::ContenderJson;

/// Prints what happens to a run on standard error, as verbosely and in the format that its options
/// demand.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    json: bool,
    verbose: bool,
    /// Whether a lock that is not acquired is reported by the exit code only.
    quiet: bool,
    /// The job that the lines are about; `None` for `leasehold run`, which has only one.
    job: Option<Arc<str>>,
}

/// An event as a JSON line.
#[derive(Debug, Serialize)]
struct ReportLine<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<String>,
    #[serde(flatten)]
    event: &'a ReportEvent<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<&'a str>,
}

/// An event in a JSON line.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
enum ReportEvent<'a> {
    Waiting { name: &'a str, engine: &'a str, holders: Vec<ContenderJson<'a>>, waiters: Option<usize> },
    Acquired { name: &'a str, engine: &'a str, token: u64, waited_seconds: f64 },
    NotAcquired { name: &'a str, engine: &'a str, holders: Vec<ContenderJson<'a>>, ahead: usize, waited_seconds: f64 },
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

    /// The report for a job of `leasehold cron`; without `json`, only what must be printed.
    pub(crate) fn for_job(json: bool, job: &str) -> Self {
        Self { json, verbose: false, quiet: false, job: Some(job.into()) }
    }

    /// Whether every step is reported: with --verbose or --json.
    pub(super) fn is_verbose(&self) -> bool {
        self.json || self.verbose
    }

    pub(super) fn is_json(&self) -> bool {
        self.json
    }

    /// Reports that the run waits for the lock, with --verbose or --json. `line` is the message for
    /// people; `view` is `None` if the engine cannot inspect the lock.
    pub(super) fn report_waiting(&self, name: &LockName, engine: &str, view: Option<&LockView>, line: &str) {
        let holders = view.iter().flat_map(|view| &view.holders).map(ContenderJson::new).collect();
        let waiters = view.map(|view| view.waiters.len());
        self.emit_if_verbose(&ReportEvent::Waiting { name: name.as_str(), engine, holders, waiters }, line);
    }

    /// Reports that the lock was acquired, with --verbose or --json.
    pub(super) fn report_acquired(&self, name: &LockName, engine: &str, token: Token, waited: Duration) {
        let waited_seconds = waited.as_secs_f64();
        let event = ReportEvent::Acquired { name: name.as_str(), engine, token: token.0, waited_seconds };
        self.emit_if_verbose(&event, &format!("acquired token {token} after {} on {engine}", format_duration(waited)));
    }

    /// Reports that the lock was not acquired, except with --quiet: the exit code alone does not
    /// name the holder.
    pub(super) fn report_not_acquired(&self, refusal: &Refusal<'_>) {
        if self.quiet {
            return;
        }
        let event = ReportEvent::NotAcquired {
            name: refusal.name.as_str(),
            engine: &refusal.engine,
            holders: refusal.holders().iter().map(ContenderJson::new).collect(),
            ahead: refusal.waiters_ahead().len(),
            waited_seconds: refusal.waited.unwrap_or_default().as_secs_f64(),
        };
        self.emit(&event, &refusal.format_line());
    }

    /// Reports that the command was started, with --verbose or --json.
    pub(super) fn report_started(&self, pid: u32) {
        self.emit_if_verbose(&ReportEvent::Started { pid }, &format!("started process {pid}"));
    }

    /// Reports a loss, or a release request, and what happens to the command. Always printed:
    /// another process may hold the lock now.
    pub(super) fn report_lost(&self, name: &LockName, engine: &str, reason: LostReason, action: &str) {
        if reason == LostReason::ReleaseRequested {
            let event = ReportEvent::ReleaseRequested { name: name.as_str(), engine, action };
            let line = format!("an operator requests the release of the lock {name} on {engine}; {action}");
            return self.emit(&event, &line);
        }
        let words = match reason {
            LostReason::MaxHold => "--max-hold is over".to_owned(),
            other => other.to_string(),
        };
        let event = ReportEvent::Lost { name: name.as_str(), engine, reason: reason.as_str(), action };
        self.emit(&event, &format!("the lock {name} is lost on {engine}: {words}; {action}"));
    }

    /// Reports the result of the release, with --verbose or --json.
    pub(super) fn report_released(&self, name: &LockName, engine: &str, outcome: ReleaseOutcome) {
        let outcome = match outcome {
            ReleaseOutcome::Released => "released",
            ReleaseOutcome::AlreadyLost(_) => "was-lost",
        };
        self.emit_if_verbose(&ReportEvent::Released { name: name.as_str(), engine, outcome }, outcome);
    }

    /// Reports how the command ended, with --verbose or --json.
    pub(super) fn report_ended(&self, status: ExitStatus) {
        let (event, line) = match status {
            ExitStatus::Exited(code) => {
                (ReportEvent::Ended { code: Some(code), signal: None }, format!("the command ended with code {code}"))
            }
            ExitStatus::Signalled(number) => {
                (ReportEvent::Ended { code: None, signal: Some(number) }, format!("signal {number} ended the command"))
            }
        };
        self.emit_if_verbose(&event, &line);
    }

    /// Reports that the command and this process stop: as JSON, or on a terminal.
    pub(super) fn report_stopped(&self, message: &str) {
        if self.json || rustix::termios::isatty(std::io::stderr()) {
            self.emit(&ReportEvent::Stopped { message }, message);
        }
    }

    /// Prints a message that is no problem, with --verbose or --json only.
    pub(super) fn note_if_verbose(&self, message: &str) {
        self.emit_if_verbose(&ReportEvent::Note { message }, message);
    }

    /// Reports that the tick runs elsewhere, except with --quiet.
    pub(super) fn report_not_run(&self, message: &str) {
        if !self.quiet {
            self.note_always(message);
        }
    }

    /// Prints a message that is no problem, even with --quiet.
    pub(super) fn note_always(&self, message: &str) {
        self.emit(&ReportEvent::Note { message }, message);
    }

    /// Prints a warning, even with --quiet.
    pub(super) fn warn(&self, message: &str) {
        self.emit(&ReportEvent::Warning { message }, message);
    }

    /// Reports the exit code, only as JSON: people see it in their shell.
    pub(super) fn report_exit(&self, code: u8) {
        if self.json {
            self.emit(&ReportEvent::Exit { code }, "");
        }
    }

    /// Prints the failure as JSON, and returns it without its message; without --json, returns it
    /// unchanged for the caller to print.
    pub(super) fn report_failure(&self, failure: Failure) -> Failure {
        if !self.json {
            return failure;
        }
        self.emit(&ReportEvent::Error { kind: failure.kind, message: &failure.message }, "");
        self.report_exit(failure.code);
        Failure { message: String::new(), ..failure }
    }

    /// Prints the event as JSON, or `line` for people, with --verbose or --json only.
    fn emit_if_verbose(&self, event: &ReportEvent<'_>, line: &str) {
        if self.is_verbose() {
            self.emit(event, line);
        }
    }

    /// Prints the event as JSON, or `line` for people.
    fn emit(&self, event: &ReportEvent<'_>, line: &str) {
        if self.json {
            output::write_stderr(&output::to_json_line(&ReportLine {
                time: output::current_timestamp(),
                event,
                job: self.job.as_deref(),
            }));
        } else {
            output::print_message(line);
        }
    }
}
