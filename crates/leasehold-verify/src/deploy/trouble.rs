//! Why a deployment could not do what was asked.

use std::fmt;

/// What went wrong, in words for the user. It never has a password in it.
#[derive(Clone, PartialEq, Eq)]
pub struct Trouble {
    words: String,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Of the machine, or of servers that did not do what they were told.
    Passing,
    /// What was asked for cannot be had.
    Usage,
    /// A worker crashed, or did not end: those are leasehold itself.
    Workers,
}

impl Trouble {
    pub(crate) fn new(words: impl Into<String>) -> Self {
        Self { words: words.into(), kind: Kind::Passing }
    }

    /// What was asked for cannot be had.
    pub(crate) fn usage(words: impl Into<String>) -> Self {
        Self { words: words.into(), kind: Kind::Usage }
    }

    /// A worker did not do as it should.
    pub(crate) fn of_workers(words: impl Into<String>) -> Self {
        Self { words: words.into(), kind: Kind::Workers }
    }

    /// Whether it would be the same another time: what was asked for must change.
    pub fn is_usage(&self) -> bool {
        self.kind == Kind::Usage
    }

    /// Whether it says nothing of the engine, and may not come again.
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
