//! One MariaDB or PostgreSQL server.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold_testbed::mariadb::{self, MariaDb};
use leasehold_testbed::postgres::{self, Postgres};
use leasehold_testbed::{Data, Server, try_eventually};

use super::clock::ServerClock;
use super::leftovers::Leftovers;
use super::unsupported_fault;
use crate::deployment::{ActiveFault, DeploymentOptions, LocalEngine, RunError};
use crate::history::FaultKind;
use crate::rng::Rng;

/// The size of the small disk for the database: a few times that of an empty one.
const DISK_BYTES: u64 = 160 * 1024 * 1024;
/// A server whose disk was full is restarted if it does not respond within this time after it has
/// space again.
const RESTART_AFTER: Duration = Duration::from_secs(10);

/// One MariaDB or PostgreSQL server.
pub(in crate::deployment) struct SqlServer {
    server: Server,
    /// Whether it is MariaDB; otherwise it is PostgreSQL.
    is_mysql: bool,
    /// The server's wall clock; `None`: no fault moves it.
    clock: Option<ServerClock>,
    ttl: Duration,
}

impl SqlServer {
    pub(super) async fn start(local: LocalEngine, options: &DeploymentOptions) -> Result<Self, RunError> {
        // The SQL engines repair leases that begin in the future.
        let clock = ServerClock::for_options(options, true)?;
        let mysql = local == LocalEngine::Mysql;
        let (mut maria, mut postgres) = (MariaDb::new().fsync(), Postgres::new().fsync());
        if let Some(clock) = &clock {
            (maria, postgres) = (maria.clock(clock.clock()), postgres.clock(clock.clock()));
        }
        if options.has_fault(FaultKind::DiskFull) {
            (maria, postgres) = (maria.disk(DISK_BYTES), postgres.disk(DISK_BYTES));
        }
        let server = if mysql { maria.start().await? } else { postgres.start().await? };
        Ok(Self { server, is_mysql: mysql, clock, ttl: options.ttl })
    }

    /// The engine's URL without the proxies.
    pub(super) fn url(&self) -> String {
        self.server.url()
    }

    /// The addresses of the servers that get a proxy.
    pub(super) fn addrs(&self) -> Vec<SocketAddr> {
        vec![self.server.addr()]
    }

    /// The versions that the servers report, such as `redis-server 7.0.15`.
    pub(super) async fn versions(&self) -> Result<Vec<String>, RunError> {
        let (program, statement) =
            if self.is_mysql { ("mariadbd", "SELECT version()") } else { ("postgres", "SHOW server_version") };
        let rows = self.query(statement).await?;
        let version = rows.into_iter().flatten().flatten().next().unwrap_or_default();
        Ok(vec![format!("{program} {version}")])
    }

    /// The sessions that clients have at the server: the id of each, and its state and query.
    pub(super) async fn client_sessions(&self) -> Result<Leftovers, RunError> {
        let found = match self.is_mysql {
            true => mariadb::connections(&self.server).await?,
            false => postgres::connections(&self.server).await?,
        };
        let named = found.into_iter().map(|session| {
            let what = format!("{}: {}", session.state, session.query.unwrap_or_default());
            (format!("session {} of the server", session.id), what)
        });
        Ok(named.collect())
    }

    /// Runs a statement as an administrator; returns its rows.
    async fn query(&self, statement: &str) -> Result<Vec<Vec<Option<String>>>, RunError> {
        let reply = if self.is_mysql {
            mariadb::query(&self.server, statement).await
        } else {
            postgres::query(&self.server, statement).await
        };
        Ok(reply?)
    }

    /// Begins a fault. Fails if these servers cannot have it.
    pub(super) async fn begin_fault(&mut self, fault: FaultKind, rng: &mut Rng) -> Result<ActiveFault, RunError> {
        let (target, ttl) = ("the server".to_owned(), self.ttl);
        match fault {
            FaultKind::Crash => {
                self.server.kill()?;
                Ok(ActiveFault::new(target, rng.duration_in(Duration::ZERO, ttl * 3 / 2)))
            }
            FaultKind::Clock | FaultKind::Ahead => {
                let clock = self.clock.as_mut().ok_or_else(|| unsupported_fault(fault))?;
                let jump = clock.jump(fault, rng)?;
                Ok(ActiveFault::new(format!("{target}: {jump}"), rng.duration_in(ttl / 2, ttl * 2)))
            }
            FaultKind::DiskFull => {
                self.server.disk().ok_or_else(|| unsupported_fault(fault))?.fill()?;
                Ok(ActiveFault::new(target, rng.duration_in(ttl, ttl * 2)))
            }
            FaultKind::ReadOnly => {
                self.set_read_only(true).await?;
                Ok(ActiveFault::new(target, rng.duration_in(ttl, ttl * 3)))
            }
            _ => Err(unsupported_fault(fault)),
        }
    }

    /// Makes the server refuse writes of all users except administrators, or accept them again.
    async fn set_read_only(&self, is_read_only: bool) -> Result<(), RunError> {
        if self.is_mysql {
            self.query(&format!("SET GLOBAL read_only = {}", u8::from(is_read_only))).await?;
            return Ok(());
        }
        let change =
            if is_read_only { "SET default_transaction_read_only = on" } else { "RESET default_transaction_read_only" };
        self.query(&format!("ALTER SYSTEM {change}")).await?;
        self.query("SELECT pg_reload_conf()").await?;
        Ok(())
    }

    /// Ends the active fault, and waits until the servers respond. Returns a note on the result.
    pub(super) async fn end_fault(&mut self, fault: FaultKind) -> Result<String, RunError> {
        match fault {
            FaultKind::Crash => {
                self.server.restart(Data::Keep).await?;
                Ok("it responds again".to_owned())
            }
            FaultKind::Clock | FaultKind::Ahead => {
                self.clock.as_ref().map(ServerClock::offset_note).ok_or_else(|| unsupported_fault(fault))
            }
            FaultKind::ReadOnly => {
                self.set_read_only(false).await?;
                Ok("it accepts writes again".to_owned())
            }
            FaultKind::DiskFull => {
                self.server.disk().ok_or_else(|| unsupported_fault(fault))?.free()?;
                if self.server.is_running()? && self.responds_again().await {
                    return Ok("it responds".to_owned());
                }
                // A server that hangs for lack of space would not shut down cleanly, either.
                self.server.kill()?;
                self.server.restart(Data::Keep).await?;
                Ok("it had to be restarted".to_owned())
            }
            _ => Err(unsupported_fault(fault)),
        }
    }

    /// Whether the server responds on its own, now that its disk has space.
    async fn responds_again(&mut self) -> bool {
        let running = self.server.pid();
        let answer = try_eventually("answer", RESTART_AFTER, || async {
            // A process that has ended does not come back.
            let gone = running.is_none_or(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists());
            if gone { Ok(false) } else { self.query("SELECT 1").await.map(|_| true) }
        });
        answer.await.unwrap_or(false)
    }
}
