//! Databases for the rules' tests, with real replies of MariaDB 10.11 and PostgreSQL 15.

pub(super) use crate::assert_level;
use std::time::Duration;

use super::super::facts::{
    ClockOffset, Column, Fact, Facts, Intermediary, Requirements, RoundTrips, RowStats, Server, ServerFacts, Table,
    TableDefinition, TableState, UnknownReason, Values,
};
use leasehold_internals::sql::Dialect;
use leasehold_internals::sql::config::Technique;

/// The settings of a well-configured MariaDB.
const MARIADB: &str = "autocommit=ON
binlog_format=MIXED
datadir=/var/lib/mysql/
hostname=db1
innodb_flush_log_at_trx_commit=1
innodb_lock_wait_timeout=50
innodb_read_only=OFF
log_bin=OFF
max_allowed_packet=16777216
max_connections=151
max_statement_time=0.000000
max_user_connections=0
port=3306
read_only=OFF
rpl_semi_sync_master_enabled=OFF
rpl_semi_sync_master_wait_point=AFTER_COMMIT
sql_mode=STRICT_TRANS_TABLES
sync_binlog=0
tx_isolation=REPEATABLE-READ
wait_timeout=28800
wsrep_on=OFF";

/// The status of a well-configured MariaDB.
const STATUS: &str = "slaves_connected=0
threads_connected=2
wsrep_cluster_size=0
wsrep_cluster_status=Disconnected
wsrep_ready=OFF";

/// The settings of a well-configured PostgreSQL.
const POSTGRES: &str = "autovacuum=on
database_connections=-1
default_transaction_isolation=read committed
default_transaction_read_only=off
fsync=on
full_page_writes=on
idle_in_transaction_session_timeout=0
idle_session_timeout=0
lock_timeout=0
max_connections=100
role_connections=-1
server_version_num=150018
statement_timeout=0
superuser_reserved_connections=3
synchronous_commit=on
synchronous_standby_names=";

fn values(text: &str) -> Values {
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    Values(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
}

/// For tests: what a URL with default options requires of the database.
pub(super) fn requirements(dialect: Dialect) -> Requirements {
    Requirements {
        dialect,
        ttl: Duration::from_secs(30),
        technique: Technique::Row,
        connections: 10,
        has_transaction_pooler: false,
        is_polling: false,
        clock_skew: Duration::ZERO,
        ddl_command: format!("leasehold engines --ddl {}", dialect.name()),
    }
}

/// A database with this single server.
pub(super) fn facts(seen: ServerFacts) -> Facts {
    let dialect = if seen.status.is_ok() { Dialect::MySql } else { Dialect::Postgres };
    Facts { requirements: requirements(dialect), servers: vec![server("h1:1", seen)] }
}

/// A server with these facts.
pub(super) fn server(address: &str, seen: ServerFacts) -> Server {
    Server { address: address.into(), facts: Ok(seen) }
}

fn column(name: &str, data_type: &str, collation: &str) -> Column {
    Column { name: name.into(), data_type: data_type.into(), collation: collation.into(), has_loose_collation: false }
}

/// The lease table; `name` is its first column, and `state_type` the type of its last.
fn table(engine: &str, name: Column, state_type: &str) -> Table {
    let mut columns = vec![name];
    columns.extend(["version", "token", "busy", "format"].map(|name| column(name, "bigint", "")));
    columns.push(Column { has_loose_collation: engine == "InnoDB", ..column("state", state_type, "utf8mb4_bin") });
    let shape = TableDefinition { engine: engine.into(), columns, is_name_unique: true };
    let wanted = &["version", "token", "busy", "state", "format"];
    Table { name: "leasehold".into(), required_columns: wanted, state: Ok(TableState::Exists(shape)) }
}

/// The facts that all databases of these tests have in common.
fn server_facts() -> ServerFacts {
    ServerFacts {
        in_use: Ok(2),
        replicas: Ok(0),
        identity: Ok("one".into()),
        intermediary: Ok(Intermediary::Direct),
        clock: Ok(ClockOffset { ahead: 0, error: Duration::from_micros(50) }),
        round_trips: Ok(RoundTrips { count: 50, p50: Duration::from_micros(90), p99: Duration::from_micros(200) }),
        dry_run: Ok(()),
        row_stats: Ok(RowStats { count: 9, active: 1, parsed: 9, ..RowStats::default() }),
        ..opaque_server(&UnknownReason::not_reported("it"))
    }
}

/// A MariaDB server with correct settings.
pub(super) fn mariadb() -> ServerFacts {
    ServerFacts {
        version: Ok("10.11.19-MariaDB-0+deb12u1".into()),
        settings: Ok(values(MARIADB)),
        status: Ok(values(STATUS)),
        tables: vec![table("InnoDB", column("name", "varbinary", ""), "mediumtext")],
        ..server_facts()
    }
}

/// A PostgreSQL server with correct settings.
pub(super) fn postgres() -> ServerFacts {
    ServerFacts {
        version: Ok("PostgreSQL 15.18 (Debian 15.18-0+deb12u1) on x86_64-pc-linux-gnu".into()),
        settings: Ok(values(POSTGRES)),
        is_in_recovery: Ok(false),
        tables: vec![table("ordinary", column("name", "text", "C"), "text")],
        ..server_facts()
    }
}

/// A server that reveals nothing.
pub(super) fn opaque_server(reason: &UnknownReason) -> ServerFacts {
    fn unknown<T>(reason: &UnknownReason) -> Fact<T> {
        Err(reason.clone())
    }
    let wanted = &["version"];
    ServerFacts {
        version: unknown(reason),
        settings: unknown(reason),
        status: unknown(reason),
        identity: unknown(reason),
        is_in_recovery: unknown(reason),
        in_use: unknown(reason),
        replicas: unknown(reason),
        intermediary: unknown(reason),
        clock: unknown(reason),
        round_trips: unknown(reason),
        tables: vec![Table { name: "leasehold".into(), required_columns: wanted, state: unknown(reason) }],
        dry_run: unknown(reason),
        row_stats: unknown(reason),
    }
}

impl ServerFacts {
    /// The same server, with this value of a setting.
    pub(super) fn with_setting(mut self, key: &str, value: &str) -> Self {
        self.settings.as_mut().unwrap().0.insert(key.into(), value.into());
        self
    }

    /// The same server, which does not report this setting.
    pub(super) fn without_setting(mut self, key: &str) -> Self {
        self.settings.as_mut().unwrap().0.remove(key);
        self
    }

    /// The same server, with this value in `SHOW GLOBAL STATUS`.
    pub(super) fn with_status(mut self, key: &str, value: &str) -> Self {
        self.status.as_mut().unwrap().0.insert(key.into(), value.into());
        self
    }

    /// The same server, with its lease table's definition changed.
    pub(super) fn with_table(mut self, change: impl Fn(&mut TableDefinition)) -> Self {
        if let Ok(TableState::Exists(shape)) = &mut self.tables[0].state {
            change(shape);
        }
        self
    }
}
