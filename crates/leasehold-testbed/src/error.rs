//! The one error of this crate: each message says what happened and what to do about it.

use std::{fmt, io, path::PathBuf, process::ExitStatus, time::Duration};

/// What the testbed's functions return.
pub type Result<T> = std::result::Result<T, Error>;

/// Why the testbed could not do what a test asked of it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A program or file that comes with a Debian package is not on this machine.
    NotInstalled {
        /// The program or file that was looked for.
        binary: String,
        /// The Debian package that has it.
        package: String,
    },
    /// A server should run as a user that does not exist here.
    UnknownUser {
        /// The user that was looked for in `/etc/passwd`.
        user: String,
        /// The Debian package that creates the user.
        package: String,
    },
    /// The operating system refused something.
    Io {
        /// What was being done.
        action: String,
        /// Why it was refused.
        source: io::Error,
    },
    /// A program ended when it should have gone on, or ended badly.
    Exited {
        /// The program.
        program: String,
        /// How it ended.
        status: ExitStatus,
        /// The end of what it printed.
        log: String,
    },
    /// A process that has ended was asked to do something.
    NotRunning {
        /// The program.
        program: String,
    },
    /// Something did not come about within its bound.
    TimedOut {
        /// What was waited for.
        awaited: String,
        /// How long it was waited for.
        bound: Duration,
        /// What was seen instead.
        observed: String,
    },
    /// A server answered a request of the testbed itself with an error.
    Refused {
        /// What was asked for.
        request: String,
        /// What the server said.
        answer: String,
    },
    /// The other side said something that the protocol does not allow.
    Protocol {
        /// Who spoke.
        peer: String,
        /// What was wrong.
        problem: String,
    },
}

impl Error {
    /// For [`ServerSpec`](crate::process::ServerSpec)s: the program or file is missing and comes with this package.
    pub fn not_installed(file: impl Into<PathBuf>, package: &str) -> Self {
        Self::NotInstalled { binary: file.into().display().to_string(), package: package.to_owned() }
    }

    /// For `map_err`: puts what was being done in front of an [`io::Error`].
    pub fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = action.into();
        move |source| Self::Io { action: doing, source }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotInstalled { binary, package } => write!(
                f,
                "{binary} is not installed; it is in the Debian package `{package}`: \
                 apt-get install {package}"
            ),
            Self::UnknownUser { user, package } => write!(
                f,
                "there is no user {user} to run the server as; the Debian package `{package}` \
                 creates it: apt-get install {package}"
            ),
            Self::Io { action: doing, source } => write!(f, "{doing}: {source}"),
            Self::Exited { program, status, log } => write!(f, "{program} ended: {status}; its last words:\n{log}"),
            Self::NotRunning { program } => {
                write!(f, "{program} is not running: it ended or was killed; restart it first")
            }
            Self::TimedOut { awaited, bound, observed: seen } => {
                write!(f, "no {awaited} within {bound:?}; seen instead: {seen}")
            }
            Self::Refused { request, answer } => write!(f, "{request} was refused: {answer}"),
            Self::Protocol { peer, problem } => write!(f, "{peer} broke the protocol: {problem}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
