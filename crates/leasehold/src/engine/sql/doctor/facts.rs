//! The known facts of a database: plain data that the rules judge.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::super::config::Technique;
use super::super::{Dialect, error};

/// Why something is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum No {
    /// The server denies this user access to it.
    Denied(String),
    /// It is unreachable, or did not respond.
    Lost(String),
    /// The server does not reveal it.
    Missing(String),
    /// It was not asked because of another finding.
    Unasked(&'static str),
}

impl No {
    pub(super) fn missing(what: &str) -> Self {
        Self::Missing(format!("it does not tell {what}"))
    }

    pub(super) fn of(failure: &error::Failure, dialect: Dialect) -> Self {
        match (failure, failure.meaning(dialect)) {
            (error::Failure::Refused { code, said }, Some(error::Meaning::Denied)) => {
                Self::Denied(format!("{code}: {said}"))
            }
            (error::Failure::Refused { code, said }, _) => Self::Missing(format!("{code}: {said}")),
            (error::Failure::Unreachable(why) | error::Failure::Broken(why), _) => Self::Lost(why.clone()),
            (other, _) => Self::Missing(other.tell(dialect, "it").said()),
        }
    }
}

impl fmt::Display for No {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied(why) | Self::Lost(why) | Self::Missing(why) => f.write_str(why),
            Self::Unasked(why) => write!(f, "not asked, because {why}"),
        }
    }
}

/// A fact, or why it is not known.
pub(super) type Known<T> = Result<T, No>;

/// The user's requirements of the database.
#[derive(Clone, Debug)]
pub(super) struct Aim {
    pub(super) dialect: Dialect,
    pub(super) ttl: Duration,
    pub(super) technique: Technique,
    pub(super) connections: u64,
    /// `pooler=transaction`: nothing is kept or set in a session.
    pub(super) pooler: bool,
    /// Waiters poll: `wake=poll`.
    pub(super) polls: bool,
    pub(super) clock_skew: Duration,
    /// The command that prints the statements that create the tables.
    pub(super) ddl: String,
}

impl Aim {
    /// How often a lease is renewed.
    pub(super) fn renewal(&self) -> Duration {
        self.ttl / 3
    }

    /// Whether the lock belongs to a session, and ends with it.
    pub(super) fn is_held_in_session(&self) -> bool {
        self.technique != Technique::Row
    }
}

/// All facts.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) aim: Aim,
    pub(super) servers: Vec<Server>,
}

/// One server of the URL.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) address: String,
    pub(super) seen: Result<Seen, Closed>,
}

/// Why a server accepted no connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Closed {
    Away(String),
    Denied(String),
    NoDatabase(String),
    Crowded(String),
}

/// Names and values, from `SHOW VARIABLES`, `SHOW STATUS` or `pg_settings`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Values(pub(super) BTreeMap<String, String>);

impl Values {
    pub(super) fn text(&self, key: &str) -> Known<&str> {
        self.0.get(key).map(String::as_str).ok_or_else(|| No::missing(key))
    }

    /// A number; the integer part if it has a fraction.
    pub(super) fn number(&self, key: &str) -> Known<i64> {
        let text = self.text(key)?;
        text.split('.').next().unwrap_or_default().parse().map_err(|_| No::missing(key))
    }

    pub(super) fn is_on(&self, key: &str) -> Known<bool> {
        Ok(matches!(self.text(key)?.to_ascii_lowercase().as_str(), "on" | "1" | "yes" | "true"))
    }
}

/// The facts of a server that accepted a connection.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) version: Known<String>,
    pub(super) settings: Known<Values>,
    /// MySQL only: `SHOW GLOBAL STATUS`.
    pub(super) status: Known<Values>,
    /// The identity of the server, whatever its address.
    pub(super) identity: Known<String>,
    /// PostgreSQL only: whether it is a standby.
    pub(super) in_recovery: Known<bool>,
    /// The number of connections of all users.
    pub(super) in_use: Known<i64>,
    /// The number of connected replicas.
    pub(super) replicas: Known<i64>,
    /// The pooler or proxy before the server.
    pub(super) between: Known<Between>,
    pub(super) clock: Known<ClockGap>,
    pub(super) trips: Known<Trips>,
    /// The tables that the technique needs.
    pub(super) tables: Vec<Table>,
    /// The result of a lock that was acquired and rolled back.
    pub(super) trial: Known<()>,
    pub(super) rows: Known<Rows>,
}

impl Seen {
    pub(super) fn setting(&self, key: &str) -> Known<&str> {
        self.settings.as_ref().map_err(No::clone)?.text(key)
    }

    pub(super) fn number(&self, key: &str) -> Known<i64> {
        self.settings.as_ref().map_err(No::clone)?.number(key)
    }

    pub(super) fn is_on(&self, key: &str) -> Known<bool> {
        self.settings.as_ref().map_err(No::clone)?.is_on(key)
    }

    pub(super) fn status(&self, key: &str) -> Known<&str> {
        self.status.as_ref().map_err(No::clone)?.text(key)
    }

    /// Whether it is a node of a Galera cluster.
    pub(super) fn is_galera(&self) -> bool {
        self.is_on("wsrep_on") == Ok(true)
    }

    /// What makes the server read-only, if anything does.
    pub(super) fn read_only(&self, dialect: Dialect) -> Known<Option<String>> {
        if dialect == Dialect::Postgres {
            if self.in_recovery.clone()? {
                return Ok(Some("it is a standby (pg_is_in_recovery)".into()));
            }
            let marked = self.is_on("default_transaction_read_only") == Ok(true);
            return Ok(marked.then(|| "default_transaction_read_only is on".into()));
        }
        // Not every kind of server has all of these variables.
        let mut on = Vec::new();
        for key in ["read_only", "super_read_only", "innodb_read_only", "transaction_read_only", "tx_read_only"] {
            if self.is_on(key) == Ok(true) || self.setting(key).is_ok_and(|value| value.starts_with("READ_ONLY")) {
                on.push(key);
            }
        }
        self.setting("read_only")?;
        Ok((!on.is_empty()).then(|| format!("{} is on", on.join(", "))))
    }
}

/// The pooler or proxy before the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Between {
    Nothing,
    /// A pooler that may use another session for each transaction.
    Transactions,
    /// A proxy with this name.
    Proxy(&'static str),
}

/// The difference between a server's clock and ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClockGap {
    /// How many microseconds it is ahead of ours.
    pub(super) ahead: i64,
    /// The error of that: half of the shortest round trip.
    pub(super) error: Duration,
}

/// The durations of queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trips {
    pub(super) count: usize,
    pub(super) p50: Duration,
    pub(super) p99: Duration,
}

impl Trips {
    pub(super) fn of(mut times: Vec<Duration>) -> Option<Self> {
        times.sort_unstable();
        let at = |percent: usize| times.get((times.len() * percent / 100).min(times.len().saturating_sub(1)));
        Some(Self { count: times.len(), p50: *at(50)?, p99: *at(99)? })
    }
}

/// A table that the technique needs.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub(super) name: String,
    /// The columns that it needs besides its name.
    pub(super) wanted: &'static [&'static str],
    pub(super) found: Known<Found>,
}

/// The state of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It does not exist; whether we may create it.
    Missing {
        may_make: Known<()>,
    },
    There(Shape),
}

/// The definition of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Shape {
    /// InnoDB, or PostgreSQL's `relpersistence` as a word.
    pub(super) engine: String,
    pub(super) columns: Vec<Column>,
    /// Whether names are unique.
    pub(super) unique_name: bool,
}

impl Shape {
    pub(super) fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }
}

/// A column.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) name: String,
    /// `bigint`, `varbinary`, `text`, …
    pub(super) of: String,
    /// `utf8mb4_general_ci`, `C`; empty if it has none.
    pub(super) collation: String,
    /// PostgreSQL: whether its collation treats names with different bytes as equal.
    pub(super) is_loose: bool,
}

/// The content of the lease table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rows {
    /// How many rows were counted, at most [`Self::MOST`].
    pub(super) count: i64,
    /// How many rows have holders or waiters at present.
    pub(super) busy: i64,
    /// How many rows have holders or waiters that did not leave before their end.
    pub(super) ended: i64,
    /// How many rows claim an end later than any lease can last.
    pub(super) endless: i64,
    /// How many rows were read and parsed.
    pub(super) read: usize,
    /// Names of locks whose rows cannot be parsed, and why.
    pub(super) damaged: Vec<(String, &'static str)>,
}

impl Rows {
    pub(super) const MOST: i64 = 100_000;
    pub(super) const READ: usize = 500;
}
