//! The servers that all benches of a run share, and their statistics.

use std::time::Duration;

use leasehold::Locks;
use leasehold_testbed::redis::{Independent, Resp};

use super::NODES;
use crate::redis::server::{Calls, calls, cpu};
use crate::redis::{Oops, TTL};

/// Five servers, and a connection to each for its statistics.
pub(crate) struct Nodes {
    pub(crate) set: Independent,
    askers: Vec<Resp>,
    /// The factor by which everything is shortened.
    pub(crate) scale: u32,
}

impl Nodes {
    pub(crate) async fn start(scale: u32) -> Result<Self, Oops> {
        let mut nodes = Self { set: Independent::start(NODES).await?, askers: Vec::new(), scale };
        for at in 0..NODES {
            let asker = nodes.asker(at).await?;
            nodes.askers.push(asker);
        }
        Ok(nodes)
    }

    /// A new connection to one of them.
    pub(crate) async fn asker(&self, at: usize) -> Result<Resp, Oops> {
        Ok(Resp::connect(self.set.server(at).addr()).await?)
    }

    /// The URLs of the first `count` servers.
    pub(crate) fn urls(&self, count: usize) -> Vec<String> {
        self.set.servers().iter().take(count).map(|server| server.url().trim_end_matches('/').to_owned()).collect()
    }

    /// Locks on the first `count` servers.
    pub(crate) async fn open(&self, count: usize, options: &str) -> leasehold::Result<Locks> {
        let url = format!("redlock://{}{options}", self.urls(count).join(","));
        Locks::builder().ttl(TTL).open(&url).await
    }

    /// How often each command was called so far on all servers together. All commands sent before
    /// are complete.
    pub(crate) async fn calls(&mut self) -> Result<Calls, Oops> {
        let mut sum = Calls::default();
        for asker in &mut self.askers {
            sum = sum.and(calls(asker).await?);
        }
        Ok(sum)
    }

    /// The CPU time that all servers have used.
    pub(crate) async fn cpu(&mut self) -> Result<Duration, Oops> {
        let mut sum = Duration::ZERO;
        for asker in &mut self.askers {
            sum += cpu(asker).await?;
        }
        Ok(sum)
    }
}
