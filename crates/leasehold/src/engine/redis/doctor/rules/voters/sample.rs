//! Servers for these rules' tests.

use std::time::Duration;

use super::super::super::super::config::Address;
use super::super::super::facts::{Aim, Kind, MasterFacts, Node};
use super::super::super::voters::{Plan, Voter};
use super::super::sample;
use crate::logic::lease::Drift;
use crate::logic::quorum::Quorum;

pub(super) fn aim() -> Aim {
    Aim { kind: Kind::Redlock, ..sample::aim() }
}

pub(super) fn plan(nodes: usize) -> Plan {
    Plan {
        quorum: Quorum::of(nodes),
        even_allowed: false,
        node_timeout: Duration::from_millis(250),
        drift: Drift::REMOTE,
        strict: None,
    }
}

/// A separate, healthy server.
pub(super) fn node(number: usize) -> Node {
    let healthy = sample::healthy().with_info("run_id", &format!("run{number}"));
    let master = healthy.master.clone().map(|master| MasterFacts { echo: None, tracking: None, ..master });
    Node { address: format!("h{number}:6379"), master, ..healthy }
}

/// The server, on a separate machine.
pub(super) fn voter(node: Node) -> Voter {
    let (host, port) = node.address.split_once(':').unwrap();
    let number: u8 = host[1..].parse().unwrap();
    let address = Address { host: host.to_owned(), port: port.parse().unwrap() };
    Voter { address, places: vec![[10, 0, 0, number].into()], answer: Ok(node) }
}

pub(super) fn five() -> Vec<Voter> {
    (1..=5).map(|number| voter(node(number))).collect()
}
