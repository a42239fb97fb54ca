//! How one node of a cluster is started.

use crate::{
    process::{Binary, Place, Probe, Recipe},
    redis::{self, Redis},
};

/// A node to be started, alone at first.
#[derive(Clone, Debug)]
pub(super) struct Node;

impl Recipe for Node {
    fn binary(&self) -> Binary {
        Redis::new().binary()
    }

    fn arguments(&self, place: &Place) -> Vec<String> {
        let bus = place.extra_ports()[0].to_string();
        let ours = [
            ["--cluster-enabled", "yes"],
            ["--cluster-port", &bus],
            ["--cluster-config-file", "nodes.conf"],
            ["--cluster-node-timeout", "2000"],
            ["--cluster-announce-ip", "127.0.0.1"],
            // Who replicates whom changes by failovers only.
            ["--cluster-allow-replica-migration", "no"],
        ];
        Redis::new().args(&ours.concat()).arguments(place)
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
}
