//! One MariaDB or PostgreSQL.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold_testbed::mariadb::{self, MariaDb};
use leasehold_testbed::postgres::{self, Postgres};
use leasehold_testbed::{Data, Server, try_eventually};

use super::clock::Hand;
use super::left::Left;
use super::unfit;
use crate::deploy::{Local, Setup, Strike, Trouble};
use crate::dice::Dice;
use crate::history::FaultKind;

/// A few times the size of an empty database.
const DISK: u64 = 160 * 1024 * 1024;
/// A server that was not killed is restarted if it has not responded for this long after it has
/// space again.
const RESTART_AFTER: Duration = Duration::from_secs(10);

pub(in crate::deploy) struct Sql {
    server: Server,
    mysql: bool,
    clock: Option<Hand>,
    ttl: Duration,
}

impl Sql {
    pub(super) async fn start(local: Local, setup: &Setup) -> Result<Self, Trouble> {
        // The engine makes leases that begin in the future begin now.
        let clock = Hand::wanted(setup, true)?;
        let mysql = local == Local::Mysql;
        let (mut maria, mut postgres) = (MariaDb::new().sync(), Postgres::new().sync());
        if let Some(hand) = &clock {
            (maria, postgres) = (maria.clock(hand.clock()), postgres.clock(hand.clock()));
        }
        if setup.wants(FaultKind::DiskFull) {
            (maria, postgres) = (maria.disk(DISK), postgres.disk(DISK));
        }
        let server = if mysql { maria.start().await? } else { postgres.start().await? };
        Ok(Self { server, mysql, clock, ttl: setup.ttl })
    }

    pub(super) fn url(&self) -> String {
        self.server.url()
    }

    pub(super) fn addrs(&self) -> Vec<SocketAddr> {
        vec![self.server.addr()]
    }

    pub(super) async fn versions(&self) -> Result<Vec<String>, Trouble> {
        let (program, question) =
            if self.mysql { ("mariadbd", "SELECT version()") } else { ("postgres", "SHOW server_version") };
        let rows = self.ask(question).await?;
        let version = rows.into_iter().flatten().flatten().next().unwrap_or_default();
        Ok(vec![format!("{program} {version}")])
    }

    /// The clients' sessions here.
    pub(super) async fn sessions(&self) -> Result<Left, Trouble> {
        let found = match self.mysql {
            true => mariadb::connections(&self.server).await?,
            false => postgres::connections(&self.server).await?,
        };
        let named = found.into_iter().map(|session| {
            let what = format!("{}: {}", session.state, session.query.unwrap_or_default());
            (format!("session {} of the server", session.id), what)
        });
        Ok(named.collect())
    }

    async fn ask(&self, statement: &str) -> Result<Vec<Vec<Option<String>>>, Trouble> {
        let asked = if self.mysql {
            mariadb::ask(&self.server, statement).await
        } else {
            postgres::ask(&self.server, statement).await
        };
        Ok(asked?)
    }

    pub(super) async fn begin(&mut self, fault: FaultKind, dice: &mut Dice) -> Result<Strike, Trouble> {
        let (target, ttl) = ("the server".to_owned(), self.ttl);
        match fault {
            FaultKind::Crash => {
                self.server.kill()?;
                Ok(Strike::new(target, dice.time(Duration::ZERO, ttl * 3 / 2)))
            }
            FaultKind::Clock | FaultKind::Ahead => {
                let hand = self.clock.as_mut().ok_or_else(|| unfit(fault))?;
                let jump = hand.jump(fault, dice)?;
                Ok(Strike::new(format!("{target}: {jump}"), dice.time(ttl / 2, ttl * 2)))
            }
            FaultKind::DiskFull => {
                self.server.disk().ok_or_else(|| unfit(fault))?.fill()?;
                Ok(Strike::new(target, dice.time(ttl, ttl * 2)))
            }
            FaultKind::ReadOnly => {
                self.refuse_writes(true).await?;
                Ok(Strike::new(target, dice.time(ttl, ttl * 3)))
            }
            _ => Err(unfit(fault)),
        }
    }

    /// Makes it refuse the writes of all users except administrators, or stop refusing.
    async fn refuse_writes(&self, on: bool) -> Result<(), Trouble> {
        if self.mysql {
            self.ask(&format!("SET GLOBAL read_only = {}", u8::from(on))).await?;
            return Ok(());
        }
        let change = if on { "SET default_transaction_read_only = on" } else { "RESET default_transaction_read_only" };
        self.ask(&format!("ALTER SYSTEM {change}")).await?;
        self.ask("SELECT pg_reload_conf()").await?;
        Ok(())
    }

    pub(super) async fn end(&mut self, fault: FaultKind) -> Result<String, Trouble> {
        match fault {
            FaultKind::Crash => {
                self.server.restart(Data::Keep).await?;
                Ok("it answers again".to_owned())
            }
            FaultKind::Clock | FaultKind::Ahead => self.clock.as_ref().map(Hand::note).ok_or_else(|| unfit(fault)),
            FaultKind::ReadOnly => {
                self.refuse_writes(false).await?;
                Ok("it accepts writes again".to_owned())
            }
            FaultKind::DiskFull => {
                self.server.disk().ok_or_else(|| unfit(fault))?.free()?;
                if self.server.is_running()? && self.recovers().await {
                    return Ok("it answers".to_owned());
                }
                // A server that hangs for lack of space would not shut down cleanly, either.
                self.server.kill()?;
                self.server.restart(Data::Keep).await?;
                Ok("it had to be restarted".to_owned())
            }
            _ => Err(unfit(fault)),
        }
    }

    /// Whether it recovers on its own, now that it has space.
    async fn recovers(&mut self) -> bool {
        let running = self.server.pid();
        let answer = try_eventually("answer", RESTART_AFTER, || async {
            // A process that has ended never will.
            let gone = running.is_none_or(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists());
            if gone { Ok(false) } else { self.ask("SELECT 1").await.map(|_| true) }
        });
        answer.await.unwrap_or(false)
    }
}
