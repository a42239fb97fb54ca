//! The command line of `leasehold cron`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::args::{EngineArg, JsonArg};
use crate::duration::{parse, parse_positive};

const USAGE: &str = "leasehold cron [OPTIONS] FILE\n       leasehold cron <COMMAND>";

// Lines stay within 79 characters, so that an 80-column terminal does not wrap them.
const AFTER_HELP: &str = "\
Examples:
  leasehold cron --engine redis://db1 jobs.cron   on every host of the fleet
  leasehold cron check jobs.cron                  is it right? when is it due?
  leasehold cron status                           last and next time of each,
                                                  and which hosts are there
  leasehold cron status --check                   for monitoring: exit code 1
                                                  if a job is overdue; a host
                                                  that is killed is noticed up
                                                  to one TTL later
  leasehold cron history nightly                  what has become of its ticks
  leasehold cron pause nightly                    on all hosts; then: resume
  leasehold cron run-now nightly                  once, on one of them

A crontab (any file that does not end in .toml):
  # comment
  CRON_TZ=Europe/Berlin
  PATH=/usr/local/bin:/usr/bin:/bin
  nightly: 0 3 * * *  ./send-messages --all
  report [crash=retry:3 missed=once max-hold=1h]: @daily  ./report
  CRON_SECONDS=yes
  probe: */10 * * * * *  ./probe

  Each line begins with the job's name: what has run is kept under it, so it
  must stay. Then minute, hour, day of the month, month, day of the week (0 or
  7 is Sunday); a nickname (@hourly, @daily, @weekly, @monthly, @yearly); or
  @every 90s. After CRON_SECONDS=yes a second stands before the minute. The
  rest of the line is run with /bin/sh -c (SHELL= says otherwise); % is itself.
  MAILTO is refused: leasehold sends no mail. So is the user that a line of
  /etc/crontab has before its command: commands run as leasehold's own user.
  NAME=value lines hold for the jobs below them: they are the environment of
  the commands, but for CRON_TZ (the time zone; TZ is both) and CRON_CRASH,
  CRON_MISSED and so on, which set the options that brackets set for one job.

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
  zone=Europe/Berlin   the time zone; UTC if not set
  crash=at-most-once   a run whose host died is not run again (the default);
        retry:N        by another host, until it has begun N times
  missed=skip          ticks that nobody ran in time are left out (default);
        once           one run makes up for all of them; all:N for the last N
  overlap=skip         ticks during a run are left out (the default);
        queue          run after it; allow:N beside it, N (up to 64) at most
  grace=1m             how late a tick may be and still count as in time; more
                       than the TTL
  max-hold=1h          TERM, then KILL, so that it is over by then
  min-hold=10s         keep the job's lock at least so long
  kill-after=5s        the time between TERM and KILL
  ttl=30s              how long the lock outlives a host that dies

The commands:
  Their environment has LEASEHOLD_JOB, LEASEHOLD_TICK (the nominal time, as in
  2026-11-16T03:00:00Z), LEASEHOLD_TOKEN (higher with every run: have what
  they write to refuse older ones), LEASEHOLD_ATTEMPT and LEASEHOLD_ENGINE.
  They have no standard input. If the lock is lost or leasehold is killed,
  they are ended, before another host has the lock.

Signals:
  TERM, INT   begin nothing more, and end when the runs have ended; they get
              TERM after --stop-grace, and at once after a second signal,
              half a second later or more; then another host takes them over
              (crash=retry:N), or they are entered as lost, whatever code they
              end with
  HUP         read the file again; if it is wrong, go on with what was;
              nothing after one of the others

Exit codes:
    0   stopped
    1   status --check: a job is overdue, a run's host has died, too few
        hosts are there, or the engine cannot count them
   64   the file, or something else that was given, is wrong
   69   the engine cannot be used; if it is only away, at the start, too, it
        is waited for
   71   the system refused us something";

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
    /// At shutdown, how long runs may go on before they get TERM
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse)]
    pub(crate) stop_grace: Duration,
    /// Log events as JSON, one object per line
    #[arg(long)]
    pub(crate) json: bool,
    /// Log only what goes wrong
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
    /// A host that is killed or cut off counts as live until its locks expire, so it is noticed up
    /// to one TTL later: the one that host was started with (`--ttl`), or the job's own. On `file:`
    /// it is noticed at once.
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
