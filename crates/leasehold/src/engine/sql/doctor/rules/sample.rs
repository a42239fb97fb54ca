//! Databases for the rules' tests, with real answers of MariaDB 10.11 and PostgreSQL 15.

use std::time::Duration;

use super::super::super::Dialect;
use super::super::super::config::Technique;
use super::super::facts::{
    Aim, Between, ClockGap, Column, Facts, Found, Known, No, Rows, Seen, Server, Shape, Table, Trips, Values,
};
use crate::doctor::{Finding, Level};

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

const STATUS: &str = "slaves_connected=0
threads_connected=2
wsrep_cluster_size=0
wsrep_cluster_status=Disconnected
wsrep_ready=OFF";

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

pub(super) fn aim(dialect: Dialect) -> Aim {
    Aim {
        dialect,
        ttl: Duration::from_secs(30),
        technique: Technique::Row,
        connections: 10,
        pooler: false,
        polls: false,
        clock_skew: Duration::ZERO,
        ddl: format!("leasehold engines --ddl {}", dialect.name()),
    }
}

/// A database with this single server.
pub(super) fn facts(seen: Seen) -> Facts {
    let dialect = if seen.status.is_ok() { Dialect::MySql } else { Dialect::Postgres };
    Facts { aim: aim(dialect), servers: vec![server("h1:1", seen)] }
}

pub(super) fn server(address: &str, seen: Seen) -> Server {
    Server { address: address.into(), seen: Ok(seen) }
}

fn column(name: &str, of: &str, collation: &str) -> Column {
    Column { name: name.into(), of: of.into(), collation: collation.into(), is_loose: false }
}

fn table(engine: &str, name: Column, long: &str) -> Table {
    let mut columns = vec![name];
    columns.extend(["version", "token", "busy"].map(|name| column(name, "bigint", "")));
    columns.push(Column { is_loose: engine == "InnoDB", ..column("state", long, "utf8mb4_bin") });
    let shape = Shape { engine: engine.into(), columns, unique_name: true };
    let wanted = &["version", "token", "busy", "state"];
    Table { name: "leasehold".into(), wanted, found: Ok(Found::There(shape)) }
}

fn seen() -> Seen {
    Seen {
        in_use: Ok(2),
        replicas: Ok(0),
        identity: Ok("one".into()),
        between: Ok(Between::Nothing),
        clock: Ok(ClockGap { ahead: 0, error: Duration::from_micros(50) }),
        trips: Ok(Trips { count: 50, p50: Duration::from_micros(90), p99: Duration::from_micros(200) }),
        trial: Ok(()),
        rows: Ok(Rows { count: 9, busy: 1, read: 9, ..Rows::default() }),
        ..mute(&No::missing("it"))
    }
}

/// A MariaDB server with correct settings.
pub(super) fn mariadb() -> Seen {
    Seen {
        version: Ok("10.11.19-MariaDB-0+deb12u1".into()),
        settings: Ok(values(MARIADB)),
        status: Ok(values(STATUS)),
        tables: vec![table("InnoDB", column("name", "varbinary", ""), "mediumtext")],
        ..seen()
    }
}

/// A PostgreSQL server with correct settings.
pub(super) fn postgres() -> Seen {
    Seen {
        version: Ok("PostgreSQL 15.18 (Debian 15.18-0+deb12u1) on x86_64-pc-linux-gnu".into()),
        settings: Ok(values(POSTGRES)),
        in_recovery: Ok(false),
        tables: vec![table("ordinary", column("name", "text", "C"), "text")],
        ..seen()
    }
}

/// A server that reveals nothing.
pub(super) fn mute(no: &No) -> Seen {
    fn not<T>(no: &No) -> Known<T> {
        Err(no.clone())
    }
    let wanted = &["version"];
    Seen {
        version: not(no),
        settings: not(no),
        status: not(no),
        identity: not(no),
        in_recovery: not(no),
        in_use: not(no),
        replicas: not(no),
        between: not(no),
        clock: not(no),
        trips: not(no),
        tables: vec![Table { name: "leasehold".into(), wanted, found: not(no) }],
        trial: not(no),
        rows: not(no),
    }
}

impl Seen {
    /// The same server, with another setting.
    pub(super) fn set(mut self, key: &str, value: &str) -> Self {
        self.settings.as_mut().unwrap().0.insert(key.into(), value.into());
        self
    }

    /// The same server, without a setting.
    pub(super) fn hiding(mut self, key: &str) -> Self {
        self.settings.as_mut().unwrap().0.remove(key);
        self
    }

    /// The same server, with another figure.
    pub(super) fn with_status(mut self, key: &str, value: &str) -> Self {
        self.status.as_mut().unwrap().0.insert(key.into(), value.into());
        self
    }

    /// The same server, with another table definition.
    pub(super) fn shaped(mut self, change: impl Fn(&mut Shape)) -> Self {
        if let Ok(Found::There(shape)) = &mut self.tables[0].found {
            change(shape);
        }
        self
    }
}

/// Asserts a finding's level, and that its text contains `says`.
#[track_caller]
pub(super) fn assert_level(finding: &Finding, level: Level, says: &str) {
    assert_eq!(finding.level, level, "{finding:?}");
    let all = format!("{} {} {}", finding.found, finding.means, finding.fix);
    assert!(all.contains(says), "{says:?} is not in {all}");
    assert!(!finding.means.is_empty(), "{finding:?}");
    assert_eq!(finding.fix.is_empty(), level == Level::Ok, "{finding:?}");
}
