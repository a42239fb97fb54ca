//! A job as a schedule file describes it, in either form.

use std::ffi::OsString;
use std::time::Duration;

use leasehold_schedule::{Crash, Job, Missed, Overlap};

use super::policy;
use crate::duration::{parse, parse_positive};
use crate::run::{JobTimes, Plan};

/// The names of a job's options in a schedule file.
pub(super) const OPTION_NAMES: [&str; 9] =
    ["zone", "crash", "missed", "overlap", "grace", "ttl", "max-hold", "min-hold", "kill-after"];

/// The options of a job in a schedule file; an unset one takes the default of the file, the command
/// line or the library.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct JobOptions {
    zone: Option<String>,
    crash: Option<Crash>,
    missed: Option<Missed>,
    overlap: Option<Overlap>,
    grace: Option<Duration>,
    ttl: Option<Duration>,
    max_hold: Option<Duration>,
    min_hold: Option<Duration>,
    kill_after: Option<Duration>,
}

impl JobOptions {
    /// Parses the value of the option `key`, and sets it.
    pub(super) fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let named = |error: String| format!("{key}={value}: {error}");
        match key {
            "zone" => {
                // Validated here, so that the error names the line.
                Job::new("x", "@daily").and_then(|job| job.zone(value)).map_err(|error| error.to_string())?;
                self.zone = Some(value.to_owned());
            }
            "crash" => self.crash = Some(policy::parse_crash(value).map_err(named)?),
            "missed" => self.missed = Some(policy::parse_missed(value).map_err(named)?),
            "overlap" => self.overlap = Some(policy::parse_overlap(value).map_err(named)?),
            "grace" => self.grace = Some(parse(value).map_err(named)?),
            "ttl" => self.ttl = Some(parse_positive(value).map_err(named)?),
            "max-hold" => self.max_hold = Some(parse_positive(value).map_err(named)?),
            "min-hold" => self.min_hold = Some(parse(value).map_err(named)?),
            "kill-after" => self.kill_after = Some(parse(value).map_err(named)?),
            _ => return Err(format!("there is no option {key:?}: there are {}", OPTION_NAMES.join(", "))),
        }
        Ok(())
    }
}

/// A job as a schedule file describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JobSpec {
    /// Its line in the file, from 1.
    pub(super) line: usize,
    pub(super) name: String,
    pub(super) schedule: String,
    pub(super) command: Vec<OsString>,
    /// Additional variables for the command's environment.
    pub(super) env: Vec<(String, String)>,
    pub(super) options: JobOptions,
    /// A probable mistake that does not keep the job from running.
    pub(super) warning: Option<String>,
}

impl JobSpec {
    /// Validates the options; returns the job, and the plan of its command. `default_ttl` applies
    /// if the job has no TTL of its own.
    pub(super) fn build(&self, default_ttl: Duration) -> Result<(Job, Plan), String> {
        let options = &self.options;
        let ttl = options.ttl.unwrap_or(default_ttl);
        let mut job = Job::new(&self.name, &self.schedule).map_err(|error| error.to_string())?.ttl(ttl).handles_loss();
        if let Some(zone) = &options.zone {
            job = job.zone(zone).map_err(|error| error.to_string())?;
        }
        if let Some(crash) = options.crash {
            job = job.crash(crash);
        }
        if let Some(missed) = options.missed {
            job = job.missed(missed);
        }
        if let Some(overlap) = options.overlap {
            job = job.overlap(overlap);
        }
        if let Some(grace) = options.grace {
            job = job.grace(grace);
        }
        if let Some(max_hold) = options.max_hold {
            if max_hold <= options.min_hold.unwrap_or_default() {
                return Err("max-hold must be longer than min-hold".to_owned());
            }
            job = job.max_hold(max_hold);
        }
        job = job.min_hold(options.min_hold.unwrap_or_default());
        let times = JobTimes { ttl, max_hold: options.max_hold, grace: options.kill_after };
        let plan = Plan::for_job(job.lock_name().clone(), self.command.clone(), times)
            .map_err(|error| error.replace("--grace", "kill-after").replace("--", ""))?;
        Ok((job.describe(plan.description()), plan.with_env(self.env.clone())))
    }
}

/// A mistake in a schedule file, and its line, from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileError {
    pub(super) line: usize,
    pub(super) message: String,
}
