//! The servers that all benches of a run share, and their statistics.

use std::time::Duration;

use leasehold::Locks;
use leasehold_testbed::redis::{IndependentServers, RespClient};

use super::NODE_COUNT;
use crate::redis::server::{CommandCalls, command_calls, cpu_time};
use crate::redis::{BoxError, TTL};

/// Five servers, and a connection to each for its statistics.
pub(crate) struct BenchNodes {
    pub(crate) servers: IndependentServers,
    stats_connections: Vec<RespClient>,
    /// By how much the numbers of rounds and cycles are divided: 1 for a full run.
    pub(crate) scale: u32,
}

impl BenchNodes {
    pub(crate) async fn start(scale: u32) -> Result<Self, BoxError> {
        let mut nodes =
            Self { servers: IndependentServers::start(NODE_COUNT).await?, stats_connections: Vec::new(), scale };
        for at in 0..NODE_COUNT {
            let stats = nodes.connect_for_stats(at).await?;
            nodes.stats_connections.push(stats);
        }
        Ok(nodes)
    }

    /// Opens a connection to the server with this index, for its statistics.
    pub(crate) async fn connect_for_stats(&self, index: usize) -> Result<RespClient, BoxError> {
        Ok(RespClient::connect(self.servers.server(index).addr()).await?)
    }

    /// The URLs of the first `count` servers.
    pub(crate) fn urls(&self, count: usize) -> Vec<String> {
        self.servers.servers().iter().take(count).map(|server| server.url().trim_end_matches('/').to_owned()).collect()
    }

    /// A new leasehold client on the first `count` servers, with these options of the URL.
    pub(crate) async fn open_locks(&self, count: usize, options: &str) -> leasehold::Result<Locks> {
        let url = format!("redlock://{}{options}", self.urls(count).join(","));
        Locks::builder().ttl(TTL).open(&url).await
    }

    /// How often each command was called so far on all servers together. All commands sent before
    /// are complete.
    pub(crate) async fn command_calls(&mut self) -> Result<CommandCalls, BoxError> {
        let mut sum = CommandCalls::default();
        for stats in &mut self.stats_connections {
            sum = sum.plus(command_calls(stats).await?);
        }
        Ok(sum)
    }

    /// The CPU time that all servers have used.
    pub(crate) async fn cpu_time(&mut self) -> Result<Duration, BoxError> {
        let mut sum = Duration::ZERO;
        for stats in &mut self.stats_connections {
            sum += cpu_time(stats).await?;
        }
        Ok(sum)
    }
}
