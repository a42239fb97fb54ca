//! Nodes of Redlock for the tests of the rules.

use std::time::Duration;

use super::super::super::facts::{Deployment, MasterFacts, NodeFacts, Requirements};
use super::super::super::redlock::{RedlockSettings, Voter};
use super::super::fixtures;
use leasehold_internals::logic::lease::Drift;
use leasehold_internals::logic::quorum::Quorum;
use leasehold_internals::redis::Address;

/// For tests: what a URL with default options requires of five servers.
pub(super) fn requirements() -> Requirements {
    Requirements { deployment: Deployment::Redlock, ..fixtures::requirements() }
}

/// The default settings for this many nodes, without strict mode.
pub(super) fn settings(node_count: usize) -> RedlockSettings {
    RedlockSettings {
        quorum: Quorum::from_node_count(node_count),
        is_even_allowed: false,
        node_timeout: Duration::from_millis(250),
        drift: Drift::REMOTE,
        strict: None,
    }
}

/// A healthy server of its own, `h<number>:6379`.
pub(super) fn node(number: usize) -> NodeFacts {
    let healthy = fixtures::healthy().with_info("run_id", &format!("run{number}"));
    let master = healthy.master.clone().map(|master| MasterFacts { echo: None, tracking: None, ..master });
    NodeFacts { address: format!("h{number}:6379"), master, ..healthy }
}

/// A node of Redlock that is this server, on a machine of its own.
pub(super) fn voter(node: NodeFacts) -> Voter {
    let (host, port) = node.address.split_once(':').unwrap();
    let number: u8 = host[1..].parse().unwrap();
    let address = Address { host: host.to_owned(), port: port.parse().unwrap() };
    Voter { address, ips: vec![[10, 0, 0, number].into()], facts: Ok(node) }
}

pub(super) fn five_voters() -> Vec<Voter> {
    (1..=5).map(|number| voter(node(number))).collect()
}
