//! A database server that all loads of a run share, and its statistics.

use std::time::Duration;

use leasehold::Locks;
use leasehold_testbed::Server;
use leasehold_testbed::mariadb::{self, MariaDb};
use leasehold_testbed::postgres::{self, Postgres};
use serde_json::json;

use crate::redis::{BoxError, TTL};
use crate::report::Report;

/// Which database a bench measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DatabaseKind {
    MySql,
    Postgres,
}

/// A database server, and what a bench asks of it.
pub(crate) struct BenchServer {
    pub(crate) database: DatabaseKind,
    server: Server,
    /// Whether it waits for the disk at each commit.
    pub(crate) is_durable: bool,
    /// By how much the numbers of rounds and cycles are divided: 1 for a full run.
    pub(crate) scale: u32,
}

impl BenchServer {
    /// Starts a server. Settings that the testbed reduces, or that make writes slower, have the
    /// servers' defaults.
    pub(crate) async fn start(database: DatabaseKind, is_durable: bool, scale: u32) -> Result<Self, BoxError> {
        let server = match database {
            DatabaseKind::MySql => {
                let settings = MariaDb::new()
                    .setting("innodb_buffer_pool_size", "128M")
                    .setting("innodb_log_file_size", "96M")
                    .setting("innodb_log_buffer_size", "16M");
                if is_durable { settings.fsync() } else { settings }.start().await?
            }
            DatabaseKind::Postgres => {
                let settings = Postgres::new()
                    .setting("shared_buffers", "128MB")
                    .setting("wal_recycle", "on")
                    .setting("max_connections", "200")
                    .setting("shared_preload_libraries", "pg_stat_statements")
                    // Until `start_counting_statements`.
                    .setting("pg_stat_statements.track", "none");
                if is_durable { settings.fsync() } else { settings }.start().await?
            }
        };
        Ok(Self { database, server, is_durable, scale })
    }

    /// Prints the server and its settings.
    pub(crate) async fn report_server(&self, report: &mut Report) -> Result<(), BoxError> {
        let query = if self.database == DatabaseKind::MySql { "SELECT VERSION()" } else { "SHOW server_version" };
        let version = self.query_value(query).await?;
        let durable =
            if self.is_durable { "waits for the disk with each commit" } else { "does not wait for the disk" };
        report.print_line(&format!("{}: {version}, which {durable}; all TTLs {} s", self.label(), TTL.as_secs()));
        let what = format!("{}: the server", self.label());
        report
            .add_json(json!({ "what": what, "version": version, "durable": self.is_durable, "ttl_s": TTL.as_secs() }));
        Ok(())
    }

    /// The prefix of the report's lines.
    pub(crate) fn label(&self) -> String {
        let base = if self.database == DatabaseKind::MySql { "mysql" } else { "postgres" };
        format!("{base}, {}", if self.is_durable { "durable" } else { "relaxed" })
    }

    pub(crate) fn url(&self) -> String {
        self.server.url()
    }

    /// A new leasehold client, with options of the URL such as `technique=session`.
    pub(crate) async fn open_locks(&self, options: &str) -> leasehold::Result<Locks> {
        Locks::builder().ttl(TTL).open(&format!("{}?{options}", self.url())).await
    }

    /// Runs a statement as administrator.
    pub(crate) async fn query_as_admin(&self, statement: &str) -> Result<Vec<Vec<Option<String>>>, BoxError> {
        Ok(match self.database {
            DatabaseKind::MySql => mariadb::query(&self.server, statement).await?,
            DatabaseKind::Postgres => postgres::query(&self.server, statement).await?,
        })
    }

    /// The last column of the only row that a statement returns.
    pub(crate) async fn query_value(&self, statement: &str) -> Result<String, BoxError> {
        let rows = self.query_as_admin(statement).await?;
        let value = rows.into_iter().next().and_then(|row| row.into_iter().next_back().flatten());
        value.ok_or_else(|| format!("no result of {statement}").into())
    }

    /// Starts counting the statements of all connections.
    pub(crate) async fn start_counting_statements(&self) -> Result<(), BoxError> {
        if self.database == DatabaseKind::Postgres {
            self.query_as_admin("CREATE EXTENSION IF NOT EXISTS pg_stat_statements").await?;
            let database = postgres::DATABASE;
            self.query_as_admin(&format!("ALTER DATABASE {database} SET pg_stat_statements.track = 'top'")).await?;
        }
        Ok(())
    }

    /// How many statements clients have sent so far.
    pub(crate) async fn statement_count(&self) -> Result<StatementCount, BoxError> {
        let count = match self.database {
            DatabaseKind::MySql => self.query_value("SHOW GLOBAL STATUS LIKE 'Questions'").await?,
            DatabaseKind::Postgres => {
                let count = "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements s JOIN pg_roles r \
                             ON r.oid = s.userid WHERE r.rolname";
                self.query_value(&format!("{count} = '{}'", postgres::USER)).await?
            }
        };
        Ok(StatementCount { count: count.parse()?, own_queries: u64::from(self.database == DatabaseKind::MySql) })
    }

    /// How many connections clients have.
    pub(crate) async fn connection_count(&self) -> Result<usize, BoxError> {
        Ok(match self.database {
            DatabaseKind::MySql => mariadb::connections(&self.server).await?,
            DatabaseKind::Postgres => postgres::connections(&self.server).await?,
        }
        .len())
    }

    /// The CPU time that the server has used, with its child processes.
    pub(crate) fn cpu_time(&self) -> Result<Duration, BoxError> {
        let root = self.server.pid().ok_or("the server does not run")?;
        let mut ticks = 0;
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            // A process that has ended meanwhile is included in its parent's count.
            let Ok(text) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
            ticks += cpu_ticks(&text, pid, root).unwrap_or(0);
        }
        Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
    }
}

/// The CPU time of a process if it is `root` or its child; for `root` also that of its ended
/// children.
fn cpu_ticks(stat: &str, pid: u32, root: u32) -> Option<u64> {
    // The name may contain spaces and brackets; the text after it does not.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split_whitespace().collect();
    let field = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let own = field(11)? + field(12)?;
    if pid == root { Some(own + field(13)? + field(14)?) } else { (field(1)? == u64::from(root)).then_some(own) }
}

/// The server's count of statements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StatementCount {
    count: u64,
    /// How many statements the next count includes that are the query for this one.
    own_queries: u64,
}

impl StatementCount {
    pub(crate) fn since(self, earlier: Self) -> f64 {
        self.count.saturating_sub(earlier.count + earlier.own_queries) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_and_its_children_are_counted() {
        let stat = "7 (a) (b) c) S 5 7 7 0 -1 4194560 1 2 3 4 10 20 300 400 20 0";
        assert_eq!(cpu_ticks(stat, 7, 7), Some(730));
        assert_eq!(cpu_ticks(stat, 7, 5), Some(30));
        assert_eq!(cpu_ticks(stat, 7, 6), None);
    }

    #[test]
    fn the_counting_query_is_not_counted() {
        let (earlier, later) =
            (StatementCount { count: 10, own_queries: 1 }, StatementCount { count: 14, own_queries: 1 });
        assert!((later.since(earlier) - 3.0).abs() < 1e-9);
    }
}
