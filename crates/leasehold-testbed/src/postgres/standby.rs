//! A standby that follows a primary, serves reads, and can be promoted.

use std::{net::SocketAddr, time::Duration};

use super::{
    ADMIN, PASSWORD, Postgres, query,
    server_spec::{SYSTEM_USER, binary},
};
use crate::{
    Error, Result, Server,
    process::{Binary, InitStep, Probe, ServerSpec, Signal, Workspace},
    try_eventually,
};

/// The time limit for following the primary and for a promotion. Only a failing test waits this
/// long.
const FOLLOW_TIMEOUT: Duration = crate::TEST_TIMEOUT;
/// PostgreSQL refuses a data folder that others may read.
const COPY_SCRIPT: &str = r#"chmod 700 . && exec "$@""#;

/// A standby to start; see [`Postgres::replica_of`].
#[derive(Clone, Debug)]
pub struct Standby {
    postgres: Postgres,
    primary: SocketAddr,
}

impl Postgres {
    /// A standby of `primary`: a copy that follows it, and refuses all writes until it is
    /// [promoted](promote).
    ///
    /// ```no_run
    /// # async fn example() -> leasehold_testbed::Result<()> {
    /// use leasehold_testbed::postgres::{self, Postgres};
    ///
    /// let mut primary = postgres::start().await?;
    /// let standby = Postgres::replica_of(&primary).start().await?;
    /// primary.kill()?;
    /// postgres::promote(&standby).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn replica_of(primary: &Server) -> Standby {
        Standby { postgres: Postgres::new(), primary: primary.addr() }
    }
}

impl Standby {
    /// Makes it connect to the primary at another address, such as that of a [proxy](crate::Proxy).
    #[must_use]
    pub fn via(mut self, addr: SocketAddr) -> Self {
        self.primary = addr;
        self
    }

    /// Sets a configuration parameter; it overrides the testbed's own settings.
    #[must_use]
    pub fn setting(mut self, key: &str, value: &str) -> Self {
        self.postgres = self.postgres.setting(key, value);
        self
    }

    /// Copies the primary, starts it, and waits until it follows.
    ///
    /// A later [`Server::restart`] only waits until it responds, because the primary may be down
    /// then.
    ///
    /// # Errors
    ///
    /// As [`Server::start`]; [`Error::TimedOut`] if it cannot follow.
    pub async fn start(self) -> Result<Server> {
        let server = Server::start(self).await?;
        try_eventually("stream from the primary", FOLLOW_TIMEOUT, || check_follows(&server)).await?;
        Ok(server)
    }

    /// The connection string of the primary.
    fn primary_conninfo(&self) -> String {
        let (host, port) = (self.primary.ip(), self.primary.port());
        format!("host={host} port={port} user={ADMIN} password={PASSWORD}")
    }
}

impl ServerSpec for Standby {
    fn binary(&self) -> Binary {
        self.postgres.binary()
    }

    fn arguments(&self, workspace: &Workspace) -> Vec<String> {
        // It reconnects soon after the primary restarts.
        self.postgres.arguments_with(workspace, &[("wal_retrieve_retry_interval", "100")])
    }

    fn url(&self, workspace: &Workspace) -> String {
        self.postgres.url(workspace)
    }

    fn prepare(&self, workspace: &Workspace) -> Result<()> {
        self.postgres.prepare(workspace)
    }

    fn probe<'a>(&'a self, workspace: &'a Workspace) -> Probe<'a> {
        self.postgres.probe(workspace)
    }

    fn init_steps(&self, _workspace: &Workspace) -> Vec<InitStep> {
        let copier = binary("pg_basebackup").find().unwrap_or_default();
        let primary = format!("--dbname={}", self.primary_conninfo());
        let copier = copier.to_string_lossy();
        let copy = [&*copier, &primary, "--pgdata=.", "--write-recovery-conf", "--checkpoint=fast", "--no-sync"];
        let arguments = ["-c", COPY_SCRIPT, "sh"].into_iter().chain(copy).map(str::to_owned).collect();
        vec![InitStep { binary: Binary::new("sh", "dash"), arguments }]
    }

    fn stop_signal(&self) -> Signal {
        self.postgres.stop_signal()
    }

    fn clean_up(&self, workspace: &Workspace) {
        self.postgres.clean_up(workspace);
    }

    fn run_as(&self) -> Option<&str> {
        Some(SYSTEM_USER)
    }
}

/// Promotes a standby, and waits until it accepts writes.
///
/// # Errors
///
/// As [`query()`](super::query()); [`Error::Refused`] if it is not a standby.
pub async fn promote(standby: &Server) -> Result<()> {
    let statement = format!("SELECT pg_promote(true, {})", FOLLOW_TIMEOUT.as_secs());
    let answer = query::query(standby, &statement).await?;
    match answer.first() {
        Some(row) if row[..] == [Some("t".to_owned())] => Ok(()),
        _ => Err(Error::Refused { request: statement, answer: "it was not promoted".to_owned() }),
    }
}

/// `Ok` if the standby `server` receives its primary's writes; otherwise what was observed.
async fn check_follows(server: &Server) -> std::result::Result<(), String> {
    let rows =
        query::query(server, "SELECT status FROM pg_stat_wal_receiver").await.map_err(|error| error.to_string())?;
    if rows == [[Some("streaming".to_owned())]] { Ok(()) } else { Err(format!("its receiver: {rows:?}")) }
}
