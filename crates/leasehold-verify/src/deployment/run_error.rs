//! Why a deployment failed to do what was requested.

use std::fmt;

/// An error message for the user. It never contains a password.
#[derive(Clone, PartialEq, Eq)]
pub struct RunError {
    message: String,
    kind: RunErrorKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RunErrorKind {
    /// A problem of the machine, or of servers that did not obey a command. It says nothing about
    /// leasehold.
    Transient,
    /// The request cannot be fulfilled.
    Usage,
    /// A worker crashed, or did not exit: a defect of leasehold itself.
    Worker,
    /// Anything else. It may be a defect, so that a retry must not hide it.
    Other,
}

impl RunError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), kind: RunErrorKind::Other }
    }

    /// The machine or the servers failed before or during the run, and not leasehold.
    pub(crate) fn transient(message: impl Into<String>) -> Self {
        Self { message: message.into(), kind: RunErrorKind::Transient }
    }

    /// The request cannot be fulfilled.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), kind: RunErrorKind::Usage }
    }

    /// A worker failed.
    pub(crate) fn worker(message: impl Into<String>) -> Self {
        Self { message: message.into(), kind: RunErrorKind::Worker }
    }

    /// Whether a retry would fail again: the request must change.
    pub fn is_usage(&self) -> bool {
        self.kind == RunErrorKind::Usage
    }

    /// Whether it may not recur, and shows nothing about the engine.
    pub fn is_transient(&self) -> bool {
        self.kind == RunErrorKind::Transient
    }
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trouble({})", self.message)
    }
}

impl std::error::Error for RunError {}

/// The testbed starts and stops the servers, and contains no code that is under test.
impl From<leasehold_testbed::Error> for RunError {
    fn from(error: leasehold_testbed::Error) -> Self {
        Self::transient(error.to_string())
    }
}
