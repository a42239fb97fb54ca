//! `leasehold cron status` and `leasehold cron history`.

use std::time::Duration;

use leasehold::engine::ContenderView;
use leasehold::{DEFAULT_TTL, Locks};
use leasehold_schedule::{ActiveRun, Cron, HistoryEntry, Job, JobStatus, Jobs, PREFIX, Tick};
use serde::Serialize;

use super::args::{HistoryArgs, StatusArgs};
use super::health::JobHealth;
use super::{presence, schedule_file};
use crate::duration::format_duration;
use crate::exit::{self, Failure};
use crate::output::{self, escape_control_chars};

/// Prints the state of each job, and the live hosts; with --check, also the problems. Returns the
/// exit code.
pub(super) async fn show_status(args: StatusArgs) -> Result<u8, Failure> {
    let known = match &args.file {
        Some(path) => {
            Some(schedule_file::read_jobs(path, DEFAULT_TTL)?.jobs.into_iter().map(|(job, _)| job).collect::<Vec<_>>())
        }
        None => None,
    };
    let (seen, url) = args.engine.query(async |locks| FleetStatus::query(locks, known.as_deref()).await).await?;
    for (name, error) in &seen.unreadable {
        output::print_message(&format!("{}: {error}", escape_control_chars(name)));
    }
    let hosts = seen.hosts.as_deref();
    let text = if args.output.json {
        let live = hosts.map(<[_]>::len);
        output::to_json_line(&seen.rows.iter().map(|row| StatusJson::new(row, live)).collect::<Vec<_>>())
    } else if seen.rows.is_empty() {
        format!("no jobs are recorded: `leasehold cron FILE` records them\n{}", presence::format_hosts(hosts, &url))
    } else {
        format!("{}\n{}", format_status_table(&seen.rows), presence::format_hosts(hosts, &url))
    };
    output::write_stdout(&text)?;
    Ok(match seen.unreadable.is_empty() {
        false => exit::UNAVAILABLE,
        true if args.check => report_problems(&seen, args.min_hosts, &url),
        true => 0,
    })
}

/// Prints the problems of jobs and hosts, for `--check`. Returns the exit code: 0 without problems.
fn report_problems(seen: &FleetStatus, min_hosts: usize, url: &str) -> u8 {
    let mut code = 0;
    let mut report_problem = |message: String| {
        output::print_message(&message);
        code = exit::CONFLICT;
    };
    for row in &seen.rows {
        if let StatusRow::Known(status, health) = row {
            let problems = health.problems(status);
            problems.iter().for_each(|problem| report_problem(format!("{}: {problem}", status.name)));
        }
    }
    match seen.hosts.as_ref().map(Vec::len) {
        Some(live) if live < min_hosts => {
            report_problem(format!("{} on {url}, of {min_hosts} required", output::format_count(live, "live host")));
        }
        None if min_hosts > 0 => {
            report_problem(format!("{url}: this engine cannot count hosts; use --min-hosts 0"));
        }
        _ => {}
    }
    code
}

/// What the engine records about jobs and hosts.
struct FleetStatus {
    rows: Vec<StatusRow>,
    /// Jobs whose records cannot be read, and why.
    unreadable: Vec<(String, leasehold::Error)>,
    /// `None` if the engine cannot list locks.
    hosts: Option<Vec<ContenderView>>,
}

impl FleetStatus {
    /// Queries all recorded jobs, or only those of the schedule file if `known` is given.
    async fn query(locks: &Locks, known: Option<&[Job]>) -> leasehold::Result<Self> {
        let jobs = Jobs::new(locks)?;
        let names = match known {
            Some(known) => known.iter().map(|job| job.name().to_owned()).collect(),
            None => jobs.names().await?,
        };
        let now = engine_time(locks).await?;
        let mut seen = Self { rows: Vec::new(), unreadable: Vec::new(), hosts: presence::list_hosts(locks).await? };
        for name in names {
            match jobs.status(&name).await {
                Ok(Some(status)) => {
                    let health = JobHealth::check(locks, &jobs, &status).await?;
                    seen.rows.push(StatusRow::Known(Box::new(status), health));
                }
                Ok(None) => {
                    let job = known.into_iter().flatten().find(|job| job.name() == name);
                    seen.rows.extend(job.cloned().map(|job| StatusRow::New(Box::new(job), now)));
                }
                Err(error) => seen.unreadable.push((name, error)),
            }
        }
        Ok(seen)
    }
}

/// A job in the table or JSON of `cron status`.
enum StatusRow {
    /// A job that the engine has a record of.
    Known(Box<JobStatus>, JobHealth),
    /// A job of the schedule file that no host has started yet; with the engine's time.
    New(Box<Job>, Tick),
}

/// The engine's time, by which ticks are due. The clocks of hosts never count, not even for new
/// jobs.
async fn engine_time(locks: &Locks) -> leasehold::Result<Tick> {
    let now = locks.records()?.get(PREFIX).await?.engine_time;
    Ok(Tick::from_unix(i64::try_from(now.as_secs()).unwrap_or(i64::MAX)))
}

/// The newest entry of the history that is a run; if there was no run, the newest entry.
fn latest_entry(status: &JobStatus) -> Option<&HistoryEntry> {
    status.history.iter().rev().find(|entry| entry.outcome.has_run()).or(status.history.last())
}

fn format_status_table(rows: &[StatusRow]) -> String {
    let mut table = output::new_table(&["JOB", "SCHEDULE", "ZONE", "LAST", "OUTCOME", "NODE", "TOOK", "NEXT", "STATE"]);
    for row in rows {
        match row {
            StatusRow::New(job, now) => {
                let (name, cron) = (escape_control_chars(job.name()).into_owned(), job.cron());
                let dash = || "-".to_owned();
                let next = cron.next_after(*now).map_or_else(|| "never".to_owned(), |next| cron.local(next));
                let cells = [name, cron.to_string(), cron.zone().to_owned(), dash(), dash(), dash(), dash(), next];
                table.add_row(cells.into_iter().chain(["not run anywhere yet".to_owned()]));
            }
            StatusRow::Known(status, health) => {
                table.add_row(known_job_row(status, health));
            }
        }
    }
    output::format_wide_table(&table)
}

/// The row of a job that the engine has a record of.
fn known_job_row(status: &JobStatus, health: &JobHealth) -> [String; 9] {
    let cron = Cron::parse(&status.schedule).and_then(|cron| cron.in_zone(&status.zone)).ok();
    let local = |tick: Tick| cron.as_ref().map_or_else(|| tick.to_string(), |cron| cron.local(tick));
    let last = latest_entry(status);
    let dash = || "-".to_owned();
    [
        escape_control_chars(&status.name).into_owned(),
        escape_control_chars(&status.schedule).into_owned(),
        escape_control_chars(&status.zone).into_owned(),
        last.map_or_else(dash, |entry| local(Tick::from_unix(entry.tick))),
        last.map_or_else(dash, format_outcome),
        last.and_then(|entry| entry.run.as_ref()).map_or_else(dash, |run| escape_control_chars(&run.node).into_owned()),
        last.and_then(run_duration).map_or_else(dash, format_duration),
        format_next(status, local),
        format_state(status, health),
    ]
}

/// The job's next tick, as `local` formats it; `paused` or `never` if there is none.
fn format_next(status: &JobStatus, local: impl Fn(Tick) -> String) -> String {
    if status.paused.is_some() {
        return "paused".to_owned();
    }
    status.next.map_or_else(|| "never".to_owned(), local)
}

/// The outcome of a run or of skipped ticks: `failed (exit code 3), by hand`.
fn format_outcome(entry: &HistoryEntry) -> String {
    let text = if entry.text.is_empty() { String::new() } else { format!(" ({})", escape_control_chars(&entry.text)) };
    let by_hand = if entry.run.as_ref().is_some_and(|run| run.manual) { ", by hand" } else { "" };
    format!("{}{text}{by_hand}", entry.outcome.as_str())
}

/// How long the run of an entry took; `None` for a tick that did not run.
fn run_duration(entry: &HistoryEntry) -> Option<Duration> {
    let run = entry.run.as_ref()?;
    Some(Duration::from_millis(entry.at.saturating_sub(run.started)))
}

/// The job's problems, active runs, queue and pause; `waits` if there are none.
fn format_state(status: &JobStatus, health: &JobHealth) -> String {
    let mut parts = health.problems(status);
    for run in &status.running {
        let now = u64::try_from(status.now.unix()).unwrap_or(0).saturating_mul(1000);
        let since = format_duration(Duration::from_millis(now.saturating_sub(run.started)));
        let again = if run.attempt > 1 { format!(", attempt {}", run.attempt) } else { String::new() };
        let (tick, node) = (Tick::from_unix(run.tick), escape_control_chars(&run.node));
        parts.push(format!("runs {tick} on {node} for {since} (token {}{again})", run.token));
    }
    if !status.queue.is_empty() {
        parts.push(format!("{} queued", status.queue.len()));
    }
    if status.pending_manual_runs > 0 {
        parts.push(format!("{} by hand", status.pending_manual_runs));
    }
    if let Some(paused) = &status.paused {
        parts.push(format!("paused by {} at {}", escape_control_chars(&paused.by), Tick::from_unix(paused.at)));
    }
    if parts.is_empty() { "waits".to_owned() } else { parts.join("; ") }
}

/// Prints the outcomes of a job's recent ticks; returns the exit code.
pub(super) async fn show_history(args: HistoryArgs) -> Result<u8, Failure> {
    let (status, url) = args.engine.query(async |locks| Jobs::new(locks)?.status(&args.job).await).await?;
    let Some(status) = status else {
        return Err(Failure::usage(format!("there is no job {:?} on {url}: no host has started it", args.job)));
    };
    if args.output.json {
        output::write_stdout(&output::to_json_line(&status.history.iter().map(EntryJson::new).collect::<Vec<_>>()))?;
        return Ok(0);
    }
    let mut table = output::new_table(&["TICK", "OUTCOME", "TICKS", "NODE", "TOKEN", "ATTEMPT", "STARTED", "TOOK"]);
    for entry in &status.history {
        let run = entry.run.as_ref();
        let cell = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        table.add_row([
            Tick::from_unix(entry.tick).to_string(),
            format_outcome(entry),
            entry.count.to_string(),
            cell(run.map(|run| escape_control_chars(&run.node).into_owned())),
            cell(run.map(|run| run.token.to_string())),
            cell(run.map(|run| run.attempt.to_string())),
            cell(run.map(|run| format_time(run.started))),
            cell(run_duration(entry).map(format_duration)),
        ]);
    }
    output::write_stdout(&output::format_wide_table(&table))?;
    Ok(0)
}

/// Formats a time in milliseconds since 1970 as in `2026-11-16T03:00:00.000Z`.
fn format_time(millis: u64) -> String {
    let at = i64::try_from(millis).ok().and_then(|millis| jiff::Timestamp::from_millisecond(millis).ok());
    at.map_or_else(|| millis.to_string(), |at| format!("{at:.3}"))
}

/// One job of `cron status --json`.
#[derive(Debug, Serialize)]
struct StatusJson<'a> {
    job: &'a str,
    schedule: &'a str,
    zone: &'a str,
    /// Whether the engine has a record of the job: `false` if no host has started it yet.
    known: bool,
    next: Option<String>,
    /// The newest tick that was run or skipped.
    decided: Option<String>,
    paused: bool,
    /// How many ticks were chosen to run and have not started.
    queued: usize,
    /// How many manual runs were requested and have not started.
    wanted: usize,
    /// How far the last tick is ahead of the engine's clock, if no tick is due because of that.
    ahead_seconds: Option<i64>,
    /// The first tick that no host ran or skipped within a minute, unless the job is paused or has
    /// any active run.
    undecided: Option<String>,
    /// The first tick that no host ran or skipped within a minute, unless the job is paused or has
    /// an active run on a live host.
    overdue: Option<String>,
    /// The tokens of runs whose hosts died.
    dead: &'a [u64],
    /// How many hosts run `leasehold cron` on this engine.
    live_hosts: Option<usize>,
    running: Vec<RunJson<'a>>,
    /// The last run.
    last: Option<EntryJson<'a>>,
    /// The last entry of the history, which may be a tick that did not run.
    last_entry: Option<EntryJson<'a>>,
}

impl<'a> StatusJson<'a> {
    fn new(row: &'a StatusRow, live_hosts: Option<usize>) -> Self {
        match row {
            StatusRow::New(job, now) => Self {
                job: job.name(),
                schedule: job.cron().as_str(),
                zone: job.cron().zone(),
                known: false,
                next: job.cron().next_after(*now).map(|next| next.to_string()),
                decided: None,
                paused: false,
                queued: 0,
                wanted: 0,
                ahead_seconds: None,
                undecided: None,
                overdue: None,
                dead: &[],
                live_hosts,
                running: Vec::new(),
                last: None,
                last_entry: None,
            },
            StatusRow::Known(status, health) => Self {
                job: &status.name,
                schedule: &status.schedule,
                zone: &status.zone,
                known: true,
                next: status.next.map(|next| next.to_string()),
                decided: Some(status.decided.to_string()),
                paused: status.paused.is_some(),
                queued: status.queue.len(),
                wanted: status.pending_manual_runs,
                ahead_seconds: status.clock_behind_by,
                undecided: status.undecided.map(|tick| tick.to_string()),
                overdue: health.overdue_tick.map(|tick| tick.to_string()),
                dead: &health.dead_tokens,
                live_hosts,
                running: status.running.iter().map(RunJson::new).collect(),
                last: latest_entry(status).map(EntryJson::new),
                last_entry: status.history.last().map(EntryJson::new),
            },
        }
    }
}

/// An active run.
#[derive(Debug, Serialize)]
struct RunJson<'a> {
    tick: String,
    token: u64,
    node: &'a str,
    started: String,
    attempt: u32,
    manual: bool,
}

impl<'a> RunJson<'a> {
    fn new(run: &'a ActiveRun) -> Self {
        Self {
            tick: Tick::from_unix(run.tick).to_string(),
            token: run.token,
            node: &run.node,
            started: format_time(run.started),
            attempt: run.attempt,
            manual: run.manual,
        }
    }
}

/// One entry of a job's history: a run, or ticks that did not run.
#[derive(Debug, Serialize)]
struct EntryJson<'a> {
    tick: String,
    outcome: &'a str,
    /// How many ticks have this outcome, of which `tick` is the last.
    count: u32,
    at: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    text: &'a str,
    #[serde(flatten)]
    run: Option<EntryRunJson<'a>>,
}

/// The run of an entry of the history.
#[derive(Debug, Serialize)]
struct EntryRunJson<'a> {
    token: u64,
    node: &'a str,
    started: String,
    attempt: u32,
    manual: bool,
}

impl<'a> EntryJson<'a> {
    fn new(entry: &'a HistoryEntry) -> Self {
        let run = entry.run.as_ref().map(|run| EntryRunJson {
            token: run.token,
            node: &run.node,
            started: format_time(run.started),
            attempt: run.attempt,
            manual: run.manual,
        });
        let tick = Tick::from_unix(entry.tick).to_string();
        Self {
            tick,
            outcome: entry.outcome.as_str(),
            count: entry.count,
            at: format_time(entry.at),
            text: &entry.text,
            run,
        }
    }
}
