//! Queries to one server, each with a timeout. A refusal is an answer like any other.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind as Native, FromRedisValue};

use super::super::config::Config;
use super::super::error::plain;
use crate::clock::Clock;

/// A server that does not answer a small query within this time counts as unreachable.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why something is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum No {
    /// The server, or a proxy before it, refuses: a missing permission, an unknown command, the
    /// server's state.
    Refused(String),
    /// It did not respond.
    Lost(String),
}

impl No {
    pub(crate) fn missing(what: &str) -> Self {
        Self::Refused(format!("it does not tell {what}"))
    }
}

impl fmt::Display for No {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) | Self::Lost(why) => f.write_str(why),
        }
    }
}

/// A fact, or why it is not known.
pub(crate) type Known<T> = Result<T, No>;

/// A connection for queries. After a timeout it is not used again: the report must come to an end.
#[derive(Clone)]
pub(crate) struct Link {
    connection: MultiplexedConnection,
    clock: Clock,
    lost: Arc<OnceLock<String>>,
}

impl Link {
    pub(crate) fn new(config: &Config, connection: MultiplexedConnection) -> Self {
        Self { connection, clock: config.clock.clone(), lost: Arc::default() }
    }

    fn lose(&self, why: String) -> No {
        No::Lost(self.lost.get_or_init(|| why).clone())
    }
}

/// Sends a command and waits for its answer.
pub(crate) async fn ask<T: FromRedisValue>(link: &Link, command: &Cmd) -> Known<T> {
    if let Some(why) = link.lost.get() {
        return Err(No::Lost(why.clone()));
    }
    let mut connection = link.connection.clone();
    match link.clock.timeout(PATIENCE, command.query_async(&mut connection)).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(match error.kind() {
            Native::Server(_) | Native::Extension => No::Refused(plain(&error)),
            Native::Parse | Native::UnexpectedReturnType => {
                No::Refused(format!("it answered something that is not understood ({})", plain(&error)))
            }
            _ => link.lose(plain(&error)),
        }),
        Err(_) => Err(link.lose(format!("no answer within {PATIENCE:?}"))),
    }
}

/// A command with these words.
pub(crate) fn words(words: &[&str]) -> Cmd {
    let mut command = Cmd::new();
    command.arg(words);
    command
}
