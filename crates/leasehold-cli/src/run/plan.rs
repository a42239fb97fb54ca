//! The validated options of `leasehold run`.

use std::ffi::OsString;
use std::time::Duration;

use leasehold::clock::Instant;
use leasehold::{LockName, MAX_DESCRIPTION};

use super::loss_policy::{self, LossPolicy, OnLost};
use super::options::RunArgs;
use crate::exit::Failure;
use crate::output::{escape_control_chars, hide_passwords, shorten};

/// How `leasehold run` holds the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunMode {
    Exclusive,
    Shared,
    /// As one of at most this many holders.
    Slots(u32),
}

/// How long to wait for the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitLimit {
    /// Fail at once if the lock is not free.
    NoWait,
    AtMost(Duration),
    Unlimited,
}

/// How long a job's command may run, and how long its lock outlives this host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JobTimes {
    pub(crate) ttl: Duration,
    pub(crate) max_hold: Option<Duration>,
    /// The time between TERM and KILL.
    pub(crate) grace: Option<Duration>,
}

/// A run with validated options.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(super) name: LockName,
    pub(super) mode: RunMode,
    pub(super) wait_limit: WaitLimit,
    pub(super) ttl: Duration,
    pub(super) min_hold: Duration,
    pub(super) max_hold: Option<Duration>,
    pub(super) loss_policy: LossPolicy,
    pub(super) description: String,
    pub(super) command: Vec<OsString>,
    pub(super) conflict_exit_code: u8,
    /// Additional variables for the command's environment.
    pub(super) env: Vec<(OsString, OsString)>,
    /// Whether the command gets neither leasehold's standard input nor the terminal.
    pub(super) is_detached: bool,
}

impl Plan {
    /// Validates the options of `leasehold run`.
    pub(super) fn new(args: &RunArgs) -> Result<Self, Failure> {
        let min_hold = args.min_hold.unwrap_or_default();
        if args.max_hold.is_some_and(|max_hold| max_hold <= min_hold) {
            return Err(Failure::usage("--max-hold must be longer than --min-hold"));
        }
        let command = match &args.command {
            Some(string) => vec!["/bin/sh".into(), "-c".into(), string.clone()],
            None => args.cmd.clone(),
        };
        if command.is_empty() {
            return Err(Failure::usage("there is no command to run: give one after `--`, or a string with -c"));
        }
        let describe = match &args.describe {
            Some(text) => text.clone(),
            None => describe_command(args.command.as_ref().map_or(command.as_slice(), std::slice::from_ref)),
        };
        Ok(Self {
            name: LockName::new(&args.name)?,
            mode: match args.slots {
                Some(slots) => RunMode::Slots(slots),
                None if args.shared => RunMode::Shared,
                None => RunMode::Exclusive,
            },
            wait_limit: match args.wait {
                _ if args.nonblock => WaitLimit::NoWait,
                Some(Duration::ZERO) => WaitLimit::NoWait,
                Some(wait) => WaitLimit::AtMost(wait),
                None => WaitLimit::Unlimited,
            },
            ttl: args.ttl,
            min_hold,
            max_hold: args.max_hold,
            loss_policy: loss_policy::resolve_policy(args.on_lost, args.grace, args.ttl, args.max_hold)
                .map_err(Failure::usage)?,
            description: describe,
            command,
            conflict_exit_code: args.conflict_exit_code,
            env: Vec::new(),
            is_detached: false,
        })
    }

    /// The plan of a job's command; the scheduler acquires its lock.
    pub(crate) fn for_job(name: LockName, command: Vec<OsString>, times: JobTimes) -> Result<Self, String> {
        let JobTimes { ttl, max_hold, grace } = times;
        Ok(Self {
            name,
            mode: RunMode::Exclusive,
            wait_limit: WaitLimit::Unlimited,
            ttl,
            min_hold: Duration::ZERO,
            max_hold,
            loss_policy: loss_policy::resolve_policy(OnLost::Term, grace, ttl, max_hold)?,
            description: describe_command(&command),
            command,
            conflict_exit_code: 0,
            env: Vec::new(),
            is_detached: true,
        })
    }

    /// The description that others see beside the lock's holder.
    pub(crate) fn description(&self) -> &str {
        &self.description
    }

    /// The same plan with more variables for the command's environment.
    #[must_use]
    pub(crate) fn with_env<K: Into<OsString>, V: Into<OsString>>(
        mut self,
        more: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        self.env.extend(more.into_iter().map(|(key, value)| (key.into(), value.into())));
        self
    }

    /// When a hold that began at `started` reaches --max-hold; never without that option.
    pub(super) fn max_deadline(&self, started: Instant) -> Instant {
        self.max_hold.map_or(Instant::NEVER, |max_hold| started.saturating_add(max_hold))
    }
}

/// The command line as others may see it: without passwords and control characters, and shortened.
fn describe_command(command: &[OsString]) -> String {
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    let line = words.join(" ").replace(['\n', '\t'], " ");
    shorten(&escape_control_chars(&hide_passwords(&line)), MAX_DESCRIPTION).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_fits_the_librarys_limits() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        assert_eq!(describe_command(&words(&["make", "-j", "4"])), "make -j 4");
        assert_eq!(describe_command(&words(&["sh", "-c", "a\nb\u{1b}"])), "sh -c a b\\u{1b}");
        assert_eq!(describe_command(&words(&["x", "redis://u:pw@h"])), "x redis://u:***@h");
        assert!(describe_command(&words(&["é"; 400])).len() <= MAX_DESCRIPTION);
    }
}
