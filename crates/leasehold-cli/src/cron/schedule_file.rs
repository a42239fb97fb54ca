//! Reads a schedule file in either form, or reports every mistake in it.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use leasehold_schedule::Job;

use super::job_spec::JobSpec;
use super::{crontab, toml_format};
use crate::exit::Failure;
use crate::run::Plan;

/// The content of a schedule file that has no mistakes.
pub(super) struct Schedule {
    /// The jobs, and the plans of their commands.
    pub(super) jobs: Vec<(Job, Plan)>,
    /// Probable mistakes that keep no job from running, with file and line.
    pub(super) warnings: Vec<String>,
}

/// Reads a schedule file; `ttl` applies to jobs without their own. The error lists all mistakes
/// with their lines.
pub(super) fn read_jobs(path: &Path, ttl: Duration) -> Result<Schedule, Failure> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| {
        // A single word may be a misspelt subcommand.
        let is_word = path.extension().is_none() && path.components().count() == 1;
        let hint = match error.kind() {
            ErrorKind::NotFound if is_word => "; the commands of `leasehold cron` are in `leasehold cron --help`",
            _ => "",
        };
        Failure::usage(format!("cannot read {shown}: {error}{hint}"))
    })?;
    let is_toml = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("toml"));
    let (specs, mistakes) = if is_toml { toml_format::parse_toml(&text) } else { crontab::parse_crontab(&text) };
    let mut errors: Vec<(usize, String)> =
        mistakes.into_iter().map(|mistake| (mistake.line, mistake.message)).collect();
    let mut jobs = Vec::new();
    for spec in &specs {
        match spec.build(ttl) {
            Ok(built) => jobs.push(built),
            Err(message) => errors.push((spec.line, message)),
        }
    }
    if errors.is_empty() && jobs.is_empty() {
        return Err(Failure::usage(format!("{shown} has no jobs; `leasehold cron --help` shows how they are written")));
    }
    if errors.is_empty() {
        let warning = |spec: &JobSpec| Some(format!("{shown}:{}: warning: {}", spec.line, spec.warning.as_ref()?));
        return Ok(Schedule { jobs, warnings: specs.iter().filter_map(warning).collect() });
    }
    errors.sort();
    let lines: Vec<String> = errors.iter().map(|(line, message)| format!("{shown}:{line}: {message}")).collect();
    Err(Failure::usage(lines.join("\n")))
}
