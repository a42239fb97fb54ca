//! Why a deployment failed to do what was requested.

use std::fmt;

/// An error message for the user. It never contains a password.
#[derive(Clone, PartialEq, Eq)]
pub struct Trouble {
    words: String,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A problem of the machine, or of servers that did not do what they were ordered to.
    Passing,
    /// The request cannot be fulfilled.
    Usage,
    /// A worker crashed, or did not exit: a fault of leasehold itself.
    Workers,
}

impl Trouble {
    pub(crate) fn new(words: impl Into<String>) -> Self {
        Self { words: words.into(), kind: Kind::Passing }
    }

    /// The request cannot be fulfilled.
    pub(crate) fn usage(words: impl Into<String>) -> Self {
        Self { words: words.into(), kind: Kind::Usage }
    }

    /// A worker failed.
    pub(crate) fn of_workers(words: impl Into<String>) -> Self {
        Self { words: words.into(), kind: Kind::Workers }
    }

    /// Whether a retry would fail again: the request must change.
    pub fn is_usage(&self) -> bool {
        self.kind == Kind::Usage
    }

    /// Whether it proves nothing about the engine, and may not recur.
    pub fn is_passing(&self) -> bool {
        self.kind == Kind::Passing
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl fmt::Debug for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trouble({})", self.words)
    }
}

impl std::error::Error for Trouble {}

impl From<leasehold_testbed::Error> for Trouble {
    fn from(error: leasehold_testbed::Error) -> Self {
        Self::new(error.to_string())
    }
}
