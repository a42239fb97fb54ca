//! The command line of `leasehold cron`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::args::{EngineArg, JsonArg};
use crate::duration::{parse, parse_positive};

/// The usage line of `leasehold cron --help`.
const USAGE: &str = "leasehold cron [OPTIONS] FILE\n       leasehold cron <COMMAND>";

/// The text after the options in `leasehold cron --help`.
// Lines stay within 79 characters, so that an 80-column terminal does not wrap them.
const AFTER_HELP: &str = "\
Examples:
  leasehold cron --engine redis://db1 jobs.cron   on every host of the fleet
  leasehold cron check jobs.cron                  report mistakes and due times
  leasehold cron status                           each job's last and next run,
                                                  and the live hosts
  leasehold cron status --check                   for monitoring: exit code 1
                                                  if a job is overdue; a killed
                                                  host is noticed up to one TTL
                                                  later
  leasehold cron history nightly                  the outcomes of its ticks
  leasehold cron pause nightly                    on all hosts; undo: resume
  leasehold cron run-now nightly                  once, on one host

A crontab (any file that does not end in .toml):
  # comment
  CRON_TZ=Europe/Berlin
  PATH=/usr/local/bin:/usr/bin:/bin
  nightly: 0 3 * * *  ./send-messages --all
  report [crash=retry:3 missed=once max-hold=1h]: @daily  ./report
  CRON_SECONDS=yes
  probe: */10 * * * * *  ./probe

  Each line begins with the job's name. The record of past ticks is stored
  under that name, so do not change it. The schedule follows:
    minute, hour, day of the month, month, day of the week (0 or 7 is Sunday)
    or @hourly, @daily, @weekly, @monthly, @yearly
    or @every 90s
  After CRON_SECONDS=yes, seconds come before the minute. The rest of the line
  runs with /bin/sh -c, or with the shell that SHELL= names; % is not special.
  MAILTO is refused, because leasehold sends no mail. So is the user column of
  /etc/crontab, because commands run as leasehold's own user.
  NAME=value lines apply to the jobs below them. They set the environment of
  the commands, with two exceptions: CRON_TZ sets the time zone (TZ sets both),
  and CRON_CRASH, CRON_MISSED and so on set the options that brackets set for
  one job.

The same in TOML:
  zone = \"Europe/Berlin\"
  [job.nightly]
  schedule = \"0 3 * * *\"
  command = \"./send-messages --all\"    # or argv = [\"./send-messages\", \"--all\"]
  [job.report]
  schedule = \"@daily\"
  command = \"./report\"
  crash = \"retry:3\"
  missed = \"once\"
  max-hold = \"1h\"
  env = { LANG = \"C\" }

Options of a job:
  zone=Europe/Berlin   the time zone (default: UTC)
  crash=at-most-once   a run whose host died is not run again (the default);
        retry:N        another host runs it again, up to N starts in all
  missed=skip          ticks that no host ran in time are skipped (default);
        once           one run makes up for all of them; all:N runs the last N
  overlap=skip         ticks during a run are skipped (the default);
        queue          they run after it; allow:N beside it, up to N (max. 64)
  grace=1m             how late a tick may start and still count as in time;
                       must exceed the TTL
  max-hold=1h          TERM, then KILL, so that the run has ended by then
  min-hold=10s         keep the job's lock at least this long
  kill-after=5s        the time between TERM and KILL
  ttl=30s              how long the lock outlives a host that dies

The commands:
  Their environment has LEASEHOLD_JOB, LEASEHOLD_TICK (the nominal time, as in
  2026-11-16T03:00:00Z), LEASEHOLD_TOKEN, LEASEHOLD_ATTEMPT and
  LEASEHOLD_ENGINE. The token is higher with every run: the resource that the
  command writes to should refuse lower ones. Commands have no standard input.
  If the lock is lost or leasehold is killed, the command is ended before
  another host acquires the lock.

Signals:
  TERM, INT   start no more runs, and exit when the active ones have ended.
              These get TERM after --stop-grace, or at once after a second
              signal at least half a second later. Then another host runs
              them again (crash=retry:N), or they are recorded as lost,
              whatever their exit code
  HUP         reload the file; if it has mistakes, keep the old jobs; no
              effect after TERM or INT

Exit codes:
    0   stopped
    1   status --check: a job is overdue, a run's host has died, too few
        hosts are live, or the engine cannot count them
   64   a mistake in the file or on the command line
   69   the engine cannot be used; an unreachable engine is retried, also at
        the start
   71   a system call failed";

/// Run scheduled jobs on every host of a fleet, each tick once
///
/// Reads a crontab, or its TOML form, and runs the jobs by the engine's clock. Every host of the
/// fleet runs the same file, and one host runs each tick of a job. The record of which ticks have
/// run is stored with the lock, so clock skew, restarts and late starts do not run a tick twice.
#[derive(Debug, Args)]
#[command(override_usage = USAGE, args_conflicts_with_subcommands = true)]
#[command(after_long_help = AFTER_HELP, after_help = "`leasehold cron --help` has the form of the file.")]
pub(crate) struct CronArgs {
    #[command(subcommand)]
    pub(crate) command: Option<CronCommand>,
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
}

impl CronArgs {
    /// The engine options of the selected subcommand.
    pub(crate) fn engine_mut(&mut self) -> Option<&mut EngineArg> {
        match &mut self.command {
            None => Some(&mut self.daemon.engine),
            Some(CronCommand::Check(_)) => None,
            Some(CronCommand::Status(args)) => Some(&mut args.engine),
            Some(CronCommand::History(args)) => Some(&mut args.engine),
            Some(
                CronCommand::Pause(args)
                | CronCommand::Resume(args)
                | CronCommand::RunNow(args)
                | CronCommand::Reset(args)
                | CronCommand::Forget(args),
            ) => Some(&mut args.engine),
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum CronCommand {
    /// Check a file and show when its jobs are due, without an engine
    Check(CheckArgs),
    /// Show the last and next run of each job
    Status(StatusArgs),
    /// Show the outcome of a job's recent ticks
    History(HistoryArgs),
    /// Start no more runs of a job, on any host
    Pause(ControlArgs),
    /// Resume with the next tick; ticks missed during the pause are skipped
    Resume(ControlArgs),
    /// Run a job once, within ten seconds, on the first host to pick it up
    RunNow(ControlArgs),
    /// Restart a job's schedule at the engine's current time: for a job whose last tick lies in the
    /// future because of a wrong clock
    Reset(ControlArgs),
    /// Delete the record of a job that no host runs any more
    Forget(ControlArgs),
}

#[derive(Debug, Args)]
pub(crate) struct DaemonArgs {
    /// The schedule: a crontab, or TOML if the name ends in .toml
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) engine: EngineArg,
    /// How long a lock outlives a host that dies, for jobs without their own `ttl`
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_positive)]
    pub(crate) ttl: Duration,
    /// At shutdown, how long runs may continue before they get TERM
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse)]
    pub(crate) stop_grace: Duration,
    /// Log events as JSON, one object per line
    #[arg(long)]
    pub(crate) json: bool,
    /// Log only problems
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The schedule file
    pub(crate) file: PathBuf,
    /// How many times to show for each job
    #[arg(short, long, default_value_t = 5)]
    pub(crate) next: usize,
    /// Show the times after this one, as in 2026-03-29T00:00:00Z, instead of from now on
    #[arg(long, value_name = "TIME")]
    pub(crate) from: Option<String>,
    #[command(flatten)]
    pub(crate) output: JsonArg,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Only the jobs of this file, including those that no host has run yet
    pub(crate) file: Option<PathBuf>,
    /// For monitoring: exit code 1 if a job is overdue, a run's host has died, or too few hosts are
    /// live
    ///
    /// A host that is killed or partitioned counts as live until its locks expire. So the check
    /// notices it up to one TTL later: that of the host (`--ttl`), or the job's own. On `file:` it
    /// notices a killed host at once.
    #[arg(long)]
    pub(crate) check: bool,
    /// With --check: how many hosts must run `leasehold cron` on this engine; 0 if only
    /// `run --once-per` uses it, or if the engine cannot count hosts (`protocol=simple`)
    #[arg(long, value_name = "N", default_value_t = 1, requires = "check")]
    pub(crate) min_hosts: usize,
    #[command(flatten)]
    pub(crate) engine: EngineArg,
    #[command(flatten)]
    pub(crate) output: JsonArg,
}

#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    /// The job's name
    pub(crate) job: String,
    #[command(flatten)]
    pub(crate) engine: EngineArg,
    #[command(flatten)]
    pub(crate) output: JsonArg,
}

#[derive(Debug, Args)]
pub(crate) struct ControlArgs {
    /// The jobs' names
    #[arg(required = true, value_name = "JOB")]
    pub(crate) jobs: Vec<String>,
    #[command(flatten)]
    pub(crate) engine: EngineArg,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_help_line_exceeds_80_columns() {
        for line in AFTER_HELP.lines() {
            assert!(line.chars().count() < 80, "{line}");
        }
    }
}
