//! The error of this crate: each message states what happened and what to do.

use std::{fmt, io, path::PathBuf, process::ExitStatus, time::Duration};

/// The result of the testbed's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// Why the testbed could not fulfil a test's request.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A program or file of a Debian package is missing on this machine.
    NotInstalled {
        /// The missing program or file.
        binary: String,
        /// The Debian package that has it.
        package: String,
    },
    /// A server should run as a user that does not exist here.
    UnknownUser {
        /// The user that is missing in `/etc/passwd`.
        user: String,
        /// The Debian package that creates the user.
        package: String,
    },
    /// The operating system refused an action.
    Io {
        /// What the testbed was doing, such as `starting redis-server`.
        action: String,
        /// Why the operating system refused it.
        source: io::Error,
    },
    /// A program ended unexpectedly, or with an error.
    Exited {
        /// The program that ended.
        program: String,
        /// The exit status of the program.
        status: ExitStatus,
        /// The end of its output.
        log: String,
    },
    /// An action needs a running process, and it has ended.
    NotRunning {
        /// The program that has ended.
        program: String,
    },
    /// A condition did not hold within its bound.
    TimedOut {
        /// The awaited condition, as a noun: `reply of a Sentinel`.
        awaited: String,
        /// The time limit.
        bound: Duration,
        /// What the last check observed instead.
        observed: String,
    },
    /// A server refused a request of the testbed.
    Refused {
        /// The request that was refused.
        request: String,
        /// The server's error message.
        answer: String,
    },
    /// The peer violated the protocol.
    Protocol {
        /// The server or process that violated it.
        peer: String,
        /// What was wrong in its reply.
        problem: String,
    },
}

impl Error {
    /// For [`ServerSpec`](crate::process::ServerSpec)s: the program or file is missing and comes
    /// with this package.
    pub fn not_installed(file: impl Into<PathBuf>, package: &str) -> Self {
        Self::NotInstalled { binary: file.into().display().to_string(), package: package.to_owned() }
    }

    /// For `map_err`: adds the action to an [`io::Error`].
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
            Self::Exited { program, status, log } => {
                write!(f, "{program} ended: {status}; the end of its output:\n{log}")
            }
            Self::NotRunning { program } => {
                write!(f, "{program} is not running: it ended or was killed; restart it first")
            }
            Self::TimedOut { awaited, bound, observed: seen } => {
                write!(f, "no {awaited} within {bound:?}; last observation: {seen}")
            }
            Self::Refused { request, answer } => write!(f, "{request} was refused: {answer}"),
            Self::Protocol { peer, problem } => write!(f, "{peer} violated the protocol: {problem}"),
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
