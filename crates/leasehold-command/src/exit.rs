//! Exit codes, and the message of a failed command.

use leasehold::{Error, ErrorKind};

/// Another process holds the lock, or the wait for it timed out (unless `-E` sets another code).
pub const CONFLICT: u8 = 1;
/// The command line, a name, a URL or a duration is wrong (`EX_USAGE`).
pub const USAGE: u8 = 64;
/// The engine cannot be used (`EX_UNAVAILABLE`).
pub const UNAVAILABLE: u8 = 69;
/// The operating system refused a resource that the command needs (`EX_OSERR`).
pub const SYSTEM: u8 = 71;
/// The output could not be written (`EX_IOERR`).
pub const OUTPUT: u8 = 74;
/// The lock was lost, or the waiting claim was force released (`EX_TEMPFAIL`).
pub const LOST: u8 = 75;
/// The command was found but could not be run.
pub const NOT_EXECUTABLE: u8 = 126;
/// The command was not found.
pub const NOT_FOUND: u8 = 127;

/// The exit code that a shell reports for a process ended by a signal.
pub fn signal_exit_code(number: i32) -> u8 {
    u8::try_from(128 + number).unwrap_or(u8::MAX)
}

/// Why a command failed: its exit code, and what it prints.
#[derive(Debug)]
pub struct Failure {
    /// The exit code of the process.
    pub code: u8,
    /// The kind of failure as a stable word for `--json`, such as `usage`, `timeout` or `lost`.
    pub kind: &'static str,
    /// The message for people; empty to print nothing.
    pub message: String,
}

impl Failure {
    /// A failure with this exit code.
    pub fn new(code: u8, kind: &'static str, message: impl Into<String>) -> Self {
        Self { code, kind, message: message.into() }
    }

    /// A failure with code 64: the command line, a name, a URL or a duration is wrong.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, "usage", message)
    }

    /// A failure with code 71: a system call failed. `action` says what failed: `cannot read the
    /// answer`.
    pub fn system(action: &str, error: impl std::fmt::Display) -> Self {
        Self::new(SYSTEM, "system", format!("{action}: {error}"))
    }

    /// The exit code for an error of the library.
    pub fn exit_code(kind: ErrorKind) -> u8 {
        match kind {
            ErrorKind::InvalidUrl
            | ErrorKind::UnknownScheme
            | ErrorKind::FeatureDisabled
            | ErrorKind::InvalidName
            | ErrorKind::InvalidOption
            | ErrorKind::Unsupported => USAGE,
            ErrorKind::Timeout | ErrorKind::Conflict => CONFLICT,
            ErrorKind::Lost | ErrorKind::ForceReleased => LOST,
            // Unreachable, denied, corrupt, full, and kinds that the library may add: the engine is
            // unusable in its present state.
            _ => UNAVAILABLE,
        }
    }

    /// The same failure with the engine's URL (without secrets) added, unless the message names the
    /// engine already.
    #[must_use]
    pub fn with_engine(mut self, url: &str) -> Self {
        /// The kinds of failures that concern an engine; all others are about the command line or
        /// this host.
        const ENGINE_ERROR_KINDS: [&str; 11] = [
            "unavailable",
            "denied",
            "corrupt",
            "unknown-format",
            "full",
            "timeout",
            "conflict",
            "lost",
            "force-released",
            "unsupported",
            "closed",
        ];
        if ENGINE_ERROR_KINDS.contains(&self.kind) && !self.message.contains(host_or_path(url)) {
            self.message.push_str(&format!(" (engine {url})"));
        }
        self
    }

    /// A failure with code 0 and no message, for output whose reader has closed its pipe.
    pub fn closed_pipe() -> Self {
        Self::new(0, "closed-pipe", "")
    }
}

/// The part of an engine's URL that an error names: its hosts, without user and password, or the
/// path of `file:`. If both are empty, the whole URL.
fn host_or_path(url: &str) -> &str {
    let (_, rest) = url.split_once(':').unwrap_or(("", url));
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    let rest = rest.split('?').next().unwrap_or_default();
    let hosts = if rest.starts_with('/') { rest } else { rest.split('/').next().unwrap_or_default() };
    let hosts = hosts.rsplit('@').next().unwrap_or_default();
    if hosts.is_empty() { url } else { hosts }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(Self::exit_code(error.kind()), error.kind().as_str(), error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_its_engine_exactly_once() {
        let failure = |kind, message: &str| Failure::from(Error::new(kind, message));
        let full = failure(ErrorKind::Full, "no memory left").with_engine("redis://u:***@db1:6379/0?x=1");
        assert_eq!(full.message, "no memory left (engine redis://u:***@db1:6379/0?x=1)");
        let unreachable = failure(ErrorKind::Unavailable, "db1:6379 cannot be reached");
        assert_eq!(unreachable.with_engine("redis://u:***@db1:6379/0").message, "db1:6379 cannot be reached");
        let folder = failure(ErrorKind::Denied, "cannot write /var/lib/locks/x");
        assert_eq!(folder.with_engine("file:///var/lib/locks").message, "cannot write /var/lib/locks/x");
        assert_eq!(failure(ErrorKind::Full, "no room").with_engine("file:").message, "no room (engine file:)");
        assert_eq!(Failure::usage("no command").with_engine("file:").message, "no command");
    }

    #[test]
    fn every_error_kind_has_its_documented_exit_code() {
        for (kind, code) in [
            (ErrorKind::InvalidName, 64),
            (ErrorKind::UnknownScheme, 64),
            (ErrorKind::FeatureDisabled, 64),
            (ErrorKind::Timeout, 1),
            (ErrorKind::Conflict, 1),
            (ErrorKind::Unavailable, 69),
            (ErrorKind::Denied, 69),
            (ErrorKind::Corrupt, 69),
            (ErrorKind::UnknownFormat, 69),
            (ErrorKind::Full, 69),
            (ErrorKind::Lost, 75),
            (ErrorKind::ForceReleased, 75),
        ] {
            assert_eq!(Failure::from(Error::new(kind, "x")).code, code, "{kind:?}");
        }
        assert_eq!((signal_exit_code(15), signal_exit_code(9)), (143, 137));
    }
}
