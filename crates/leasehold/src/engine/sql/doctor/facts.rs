//! What is known of a database: plain data, which the rules judge.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::super::config::Technique;
use super::super::{Dialect, error};

/// Why something is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum No {
    /// The server does not let this user see it.
    Denied(String),
    /// It cannot be reached, or did not answer.
    Lost(String),
    /// It does not tell this.
    Missing(String),
    /// It was not asked, because of something else that was found.
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

/// What the user wants of the database.
#[derive(Clone, Debug)]
pub(super) struct Aim {
    pub(super) dialect: Dialect,
    pub(super) ttl: Duration,
    pub(super) technique: Technique,
    pub(super) connections: u64,
    /// `pooler=transaction`: nothing is kept in a session, and nothing set there.
    pub(super) pooler: bool,
    /// Waiters look by themselves: `wake=poll`.
    pub(super) polls: bool,
    pub(super) clock_skew: Duration,
    /// The command that shows how the tables are made.
    pub(super) ddl: String,
}

impl Aim {
    /// How often a lease is renewed.
    pub(super) fn renewal(&self) -> Duration {
        self.ttl / 3
    }

    /// Whether the lock lives in a session, and ends with it.
    pub(super) fn is_held_in_session(&self) -> bool {
        self.technique != Technique::Row
    }
}

/// All of it.
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

/// Why a server let nobody in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Closed {
    Away(String),
    Denied(String),
    NoDatabase(String),
    Crowded(String),
}

/// Names and their values, as `SHOW VARIABLES`, `SHOW STATUS` or `pg_settings` have them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Values(pub(super) BTreeMap<String, String>);

impl Values {
    pub(super) fn text(&self, key: &str) -> Known<&str> {
        self.0.get(key).map(String::as_str).ok_or_else(|| No::missing(key))
    }

    /// A number; of one with a fraction, the whole part.
    pub(super) fn number(&self, key: &str) -> Known<i64> {
        let text = self.text(key)?;
        text.split('.').next().unwrap_or_default().parse().map_err(|_| No::missing(key))
    }

    pub(super) fn is_on(&self, key: &str) -> Known<bool> {
        Ok(matches!(self.text(key)?.to_ascii_lowercase().as_str(), "on" | "1" | "yes" | "true"))
    }
}

/// What a server that let us in is like.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) version: Known<String>,
    pub(super) settings: Known<Values>,
    /// MySQL only: `SHOW GLOBAL STATUS`.
    pub(super) status: Known<Values>,
    /// Which server it is, whatever its address.
    pub(super) identity: Known<String>,
    /// PostgreSQL only: whether it is a standby.
    pub(super) in_recovery: Known<bool>,
    /// How many connections there are, of all users.
    pub(super) in_use: Known<i64>,
    /// How many replicas take what it writes.
    pub(super) replicas: Known<i64>,
    /// What stands between us and the server.
    pub(super) between: Known<Between>,
    pub(super) clock: Known<ClockGap>,
    pub(super) trips: Known<Trips>,
    /// The tables that the technique needs.
    pub(super) tables: Vec<Table>,
    /// A lock that was taken and rolled back.
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

    /// What keeps it from taking writes, if anything does.
    pub(super) fn read_only(&self, dialect: Dialect) -> Known<Option<String>> {
        if dialect == Dialect::Postgres {
            if self.in_recovery.clone()? {
                return Ok(Some("it is a standby (pg_is_in_recovery)".into()));
            }
            let marked = self.is_on("default_transaction_read_only") == Ok(true);
            return Ok(marked.then(|| "default_transaction_read_only is on".into()));
        }
        // Not each of them is in each kind of server.
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

/// What stands between us and the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Between {
    Nothing,
    /// A pooler that gives each transaction another session.
    Transactions,
    /// A proxy of this name.
    Proxy(&'static str),
}

/// How far a server's clock is from ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClockGap {
    /// Microseconds that it is ahead of ours.
    pub(super) ahead: i64,
    /// How wrong that may be: half of the shortest round trip.
    pub(super) error: Duration,
}

/// How long answers took.
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
    /// The columns that it should have besides its name.
    pub(super) wanted: &'static [&'static str],
    pub(super) found: Known<Found>,
}

/// What is there of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing, and whether we may make it.
    Missing {
        may_make: Known<()>,
    },
    There(Shape),
}

/// How a table is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Shape {
    /// InnoDB, or PostgreSQL's `relpersistence` in words.
    pub(super) engine: String,
    pub(super) columns: Vec<Column>,
    /// Whether there can be but one row of a name.
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
    /// PostgreSQL: whether its collation takes names of different bytes for the same.
    pub(super) is_loose: bool,
}

/// What the lease table has in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rows {
    /// How many were counted, of at most [`Self::MOST`].
    pub(super) count: i64,
    /// How many have somebody in them at present.
    pub(super) busy: i64,
    /// How many have somebody in them who did not leave before the end.
    pub(super) ended: i64,
    /// How many say that somebody is there for longer than any lease lasts.
    pub(super) endless: i64,
    /// Of how many it was looked at what they say.
    pub(super) read: usize,
    /// Names of locks whose rows cannot be understood, and why.
    pub(super) damaged: Vec<(String, &'static str)>,
}

impl Rows {
    pub(super) const MOST: i64 = 100_000;
    pub(super) const READ: usize = 500;
}
