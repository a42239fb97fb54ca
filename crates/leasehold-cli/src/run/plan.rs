//! The validated options of `leasehold run`.

use std::ffi::OsString;
use std::time::Duration;

use leasehold::clock::Moment;
use leasehold::{LockName, MAX_DESCRIPTION};

use super::lost::{self, OnLost, Rules};
use super::options::RunArgs;
use crate::exit::Failure;
use crate::output::{clean, hide_passwords, shorten};

/// How the lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Exclusive,
    Shared,
    Slots(u32),
}

/// How long to wait for the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    None,
    For(Duration),
    Forever,
}

/// How long a job's command may run, and how long its lock outlives us.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) ttl: Duration,
    pub(crate) max_hold: Option<Duration>,
    /// The time between TERM and KILL.
    pub(crate) grace: Option<Duration>,
}

/// A run with validated options.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(super) name: LockName,
    pub(super) how: How,
    pub(super) patience: Patience,
    pub(super) ttl: Duration,
    pub(super) min_hold: Duration,
    pub(super) max_hold: Option<Duration>,
    pub(super) rules: Rules,
    pub(super) describe: String,
    pub(super) command: Vec<OsString>,
    pub(super) conflict: u8,
    /// Additional variables for the command's environment.
    pub(super) env: Vec<(OsString, OsString)>,
    /// Whether the command gets neither our standard input nor the terminal.
    pub(super) detached: bool,
}

impl Plan {
    pub(super) fn new(args: &RunArgs) -> Result<Self, Failure> {
        let min_hold = args.min_hold.unwrap_or_default();
        if args.max_hold.is_some_and(|most| most <= min_hold) {
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
            None => description(args.command.as_ref().map_or(command.as_slice(), std::slice::from_ref)),
        };
        Ok(Self {
            name: LockName::new(&args.name)?,
            how: match args.slots {
                Some(slots) => How::Slots(slots),
                None if args.shared => How::Shared,
                None => How::Exclusive,
            },
            patience: match args.wait {
                _ if args.nonblock => Patience::None,
                Some(Duration::ZERO) => Patience::None,
                Some(wait) => Patience::For(wait),
                None => Patience::Forever,
            },
            ttl: args.ttl,
            min_hold,
            max_hold: args.max_hold,
            rules: lost::rules(args.on_lost, args.grace, args.ttl, args.max_hold).map_err(Failure::usage)?,
            describe,
            command,
            conflict: args.conflict_exit_code,
            env: Vec::new(),
            detached: false,
        })
    }

    /// The plan of a job's command; the scheduler acquires its lock.
    pub(crate) fn for_job(name: LockName, command: Vec<OsString>, times: Times) -> Result<Self, String> {
        let Times { ttl, max_hold, grace } = times;
        Ok(Self {
            name,
            how: How::Exclusive,
            patience: Patience::Forever,
            ttl,
            min_hold: Duration::ZERO,
            max_hold,
            rules: lost::rules(OnLost::Term, grace, ttl, max_hold)?,
            describe: description(&command),
            command,
            conflict: 0,
            env: Vec::new(),
            detached: true,
        })
    }

    /// The description that others see beside the lock's holder.
    pub(crate) fn description(&self) -> &str {
        &self.describe
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

    /// When a hold that began at `started` reaches --max-hold.
    pub(super) fn cap(&self, started: Moment) -> Moment {
        self.max_hold.map_or(Moment::NEVER, |most| started.after(most))
    }
}

/// The command line as others may see it: without passwords and control characters, and shortened.
fn description(command: &[OsString]) -> String {
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    let line = words.join(" ").replace(['\n', '\t'], " ");
    shorten(&clean(&hide_passwords(&line)), MAX_DESCRIPTION).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_is_what_the_library_takes() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        assert_eq!(description(&words(&["make", "-j", "4"])), "make -j 4");
        assert_eq!(description(&words(&["sh", "-c", "a\nb\u{1b}"])), "sh -c a b\\u{1b}");
        assert_eq!(description(&words(&["x", "redis://u:pw@h"])), "x redis://u:***@h");
        assert!(description(&words(&["é"; 400])).len() <= MAX_DESCRIPTION);
    }
}
