//! Job events on standard error, as lines for people or JSON for programs.

use leasehold_schedule::{ActiveRun, Job, JobEvent, Tick};
use serde::Serialize;

use crate::duration::format_duration;
use crate::exit::Failure;
use crate::output;

/// Logs the event.
pub(crate) fn log_event(job: &Job, event: &JobEvent, json: bool) {
    if json {
        output::write_stderr(&json_line(&EventLine::new(job, event)))
    } else {
        output::print_message(&format_event(job, event))
    }
}

/// Events of the host process itself.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(super) enum Notice<'a> {
    /// A warning for people.
    Warning { message: &'a str },
    /// The engine is unreachable at the start; the process retries.
    Unreachable { message: &'a str },
    /// The engine is reachable now.
    Reached { engine: &'a str },
    /// The file was reloaded.
    Reloaded { file: &'a str },
    /// The reloaded file has mistakes, and the old jobs stay in effect.
    Refused { message: &'a str },
    /// This host cannot run a job any more.
    EndedHere { job: &'a str, message: &'a str },
    /// This host cannot run any job.
    Error { kind: &'a str, message: &'a str },
    /// A signal stopped the process from starting more runs.
    Stopping { signal: &'a str, grace_seconds: f64 },
    /// The active runs get this signal.
    Ending { signal: &'a str },
    /// All runs have ended.
    Stopped,
}

/// A JSON line with its time.
#[derive(Debug, Serialize)]
struct TimedLine<'a, T> {
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<String>,
    #[serde(flatten)]
    line: &'a T,
}

/// From now on every line has a timestamp: `cron` runs for months. A command that ends soon relies
/// on the timestamps of its caller.
pub(super) fn enable_timestamps() {
    output::timestamp_lines(|| format!("{:.3}", jiff::Timestamp::now()));
}

fn json_line(line: &impl Serialize) -> String {
    output::to_json_line(&TimedLine { time: output::timestamp(), line })
}

/// Logs the notice, also with --quiet.
pub(super) fn log_notice(notice: &Notice<'_>, json: bool) {
    if json {
        return output::write_stderr(&json_line(notice));
    }
    if let Notice::Refused { message } = notice {
        return output::print_message_lines(&format!("{message}\nthe jobs are unchanged"));
    }
    output::print_message(&match notice {
        Notice::Warning { message } | Notice::Refused { message } | Notice::Error { message, .. } => {
            (*message).to_owned()
        }
        Notice::Unreachable { message } => format!("{message}; retrying until it responds"),
        Notice::Reached { engine } => format!("{engine} is reachable"),
        Notice::Reloaded { file } => format!("reloaded {file}"),
        Notice::EndedHere { job, message } => format!("{job}: {message}; this host no longer runs it"),
        Notice::Stopping { signal, grace_seconds } => {
            format!(
                "{signal}: no more runs start here; active ones get TERM after {grace_seconds} s, or after another signal"
            )
        }
        Notice::Ending { signal } => format!("active runs get {signal}"),
        Notice::Stopped => "stopped".to_owned(),
    });
}

/// Logs the failure as JSON; the caller then only needs the exit code.
pub(super) fn log_failure(failure: Failure) -> Failure {
    log_notice(&Notice::Error { kind: failure.kind, message: &failure.message }, true);
    Failure { message: String::new(), ..failure }
}

/// Whether the event is a problem.
pub(crate) fn is_problem(event: &JobEvent) -> bool {
    !matches!(
        event,
        JobEvent::Joined { .. }
            | JobEvent::RunStarted { .. }
            | JobEvent::RunInProgress { .. }
            | JobEvent::ScheduleChanged { .. }
    ) && !matches!(event, JobEvent::RunEnded { outcome, .. } if *outcome == leasehold_schedule::TickOutcome::Done)
}

fn to_tick(seconds: i64) -> Tick {
    Tick::from_unix(seconds)
}

fn describe_run(run: &ActiveRun) -> String {
    let by_hand = if run.manual { " (by hand)" } else { "" };
    let again = if run.attempt > 1 { format!(", attempt {}", run.attempt) } else { String::new() };
    format!("tick {}{by_hand}, token {}{again}", to_tick(run.tick), run.token)
}

fn format_event(job: &Job, event: &JobEvent) -> String {
    let name = job.name();
    match event {
        JobEvent::Joined { next } => {
            let next = next.map_or_else(|| "never".to_owned(), |next| job.cron().local(next));
            format!("{name}: {} ({}); next {next}", job.cron(), job.cron().zone())
        }
        JobEvent::RunStarted { run, delay: late } => {
            format!("{name}: started {}, on {}, {} late", describe_run(run), run.node, format_duration(*late))
        }
        JobEvent::RunEnded { run, outcome, text, duration: took, is_recorded: entered } => {
            let why = if text.is_empty() { String::new() } else { format!(" ({text})") };
            let note = if *entered { "" } else { "; the outcome is not recorded" };
            format!(
                "{name}: {}{why} {}, on {}, after {}{note}",
                outcome.as_str(),
                describe_run(run),
                run.node,
                format_duration(*took)
            )
        }
        JobEvent::TicksSkipped(entry) => {
            let (outcome, last) = (entry.outcome.as_str(), to_tick(entry.tick));
            match entry.count {
                1 => format!("{name}: {outcome} tick {last}"),
                count => format!("{name}: {outcome} {count} ticks up to {last}"),
            }
        }
        JobEvent::RunCrashed { run, will_retry: again } => {
            let then = if *again { "this host runs it again" } else { "it is not run again" };
            format!("{name}: crashed {}, on {}; {then}", describe_run(run), run.node)
        }
        JobEvent::RunInProgress { run } => {
            format!(
                "{name}: {} still runs, on {}; ticks that came due meanwhile are skipped",
                describe_run(run),
                run.node
            )
        }
        JobEvent::ScheduleChanged { previous: from } => {
            format!("{name}: {} ({}) instead of {from}", job.cron(), job.cron().zone())
        }
        JobEvent::Superseded { token, newer_token: fence } => {
            format!("{name}: another host decided with token {fence}; this host's token {token} is stale")
        }
        JobEvent::ClockBehind { by } => format!(
            "{name}: the engine's clock is {} behind the last tick; no tick is due until it catches up, or until `leasehold cron reset {name}`",
            format_duration(*by)
        ),
        JobEvent::EngineFailed { error, retry_in: again_in } => {
            format!("{name}: {error}; retrying in {}", format_duration(*again_in))
        }
        other => format!("{name}: {other:?}"),
    }
}

/// A JSON line.
#[derive(Debug, Default, Serialize)]
struct EventLine<'a> {
    event: &'a str,
    job: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tick: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    manual: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    entered: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    again: Option<bool>,
    #[serde(skip_serializing_if = "str::is_empty")]
    message: &'a str,
}

impl<'a> EventLine<'a> {
    fn new(job: &'a Job, event: &'a JobEvent) -> Self {
        let line = Self { job: job.name(), ..Self::default() };
        match event {
            JobEvent::Joined { next } => {
                Self { event: "joined", tick: next.map(|next| next.to_string()), message: job.cron().as_str(), ..line }
            }
            JobEvent::RunStarted { run, delay: late } => {
                Self { event: "began", seconds: Some(late.as_secs_f64()), ..line.with_run(run) }
            }
            JobEvent::RunEnded { run, outcome, text, duration: took, is_recorded: entered } => Self {
                event: "ended",
                outcome: Some(outcome.as_str()),
                message: text,
                seconds: Some(took.as_secs_f64()),
                entered: Some(*entered),
                ..line.with_run(run)
            },
            JobEvent::TicksSkipped(entry) => Self {
                event: "skipped",
                tick: Some(to_tick(entry.tick).to_string()),
                outcome: Some(entry.outcome.as_str()),
                count: Some(entry.count),
                ..line
            },
            JobEvent::RunCrashed { run, will_retry: again } => {
                Self { event: "crashed", again: Some(*again), ..line.with_run(run) }
            }
            JobEvent::RunInProgress { run } => Self { event: "goes-on", ..line.with_run(run) },
            JobEvent::ScheduleChanged { previous: from } => Self { event: "rescheduled", message: from, ..line },
            JobEvent::Superseded { token, .. } => Self { event: "stale", token: Some(*token), ..line },
            JobEvent::ClockBehind { by } => Self { event: "clock-behind", seconds: Some(by.as_secs_f64()), ..line },
            JobEvent::EngineFailed { error, retry_in: again_in } => {
                Self { event: "trouble", message: error, seconds: Some(again_in.as_secs_f64()), ..line }
            }
            _ => Self { event: "other", ..line },
        }
    }

    fn with_run(self, run: &'a ActiveRun) -> Self {
        Self {
            tick: Some(to_tick(run.tick).to_string()),
            token: Some(run.token),
            attempt: Some(run.attempt),
            node: Some(&run.node),
            manual: run.manual,
            ..self
        }
    }
}
