//! The known facts of a database: plain data that the rules judge.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use leasehold_internals::sql::config::Technique;
use leasehold_internals::sql::{Dialect, error};

/// Why a fact about a server is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum UnknownReason {
    /// The server denies this user access to the fact.
    Denied(String),
    /// The server is unreachable, or did not respond.
    Unreachable(String),
    /// The server responded without the fact; the text says more.
    NotReported(String),
    /// The server was not asked, because of another finding.
    Skipped(&'static str),
}

impl UnknownReason {
    /// The server responded without `what`.
    pub(super) fn not_reported(what: &str) -> Self {
        Self::NotReported(format!("it does not report {what}"))
    }

    /// The reason that follows from a failed query.
    pub(super) fn from_failure(failure: &error::Failure, dialect: Dialect) -> Self {
        match (failure, failure.class(dialect)) {
            (error::Failure::Refused { code, message: reason }, Some(error::ErrorClass::Denied)) => {
                Self::Denied(format!("{code}: {reason}"))
            }
            (error::Failure::Refused { code, message: reason }, _) => Self::NotReported(format!("{code}: {reason}")),
            (error::Failure::Unreachable(why) | error::Failure::ConnectionLost(why), _) => {
                Self::Unreachable(why.clone())
            }
            (other, _) => Self::NotReported(other.to_error(dialect, "it").message_without_location()),
        }
    }
}

impl fmt::Display for UnknownReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied(why) | Self::Unreachable(why) | Self::NotReported(why) => f.write_str(why),
            Self::Skipped(why) => write!(f, "not examined, because {why}"),
        }
    }
}

/// A fact, or why it is not known.
pub(super) type Fact<T> = Result<T, UnknownReason>;

/// What the URL and the options of the examination demand of the servers.
#[derive(Clone, Debug)]
pub(super) struct Requirements {
    pub(super) dialect: Dialect,
    /// The TTL that the locks will have.
    pub(super) ttl: Duration,
    pub(super) technique: Technique,
    /// How many connections each program uses, at most.
    pub(super) connections: u64,
    /// `pooler=transaction`: the engine relies on no session state.
    pub(super) has_transaction_pooler: bool,
    /// Waiters poll: `wake=poll`.
    pub(super) is_polling: bool,
    /// `clock-skew=`: how far the servers' clocks may differ.
    pub(super) clock_skew: Duration,
    /// The command that prints the statements that create the tables.
    pub(super) ddl_command: String,
}

impl Requirements {
    /// The time between two renewals of a lease.
    pub(super) fn renewal_interval(&self) -> Duration {
        self.ttl / 3
    }

    /// Whether the lock belongs to a session, and ends with it.
    pub(super) fn is_held_in_session(&self) -> bool {
        self.technique != Technique::Row
    }
}

/// All that is known of the servers of the URL.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) requirements: Requirements,
    pub(super) servers: Vec<Server>,
}

/// One server of the URL.
#[derive(Clone, Debug)]
pub(super) struct Server {
    /// `host:port`.
    pub(super) address: String,
    pub(super) facts: Result<ServerFacts, ConnectFailure>,
}

/// Why a server accepted no connection, with its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ConnectFailure {
    Unreachable(String),
    Denied(String),
    NoDatabase(String),
    TooManyConnections(String),
}

/// Names and values, from `SHOW VARIABLES`, `SHOW STATUS` or `pg_settings`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Values(pub(super) BTreeMap<String, String>);

impl Values {
    /// The value of this name.
    pub(super) fn text(&self, key: &str) -> Fact<&str> {
        self.0.get(key).map(String::as_str).ok_or_else(|| UnknownReason::not_reported(key))
    }

    /// The value of this name as a number; its integer part if it has a fraction.
    pub(super) fn number(&self, key: &str) -> Fact<i64> {
        let text = self.text(key)?;
        text.split('.').next().unwrap_or_default().parse().map_err(|_| UnknownReason::not_reported(key))
    }

    /// Whether the value of this name is `on`, `1`, `yes` or `true`.
    pub(super) fn is_on(&self, key: &str) -> Fact<bool> {
        Ok(matches!(self.text(key)?.to_ascii_lowercase().as_str(), "on" | "1" | "yes" | "true"))
    }
}

/// The facts of a server that accepted a connection.
#[derive(Clone, Debug)]
pub(super) struct ServerFacts {
    pub(super) version: Fact<String>,
    /// `SHOW GLOBAL VARIABLES`, or `pg_settings`.
    pub(super) settings: Fact<Values>,
    /// MySQL only: `SHOW GLOBAL STATUS`.
    pub(super) status: Fact<Values>,
    /// What identifies the server, whatever address it is reached by.
    pub(super) identity: Fact<String>,
    /// PostgreSQL only: whether it is a standby.
    pub(super) is_in_recovery: Fact<bool>,
    /// The number of connections of all users.
    pub(super) in_use: Fact<i64>,
    /// The number of connected replicas.
    pub(super) replicas: Fact<i64>,
    /// The pooler or proxy before the server.
    pub(super) intermediary: Fact<Intermediary>,
    /// The server's clock compared with this host's.
    pub(super) clock: Fact<ClockOffset>,
    pub(super) round_trips: Fact<RoundTrips>,
    /// The tables that the technique needs.
    pub(super) tables: Vec<Table>,
    /// Whether a lock could be acquired, in a transaction that was rolled back.
    pub(super) dry_run: Fact<()>,
    /// The content of the lease table.
    pub(super) row_stats: Fact<RowStats>,
}

impl ServerFacts {
    /// The value of a setting.
    pub(super) fn setting(&self, key: &str) -> Fact<&str> {
        self.settings.as_ref().map_err(UnknownReason::clone)?.text(key)
    }

    /// The value of a setting, as a number.
    pub(super) fn number(&self, key: &str) -> Fact<i64> {
        self.settings.as_ref().map_err(UnknownReason::clone)?.number(key)
    }

    /// Whether a setting is on.
    pub(super) fn is_on(&self, key: &str) -> Fact<bool> {
        self.settings.as_ref().map_err(UnknownReason::clone)?.is_on(key)
    }

    /// A value of `SHOW GLOBAL STATUS`; MySQL only.
    pub(super) fn status(&self, key: &str) -> Fact<&str> {
        self.status.as_ref().map_err(UnknownReason::clone)?.text(key)
    }

    /// Whether it is a node of a Galera cluster.
    pub(super) fn is_galera(&self) -> bool {
        self.is_on("wsrep_on") == Ok(true)
    }

    /// The settings or the state that make the server read-only; `None` if it accepts writes.
    pub(super) fn read_only_reason(&self, dialect: Dialect) -> Fact<Option<String>> {
        if dialect == Dialect::Postgres {
            if self.is_in_recovery.clone()? {
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

/// What is between this client and the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Intermediary {
    /// Nothing: the server itself answers.
    Direct,
    /// A pooler that may use another session for each transaction.
    TransactionPooler,
    /// A proxy with this name.
    Proxy(&'static str),
}

/// The difference between a server's clock and this host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClockOffset {
    /// How many microseconds the server's clock is ahead of this host's; negative if it is behind.
    pub(super) ahead: i64,
    /// How wrong `ahead` may be: half of the shortest round trip.
    pub(super) error: Duration,
}

/// The measured durations of queries to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RoundTrips {
    pub(super) count: usize,
    pub(super) p50: Duration,
    pub(super) p99: Duration,
}

impl RoundTrips {
    /// Sums up measured durations; `None` without any.
    pub(super) fn from_samples(mut times: Vec<Duration>) -> Option<Self> {
        times.sort_unstable();
        let at = |percent: usize| times.get((times.len() * percent / 100).min(times.len().saturating_sub(1)));
        Some(Self { count: times.len(), p50: *at(50)?, p99: *at(99)? })
    }
}

/// A table that the technique needs.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub(super) name: String,
    /// The columns that it needs besides `name`.
    pub(super) required_columns: &'static [&'static str],
    pub(super) state: Fact<TableState>,
}

/// The state of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TableState {
    /// The table does not exist.
    Missing {
        /// Whether this user may create it.
        can_create: Fact<()>,
    },
    Exists(TableDefinition),
}

/// The definition of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TableDefinition {
    /// MySQL: the storage engine, such as `InnoDB`. PostgreSQL: the kind of table, such as
    /// `ordinary` or `UNLOGGED`.
    pub(super) engine: String,
    pub(super) columns: Vec<Column>,
    /// Whether the column `name` alone has a unique key.
    pub(super) is_name_unique: bool,
}

impl TableDefinition {
    pub(super) fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }
}

/// A column of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) name: String,
    /// `bigint`, `varbinary`, `text`, …
    pub(super) data_type: String,
    /// `utf8mb4_general_ci`, `C`; empty if it has none.
    pub(super) collation: String,
    /// Whether comparisons treat values with different bytes as equal.
    pub(super) has_loose_collation: bool,
}

/// Counts of the rows of the lease table, each of which is one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RowStats {
    /// How many rows were counted, at most [`Self::MAX_COUNTED`].
    pub(super) count: i64,
    /// How many rows have holders or waiters at present.
    pub(super) active: i64,
    /// How many rows have holders or waiters whose leases have expired.
    pub(super) expired: i64,
    /// How many rows are in use until later than any lease can last.
    pub(super) never_expiring: i64,
    /// How many rows were read and parsed.
    pub(super) parsed: usize,
    /// Names of locks whose rows are stored in another format than this version reads, and its number.
    pub(super) other_formats: Vec<(String, i64)>,
    /// Names of locks whose rows cannot be parsed, and why.
    pub(super) corrupt: Vec<(String, &'static str)>,
}

impl RowStats {
    /// How many rows are counted, at most.
    pub(super) const MAX_COUNTED: i64 = 100_000;
    /// How many rows are read and parsed, at most.
    pub(super) const MAX_PARSED: usize = 500;
}
