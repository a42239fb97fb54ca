//! `leasehold cron check`: checks a file and shows when its jobs are due.

use leasehold::DEFAULT_TTL;
use leasehold_schedule::{Job, Tick};
use serde::Serialize;

use super::args::CheckArgs;
use super::schedule_file::{self, Schedule};
use crate::exit::Failure;
use crate::output::{self, escape_control_chars};

/// One job of `cron check --json`, with its next ticks.
#[derive(Debug, Serialize)]
struct JobJson<'a> {
    job: &'a str,
    schedule: &'a str,
    zone: &'a str,
    next: Vec<String>,
}

/// Checks the schedule file, and prints when each job is due next. Returns the exit code.
pub(super) fn check(args: &CheckArgs) -> Result<u8, Failure> {
    let Schedule { jobs, warnings } = schedule_file::read_jobs(&args.file, DEFAULT_TTL)?;
    warnings.iter().for_each(|warning| output::print_message(warning));
    let from = match &args.from {
        // The local clock only chooses which times to show; the engine's clock decides what is due.
        None => Tick::from_unix(jiff::Timestamp::now().as_second()),
        Some(text) => Tick::parse(text)
            .ok_or_else(|| Failure::usage(format!("{text:?} is no time: write it as 2026-03-29T00:00:00Z")))?,
    };
    if args.output.json {
        let shown: Vec<_> = jobs.iter().map(|(job, _)| to_json(job, from, args.next)).collect();
        output::write_stdout(&output::to_json_line(&shown))?;
        return Ok(0);
    }
    let mut text = String::new();
    for (job, plan) in &jobs {
        let (name, cron) = (escape_control_chars(job.name()), job.cron());
        text.push_str(&format!("{name}: {cron} ({})  {}\n", cron.zone(), escape_control_chars(plan.description())));
        for tick in next_ticks(job, from, args.next) {
            text.push_str(&format!("  {tick}  {}\n", cron.local(tick)));
        }
    }
    output::write_stdout(&text)?;
    Ok(0)
}

/// One job of `cron check --json`, with its first `count` ticks after `from`.
fn to_json(job: &Job, from: Tick, count: usize) -> JobJson<'_> {
    let next = next_ticks(job, from, count).map(|tick| tick.to_string()).collect();
    JobJson { job: job.name(), schedule: job.cron().as_str(), zone: job.cron().zone(), next }
}

/// The first `count` ticks of a job after `from`.
fn next_ticks(job: &Job, from: Tick, count: usize) -> impl Iterator<Item = Tick> + '_ {
    std::iter::successors(job.cron().next_after(from), |tick| job.cron().next_after(*tick)).take(count)
}
