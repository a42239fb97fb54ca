//! How one node of a cluster is started.

use std::time::Duration;

use crate::{
    Result,
    process::{Binary, Place, Probe, Recipe},
    redis::{self, Redis},
};

/// A node to be started, alone at first.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) redis: Redis,
    /// After how long a silence it takes another for dead.
    pub(super) timeout: Duration,
}

impl Recipe for Node {
    fn binary(&self) -> Binary {
        self.redis.binary()
    }

    fn arguments(&self, place: &Place) -> Vec<String> {
        let bus = place.extra_ports()[0].to_string();
        let timeout = self.timeout.as_millis().to_string();
        let ours = [
            ["--cluster-enabled", "yes"],
            ["--cluster-port", &bus],
            ["--cluster-config-file", "nodes.conf"],
            ["--cluster-node-timeout", &timeout],
            ["--cluster-announce-ip", "127.0.0.1"],
            // Who replicates whom changes by failovers only.
            ["--cluster-allow-replica-migration", "no"],
        ];
        self.redis.clone().args(&ours.concat()).arguments(place)
    }

    fn url(&self, place: &Place) -> String {
        format!("redis+cluster://127.0.0.1:{}", place.port())
    }

    fn probe<'a>(&'a self, place: &'a Place) -> Probe<'a> {
        redis::ping(place)
    }

    fn extra_ports(&self) -> usize {
        1
    }

    fn environment(&self) -> Vec<(String, String)> {
        self.redis.environment()
    }

    fn prepare(&self, place: &Place) -> Result<()> {
        self.redis.prepare(place)
    }

    fn clean_up(&self, place: &Place) {
        self.redis.clean_up(place);
    }
}
