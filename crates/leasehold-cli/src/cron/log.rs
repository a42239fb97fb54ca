//! Job events on standard error, as lines for people or JSON for programs.

use leasehold_schedule::{ActiveRun, Job, JobEvent, Tick};
use serde::Serialize;

use crate::duration::format_duration;
use crate::exit::Failure;
use crate::output;

/// Logs an event of a job on standard error, as a line for people or as JSON.
pub(crate) fn log_event(job: &Job, event: &JobEvent, json: bool) {
    if json {
        output::write_stderr(&json_line(&EventLine::new(job, event)))
    } else {
        output::print_message(&format_event(job, event))
    }
}

/// What `leasehold cron FILE` logs about itself, rather than about one run.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(super) enum Notice<'a> {
    /// A problem that stops no job.
    Warning { message: &'a str },
    /// The engine is unreachable at the start; the process retries.
    Unreachable { message: &'a str },
    /// The engine is reachable now.
    Reached { engine: &'a str },
    /// The file was reloaded.
    Reloaded { file: &'a str },
    /// The reloaded file has mistakes, and the old jobs stay in effect.
    Refused { message: &'a str },
    /// This host stops running this job, because of an error; other jobs continue.
    EndedHere { job: &'a str, message: &'a str },
    /// The process exits because of an error.
    Error { kind: &'a str, message: &'a str },
    /// A signal stopped the process from starting more runs.
    Stopping { signal: &'a str, grace_seconds: f64 },
    /// The active runs get this signal.
    Ending { signal: &'a str },
    /// All runs have ended.
    Stopped,
}

/// Any log line in JSON, with its time.
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
    output::set_timestamp_source(|| format!("{:.3}", jiff::Timestamp::now()));
}

/// The line as JSON, with its time.
fn json_line(line: &impl Serialize) -> String {
    output::to_json_line(&TimedLine { time: output::current_timestamp(), line })
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

/// Logs the failure as JSON. Returns it without its message, so that it is not printed again.
pub(super) fn log_failure(failure: Failure) -> Failure {
    log_notice(&Notice::Error { kind: failure.kind, message: &failure.message }, true);
    Failure { message: String::new(), ..failure }
}

/// Whether the event is a problem, which is also logged with --quiet.
pub(crate) fn is_problem(event: &JobEvent) -> bool {
    !matches!(
        event,
        JobEvent::Joined { .. }
            | JobEvent::RunStarted { .. }
            | JobEvent::RunInProgress { .. }
            | JobEvent::ScheduleChanged { .. }
    ) && !matches!(event, JobEvent::RunEnded { outcome, .. } if *outcome == leasehold_schedule::TickOutcome::Done)
}

/// The tick at this time, in seconds since 1970.
fn to_tick(seconds: i64) -> Tick {
    Tick::from_unix(seconds)
}

/// `tick 2026-11-16T03:00:00Z, token 41, attempt 2`
fn describe_run(run: &ActiveRun) -> String {
    let by_hand = if run.manual { " (by hand)" } else { "" };
    let again = if run.attempt > 1 { format!(", attempt {}", run.attempt) } else { String::new() };
    format!("tick {}{by_hand}, token {}{again}", to_tick(run.tick), run.token)
}

/// The event as a line for people.
fn format_event(job: &Job, event: &JobEvent) -> String {
    let name = job.name();
    match event {
        JobEvent::Joined { next } => {
            let next = next.map_or_else(|| "never".to_owned(), |next| job.cron().local(next));
            format!("{name}: {} ({}); next {next}", job.cron(), job.cron().zone())
        }
        JobEvent::RunStarted { run, delay } => {
            format!("{name}: started {}, on {}, {} late", describe_run(run), run.node, format_duration(*delay))
        }
        JobEvent::RunEnded { run, outcome, text, duration, is_recorded } => {
            let why = if text.is_empty() { String::new() } else { format!(" ({text})") };
            let note = if *is_recorded { "" } else { "; the outcome is not recorded" };
            format!(
                "{name}: {}{why} {}, on {}, after {}{note}",
                outcome.as_str(),
                describe_run(run),
                run.node,
                format_duration(*duration)
            )
        }
        JobEvent::TicksSkipped(entry) => {
            let (outcome, last) = (entry.outcome.as_str(), to_tick(entry.tick));
            match entry.count {
                1 => format!("{name}: {outcome} tick {last}"),
                count => format!("{name}: {outcome} {count} ticks up to {last}"),
            }
        }
        JobEvent::RunCrashed { run, will_retry } => {
            let then = if *will_retry { "this host runs it again" } else { "it is not run again" };
            format!("{name}: crashed {}, on {}; {then}", describe_run(run), run.node)
        }
        JobEvent::RunInProgress { run } => {
            format!(
                "{name}: {} still runs, on {}; ticks that came due meanwhile are skipped",
                describe_run(run),
                run.node
            )
        }
        JobEvent::ScheduleChanged { previous } => {
            format!("{name}: {} ({}) instead of {previous}", job.cron(), job.cron().zone())
        }
        JobEvent::Superseded { token, newer_token } => {
            format!("{name}: another host decided with token {newer_token}; this host's token {token} is stale")
        }
        JobEvent::ClockBehind { by } => format!(
            "{name}: the engine's clock is {} behind the last tick; no tick is due until it catches up, or until `leasehold cron reset {name}`",
            format_duration(*by)
        ),
        JobEvent::EngineFailed { error, retry_in } => {
            format!("{name}: {error}; retrying in {}", format_duration(*retry_in))
        }
        other => format!("{name}: {other:?}"),
    }
}

/// A job's event as a JSON line; fields that an event does not have are left out.
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
    /// How many ticks were skipped, of which `tick` is the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u32>,
    /// How late the run started, how long it took, how far the clock is behind, or when the engine
    /// is tried again, as `event` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
    /// Whether the outcome of the ended run was recorded on the engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    entered: Option<bool>,
    /// Whether this host runs the crashed run again.
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
            JobEvent::RunStarted { run, delay } => {
                Self { event: "began", seconds: Some(delay.as_secs_f64()), ..line.with_run(run) }
            }
            JobEvent::RunEnded { run, outcome, text, duration, is_recorded } => Self {
                event: "ended",
                outcome: Some(outcome.as_str()),
                message: text,
                seconds: Some(duration.as_secs_f64()),
                entered: Some(*is_recorded),
                ..line.with_run(run)
            },
            JobEvent::TicksSkipped(entry) => Self {
                event: "skipped",
                tick: Some(to_tick(entry.tick).to_string()),
                outcome: Some(entry.outcome.as_str()),
                count: Some(entry.count),
                ..line
            },
            JobEvent::RunCrashed { run, will_retry } => {
                Self { event: "crashed", again: Some(*will_retry), ..line.with_run(run) }
            }
            JobEvent::RunInProgress { run } => Self { event: "goes-on", ..line.with_run(run) },
            JobEvent::ScheduleChanged { previous } => Self { event: "rescheduled", message: previous, ..line },
            JobEvent::Superseded { token, .. } => Self { event: "stale", token: Some(*token), ..line },
            JobEvent::ClockBehind { by } => Self { event: "clock-behind", seconds: Some(by.as_secs_f64()), ..line },
            JobEvent::EngineFailed { error, retry_in } => {
                Self { event: "trouble", message: error, seconds: Some(retry_in.as_secs_f64()), ..line }
            }
            _ => Self { event: "other", ..line },
        }
    }

    /// Fills in the fields of a run.
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
