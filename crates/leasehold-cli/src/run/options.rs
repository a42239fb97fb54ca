//! The options of `leasehold run`.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use leasehold_schedule::{Crash, Missed, Overlap};

use super::loss_policy::OnLost;
use crate::args::EngineArg;
use crate::cron::policy;
use crate::duration::{parse, parse_positive};

/// The usage line of `leasehold run --help`.
const USAGE: &str = "leasehold run [OPTIONS] NAME -- CMD...\n       leasehold run [OPTIONS] NAME -c STRING";

/// The text after the options in `leasehold run --help`.
// Lines stay within 79 characters, so that an 80-column terminal does not wrap them.
const AFTER_HELP: &str = "\
Examples:
  leasehold run nightly -- ./send-messages      one at a time, in order
  leasehold run -n nightly -- ./send-messages   exit code 1 if it is held
  leasehold run -w 30s -E 99 deploy -- make install
  leasehold run -s config -- ./reload           beside other -s, not beside -x
  leasehold run --slots 4 encode -c 'ffmpeg -i \"$IN\" \"$OUT\"'
  leasehold run --max-hold 10m --grace 10s report -- ./report
  */5 * * * *  leasehold run --once-per '*/5 * * * *' mail -- ./send-mail
                in the crontab of every host: each tick runs on one of them

The command:
  It has a process group of its own, and leasehold's standard streams and
  terminal.
  Its environment has
    LEASEHOLD_NAME     the lock's name
    LEASEHOLD_TOKEN    the fencing token: pass it to the resource that the
                       lock protects, which should refuse lower ones
    LEASEHOLD_OWNER    the owner of the lock: a `leasehold run` of the same
                       lock inside the command re-enters at once
    LEASEHOLD_HELD     the holds of this run and its enclosing runs: a nested
                       run re-enters one of them only while it is held
    LEASEHOLD_ENGINE   the engine's URL; with --engine-file,
                       LEASEHOLD_ENGINE_FILE with the file's path instead
    LEASEHOLD_TICK     with --once-per: the nominal time, as in
                       2026-11-16T03:00:00Z
    LEASEHOLD_ATTEMPT  with --once-per: 1, or more after a crash
  leasehold forwards TERM, INT, HUP, QUIT, USR1, USR2 and WINCH to the group.
  During the wait for the lock, the first four end the wait, and the others
  have no effect.
  If leasehold is killed, the group is killed, too. The lock is not free before
  the group is gone. With technique=session or for-update, the lock is free at
  once, and the rest of the group dies a moment later. If a signal ends the
  command, the rest of its group gets the grace to end, and then KILL, before
  the lock is free.
  leasehold does not track processes that leave the group. Processes that the
  command leaves behind when it exits continue without the lock: a `leasehold
  run` that they start acquires the lock for itself.

When the engine does not respond:
  Without -w, the wait for the lock has no limit, but the wait for the engine
  has one. The exit code is 69 if the engine is unreachable at the start for
  --connect-timeout, or does not respond for a whole TTL later. With -w, its
  limit also covers an unreachable engine.

When the lock is lost:
  The lease is renewed every third of its TTL. If that fails, the group gets
  TERM when only the grace is left of the lease, and KILL just before its end,
  so it is gone before another process acquires the lock. After a forced
  release, the group gets TERM at once and KILL after the grace. --on-lost
  changes this.
  An engine may grant leases shorter than the TTL (zookeeper: does). Then they
  are renewed sooner, and the grace is shortened to fit.
  Ctrl-Z stops the command and the renewals. If the command is not continued in
  time, the lock is lost in the same way.

Exit codes:
  the command's own; 128+n if signal n ended the command or the wait
    1   the lock is held: with -n, after -w, or with another number of --slots
        (-E sets another code); a line names the holder (not with -q)
   64   wrong usage, or an invalid name, URL or duration
   69   the engine cannot be used: unreachable (see above), access denied, full
        or corrupt
   71   a system call failed, for example to start a process
   75   the lock was lost
  126   the command cannot be run
  127   the command was not found

Environment:
  LEASEHOLD_ENGINE   the engine's URL, if --engine is not given
  LEASEHOLD_OWNER    the owner of this run, set by an enclosing `leasehold run`
                     or by hand: runs with the same owner re-enter each
                     other's holds
  LEASEHOLD_LOG      the library's log level: warn, debug, ...";

/// Run a command under a lock
///
/// Waits until the lock is free, runs the command, and releases the lock when it ends. Like
/// flock(1), but each lock has a name, a fair queue, a lease that is renewed, and a fencing token.
/// Engines on the network share it between machines.
#[derive(Debug, Args)]
#[command(override_usage = USAGE)]
#[command(after_long_help = AFTER_HELP, after_help = "`leasehold run --help` has examples and the exit codes.")]
pub(crate) struct RunArgs {
    /// The lock's name: any text of 1 to 512 bytes without control characters
    pub(crate) name: String,
    /// The command and its arguments
    #[arg(value_name = "CMD", trailing_var_arg = true)]
    pub(crate) cmd: Vec<OsString>,
    /// Run this with `/bin/sh -c` instead of CMD
    #[arg(short, long, value_name = "STRING", conflicts_with = "cmd")]
    pub(crate) command: Option<OsString>,
    /// Do not wait: fail if the lock is not free
    #[arg(short, long, visible_alias = "nb")]
    pub(crate) nonblock: bool,
    /// Wait at most this long, also for an unreachable engine: seconds (`5`, `0.5`) or with a unit
    /// (`500ms`, `2m`, `1h`)
    #[arg(short, long, visible_alias = "timeout", value_name = "SECONDS", value_parser = parse, conflicts_with = "nonblock")]
    pub(crate) wait: Option<Duration>,
    /// The exit code if the lock is not acquired
    #[arg(short = 'E', long, value_name = "N", default_value_t = crate::exit::CONFLICT)]
    pub(crate) conflict_exit_code: u8,
    /// Share the lock with other holders that use --shared
    #[arg(short, long, overrides_with = "exclusive", conflicts_with = "slots")]
    pub(crate) shared: bool,
    /// Hold the lock exclusively (the default)
    #[arg(short = 'x', visible_short_alias = 'e', long, overrides_with = "shared", conflicts_with = "slots")]
    pub(crate) exclusive: bool,
    /// At most N hold the lock at the same time; every user of the lock must give the same N
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) slots: Option<u32>,
    #[command(flatten)]
    pub(crate) engine: EngineArg,
    /// How long the lock outlives leasehold if it is partitioned or stopped; the lease is renewed
    /// every third of this
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_positive)]
    pub(crate) ttl: Duration,
    /// Keep the lock at least this long, even if the command ends sooner
    ///
    /// For a fleet with clock skew: hosts whose clocks are behind find the lock held, instead of
    /// free again.
    #[arg(long, value_name = "DURATION", value_parser = parse)]
    pub(crate) min_hold: Option<Duration>,
    /// Hold the lock at most this long: then it is lost, and --on-lost applies
    #[arg(long, value_name = "DURATION", value_parser = parse_positive)]
    pub(crate) max_hold: Option<Duration>,
    /// What to do to the command when the lock is lost
    #[arg(long, value_name = "ACTION", default_value = "term")]
    pub(crate) on_lost: OnLost,
    /// Run once per tick of this cron expression in the whole fleet: for the system's own cron on
    /// every host
    ///
    /// The engine's clock decides which tick this call belongs to. The record stored with the lock
    /// decides whether that tick has run, so clock skew, restarts and late starts do not run it
    /// twice. Exits with 0 if the tick ran elsewhere. A host whose clock is fast waits for its
    /// tick. The lock is `cron:NAME`, and `leasehold cron status` shows the job.
    #[arg(long, value_name = "CRON", conflicts_with_all = ["shared", "exclusive", "slots"])]
    pub(crate) once_per: Option<String>,
    /// With --once-per: the time zone of the schedule [default: UTC]
    #[arg(long, value_name = "ZONE", requires = "once_per")]
    pub(crate) zone: Option<String>,
    /// With --once-per: how far this host's clock may be ahead [default: 5m, at most half a period]
    #[arg(long, value_name = "DURATION", value_parser = parse, requires = "once_per")]
    pub(crate) skew: Option<Duration>,
    /// With --once-per: if a run's host dies, do not run it again (`at-most-once`), or start it up
    /// to N times in all (`retry:N`)
    #[arg(long, value_name = "POLICY", value_parser = policy::parse_crash, requires = "once_per")]
    pub(crate) crash: Option<Crash>,
    /// With --once-per: skip ticks that no host ran in time (`skip`), or make up for them with one
    /// run (`once`) or up to N (`all:N`)
    #[arg(long, value_name = "POLICY", value_parser = policy::parse_missed, requires = "once_per")]
    pub(crate) missed: Option<Missed>,
    /// With --once-per: ticks during a run are skipped (`skip`), run after it (`queue`) or beside
    /// it (`allow:N`, N up to 64)
    #[arg(long, value_name = "POLICY", value_parser = policy::parse_overlap, requires = "once_per")]
    pub(crate) overlap: Option<Overlap>,
    /// The time between TERM and KILL [default: a third of the TTL, or of --max-hold if that is
    /// shorter; at most 5s]
    #[arg(long, value_name = "DURATION", value_parser = parse)]
    pub(crate) grace: Option<Duration>,
    /// The description that others see beside host and process [default: the command line]
    #[arg(long, value_name = "TEXT")]
    pub(crate) describe: Option<String>,
    /// Log each step on standard error
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Print no message if the lock is not acquired; only the exit code shows it
    #[arg(short, long, conflicts_with_all = ["verbose", "json"])]
    pub(crate) quiet: bool,
    /// Log each step on standard error as JSON, one object per line: waiting, acquired, lost,
    /// released, exit
    #[arg(long)]
    pub(crate) json: bool,
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
