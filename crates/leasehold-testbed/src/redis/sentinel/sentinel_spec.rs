//! How one Sentinel is started.

use std::{fs, time::Duration};

use crate::{
    Error, Result,
    process::{Binary, Probe, ServerSpec, Workspace},
    redis::{Redis, command},
};

/// The name of the monitored master.
pub(super) const MASTER_NAME: &str = "mymaster";
/// How many Sentinels must agree that the master is down.
pub(super) const QUORUM: usize = 2;

/// The command that shortens a Sentinel's intervals after each start, because no configuration can:
///
/// - It publishes and queries more often than every two and ten seconds, so that tests do not wait
///   for that.
/// - It pings every half second, not every second. The first ping to a new master is one period
///   after the switch. With a limit of one second for an unresponsive master, that would be just
///   too late, and some failovers would cause another.
/// - On a machine under load it pauses (TILT) for one second, not for thirty.
const DEBUG_PERIODS: [&str; 10] =
    ["SENTINEL", "DEBUG", "publish-period", "500", "info-period", "1000", "ping-period", "500", "tilt-period", "1000"];

const CONFIG_FILE: &str = "sentinel.conf";

/// A Sentinel to start.
#[derive(Clone, Debug)]
pub(super) struct Sentinel {
    pub(super) master_port: u16,
    /// The password of the data nodes, if they have one.
    pub(super) password: Option<String>,
    /// The time after which an unresponsive master counts as down.
    pub(super) down_after: Duration,
}

impl Sentinel {
    fn config(&self, workspace: &Workspace) -> String {
        let password = self.password.as_ref();
        let password = password.map(|it| format!("sentinel auth-pass {MASTER_NAME} {it}\n")).unwrap_or_default();
        format!(
            "port {port}\n\
             bind 127.0.0.1\n\
             dir {dir:?}\n\
             daemonize no\n\
             sentinel resolve-hostnames no\n\
             sentinel monitor {MASTER_NAME} 127.0.0.1 {master_port} {QUORUM}\n\
             sentinel down-after-milliseconds {MASTER_NAME} {down_after}\n\
             sentinel failover-timeout {MASTER_NAME} 5000\n\
             {password}",
            port = workspace.port(),
            dir = workspace.dir(),
            master_port = self.master_port,
            down_after = self.down_after.as_millis(),
        )
    }
}

impl ServerSpec for Sentinel {
    fn binary(&self) -> Binary {
        Redis::new().binary()
    }

    fn arguments(&self, _workspace: &Workspace) -> Vec<String> {
        vec![CONFIG_FILE.to_owned(), "--sentinel".to_owned()]
    }

    fn url(&self, workspace: &Workspace) -> String {
        format!("redis+sentinel://127.0.0.1:{}/{MASTER_NAME}", workspace.port())
    }

    /// A Sentinel stores its state in its configuration file, so an existing file is kept.
    fn prepare(&self, workspace: &Workspace) -> Result<()> {
        let file = workspace.dir().join(CONFIG_FILE);
        if file.exists() {
            return Ok(());
        }
        let writing = Error::io(format!("writing {}", file.display()));
        fs::write(file, self.config(workspace)).map_err(writing)
    }

    /// Sets the intervals of [`DEBUG_PERIODS`]: the Sentinel is ready when it has accepted them.
    fn probe<'a>(&'a self, workspace: &'a Workspace) -> Probe<'a> {
        Box::pin(async move {
            command::command_once(workspace.addr(), None, &DEBUG_PERIODS)
                .await
                .map(drop)
                .map_err(|error| error.to_string())
        })
    }
}
