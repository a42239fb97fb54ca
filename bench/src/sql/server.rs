//! A server of either kind, and its statistics.

use std::time::Duration;

use leasehold::Locks;
use leasehold_testbed::Server;
use leasehold_testbed::mariadb::{self, MariaDb};
use leasehold_testbed::postgres::{self, Postgres};
use serde_json::json;

use crate::redis::{Oops, TTL};
use crate::report::Report;

/// The database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    MySql,
    Postgres,
}

/// A server.
pub(crate) struct Bench {
    pub(crate) base: Base,
    server: Server,
    /// Whether it waits for the disk at each commit.
    pub(crate) syncs: bool,
    /// The factor by which everything is shortened.
    pub(crate) scale: u32,
}

impl Bench {
    /// Starts a server. Settings that the testbed shrinks, or that make writes dearer, have the
    /// servers' defaults.
    pub(crate) async fn start(base: Base, syncs: bool, scale: u32) -> Result<Self, Oops> {
        let server = match base {
            Base::MySql => {
                let settings = MariaDb::new()
                    .setting("innodb_buffer_pool_size", "128M")
                    .setting("innodb_log_file_size", "96M")
                    .setting("innodb_log_buffer_size", "16M");
                if syncs { settings.sync() } else { settings }.start().await?
            }
            Base::Postgres => {
                let settings = Postgres::new()
                    .setting("shared_buffers", "128MB")
                    .setting("wal_recycle", "on")
                    .setting("max_connections", "200")
                    .setting("shared_preload_libraries", "pg_stat_statements")
                    // Until `count_statements`.
                    .setting("pg_stat_statements.track", "none");
                if syncs { settings.sync() } else { settings }.start().await?
            }
        };
        Ok(Self { base, server, syncs, scale })
    }

    /// Prints what the benches run on.
    pub(crate) async fn introduce(&self, report: &mut Report) -> Result<(), Oops> {
        let asked = if self.base == Base::MySql { "SELECT VERSION()" } else { "SHOW server_version" };
        let version = self.value(asked).await?;
        let durable = if self.syncs { "waits for the disk with each commit" } else { "does not wait for the disk" };
        report.say(&format!("{}: {version}, which {durable}; all TTLs {} s", self.label(), TTL.as_secs()));
        let what = format!("{}: the server", self.label());
        report.add(json!({ "what": what, "version": version, "durable": self.syncs, "ttl_s": TTL.as_secs() }));
        Ok(())
    }

    /// The prefix of the report's lines.
    pub(crate) fn label(&self) -> String {
        let base = if self.base == Base::MySql { "mysql" } else { "postgres" };
        format!("{base}, {}", if self.syncs { "durable" } else { "relaxed" })
    }

    pub(crate) fn url(&self) -> String {
        self.server.url()
    }

    /// Leasehold's locks, with options of the URL such as `technique=session`, over new
    /// connections.
    pub(crate) async fn open(&self, options: &str) -> leasehold::Result<Locks> {
        Locks::builder().ttl(TTL).open(&format!("{}?{options}", self.url())).await
    }

    /// Runs a statement as administrator.
    pub(crate) async fn ask(&self, statement: &str) -> Result<Vec<Vec<Option<String>>>, Oops> {
        Ok(match self.base {
            Base::MySql => mariadb::ask(&self.server, statement).await?,
            Base::Postgres => postgres::ask(&self.server, statement).await?,
        })
    }

    /// The last value of the only row.
    pub(crate) async fn value(&self, statement: &str) -> Result<String, Oops> {
        let rows = self.ask(statement).await?;
        let value = rows.into_iter().next().and_then(|row| row.into_iter().next_back().flatten());
        value.ok_or_else(|| format!("no answer to {statement}").into())
    }

    /// Starts counting the statements of all connections.
    pub(crate) async fn count_statements(&self) -> Result<(), Oops> {
        if self.base == Base::Postgres {
            self.ask("CREATE EXTENSION IF NOT EXISTS pg_stat_statements").await?;
            let database = postgres::DATABASE;
            self.ask(&format!("ALTER DATABASE {database} SET pg_stat_statements.track = 'top'")).await?;
        }
        Ok(())
    }

    /// How many statements clients have sent so far.
    pub(crate) async fn statements(&self) -> Result<Statements, Oops> {
        let count = match self.base {
            Base::MySql => self.value("SHOW GLOBAL STATUS LIKE 'Questions'").await?,
            Base::Postgres => {
                let count = "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements s JOIN pg_roles r \
                             ON r.oid = s.userid WHERE r.rolname";
                self.value(&format!("{count} = '{}'", postgres::USER)).await?
            }
        };
        Ok(Statements { count: count.parse()?, own: u64::from(self.base == Base::MySql) })
    }

    /// How many connections clients have.
    pub(crate) async fn connections(&self) -> Result<usize, Oops> {
        Ok(match self.base {
            Base::MySql => mariadb::connections(&self.server).await?,
            Base::Postgres => postgres::connections(&self.server).await?,
        }
        .len())
    }

    /// The CPU time that the server has used, with its child processes.
    pub(crate) fn cpu(&self) -> Result<Duration, Oops> {
        let root = self.server.pid().ok_or("the server does not run")?;
        let mut ticks = 0;
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            // The parent's count includes a process that has ended meanwhile.
            let Ok(text) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
            ticks += ticks_of(&text, pid, root).unwrap_or(0);
        }
        Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
    }
}

/// The CPU time of a process if it is `root` or its child; for `root` also that of its ended
/// children.
fn ticks_of(stat: &str, pid: u32, root: u32) -> Option<u64> {
    // The name may contain spaces and brackets; the text after it does not.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split_whitespace().collect();
    let field = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let own = field(11)? + field(12)?;
    if pid == root { Some(own + field(13)? + field(14)?) } else { (field(1)? == u64::from(root)).then_some(own) }
}

/// The server's count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Statements {
    count: u64,
    /// How many statements of the next count are the query for it.
    own: u64,
}

impl Statements {
    pub(crate) fn since(self, earlier: Self) -> f64 {
        self.count.saturating_sub(earlier.count + earlier.own) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_and_its_children_are_counted() {
        let stat = "7 (a) (b) c) S 5 7 7 0 -1 4194560 1 2 3 4 10 20 300 400 20 0";
        assert_eq!(ticks_of(stat, 7, 7), Some(730));
        assert_eq!(ticks_of(stat, 7, 5), Some(30));
        assert_eq!(ticks_of(stat, 7, 6), None);
    }

    #[test]
    fn the_question_is_not_counted() {
        let (earlier, later) = (Statements { count: 10, own: 1 }, Statements { count: 14, own: 1 });
        assert!((later.since(earlier) - 3.0).abs() < 1e-9);
    }
}
