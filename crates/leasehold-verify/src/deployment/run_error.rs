//! Why a test run could not start or complete.

use std::fmt;

/// Why a test run could not start or complete, as a message for the user without passwords.
#[derive(Clone, PartialEq, Eq)]
pub struct RunError {
    message: String,
    kind: RunErrorKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RunErrorKind {
    /// The machine, or a server under a command of the test, failed: no defect of leasehold.
    Transient,
    /// What the user requested is impossible.
    Usage,
    /// A worker crashed or did not exit: a defect of leasehold.
    Worker,
    /// Anything else. It may be a defect of leasehold, which a retry must not hide.
    Other,
}

impl RunError {
    /// An error that may be a defect of leasehold, so it is not retried.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), kind: RunErrorKind::Other }
    }

    /// An error of the machine or of a server, and not of leasehold.
    pub(crate) fn transient(message: impl Into<String>) -> Self {
        Self { message: message.into(), kind: RunErrorKind::Transient }
    }

    /// An error because what the user requested is impossible.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), kind: RunErrorKind::Usage }
    }

    /// An error because a worker crashed or did not exit.
    pub(crate) fn worker(message: impl Into<String>) -> Self {
        Self { message: message.into(), kind: RunErrorKind::Worker }
    }

    /// Whether the user must change the request, because a retry would fail again.
    pub fn is_usage(&self) -> bool {
        self.kind == RunErrorKind::Usage
    }

    /// Whether the machine or a server was the cause, so that a retry may succeed.
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
        write!(f, "RunError({})", self.message)
    }
}

impl std::error::Error for RunError {}

/// The testbed starts and stops the servers, and contains no code under test: its errors are
/// transient.
impl From<leasehold_testbed::Error> for RunError {
    fn from(error: leasehold_testbed::Error) -> Self {
        Self::transient(error.to_string())
    }
}
