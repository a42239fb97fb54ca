//! How one node of a cluster is started.

use std::time::Duration;

use crate::{
    Result,
    process::{Binary, Probe, ServerSpec, Workspace},
    redis::{self, Redis},
};

/// A node of a cluster to start; it knows no other node at first.
#[derive(Clone, Debug)]
pub(super) struct ClusterNode {
    pub(super) redis: Redis,
    /// The time after which an unresponsive node counts as down.
    pub(super) node_timeout: Duration,
}

impl ServerSpec for ClusterNode {
    fn binary(&self) -> Binary {
        self.redis.binary()
    }

    fn arguments(&self, workspace: &Workspace) -> Vec<String> {
        let bus_port = workspace.extra_ports()[0].to_string();
        let timeout = self.node_timeout.as_millis().to_string();
        let ours = [
            ["--cluster-enabled", "yes"],
            ["--cluster-port", &bus_port],
            ["--cluster-config-file", "nodes.conf"],
            ["--cluster-node-timeout", &timeout],
            ["--cluster-announce-ip", "127.0.0.1"],
            // Only failovers change the replication.
            ["--cluster-allow-replica-migration", "no"],
        ];
        self.redis.clone().args(&ours.concat()).arguments(workspace)
    }

    fn url(&self, workspace: &Workspace) -> String {
        format!("redis+cluster://127.0.0.1:{}", workspace.port())
    }

    fn probe<'a>(&'a self, workspace: &'a Workspace) -> Probe<'a> {
        redis::ping_probe(workspace)
    }

    fn extra_ports(&self) -> usize {
        1
    }

    fn environment(&self) -> Vec<(String, String)> {
        self.redis.environment()
    }

    fn prepare(&self, workspace: &Workspace) -> Result<()> {
        self.redis.prepare(workspace)
    }

    fn clean_up(&self, workspace: &Workspace) {
        self.redis.clean_up(workspace);
    }

    fn disk(&self) -> Option<u64> {
        ServerSpec::disk(&self.redis)
    }

    fn run_as(&self) -> Option<&str> {
        ServerSpec::run_as(&self.redis)
    }
}
