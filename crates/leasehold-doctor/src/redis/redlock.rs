//! Examines the nodes of Redlock, independent servers that vote on each lock, and compares them.

use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};

use super::facts::{Deployment, NodeFacts, Requirements};
use super::{gather, rules};
use crate::Finding;
use leasehold::Result;
use leasehold_internals::logic::lease::Drift;
use leasehold_internals::logic::quorum::Quorum;
use leasehold_internals::redis::{Address, Config, Topology};

/// The timeout for resolving a host name.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// What the URL demands of all nodes together.
#[derive(Clone, Debug)]
pub(crate) struct RedlockSettings {
    pub(crate) quorum: Quorum,
    /// Whether the URL allows an even number of nodes.
    pub(crate) is_even_allowed: bool,
    /// How long a client waits for one node.
    pub(crate) node_timeout: Duration,
    /// How far clocks may drift apart during a lease.
    pub(crate) drift: Drift,
    /// The longest lease, which is also the length of a node's cool-down; `None` without strict
    /// mode.
    pub(crate) strict: Option<Duration>,
}

/// A node of Redlock.
#[derive(Debug)]
pub(crate) struct Voter {
    pub(crate) address: Address,
    /// The IP addresses of its host name; empty if they are not known.
    pub(crate) ips: Vec<IpAddr>,
    /// What is known of it; the error if it is unreachable.
    pub(crate) facts: Result<NodeFacts>,
}

/// Queries all servers concurrently, and judges them.
pub(crate) async fn examine(nodes: &[Arc<Config>], settings: &RedlockSettings, ttl: Duration) -> Vec<Finding> {
    let Some(first) = nodes.first() else { return Vec::new() };
    let requirements = &Requirements::new(first, ttl, Deployment::Redlock);
    let queries = nodes.iter().filter_map(|config| match &config.topology {
        Topology::Single(address) => Some(gather_voter(config, address, requirements)),
        _ => None,
    });
    rules::redlock::judge_voters(&join_all(queries).await, settings, requirements)
}

/// Queries the facts of one node, and resolves its host name.
async fn gather_voter(config: &Config, address: &Address, requirements: &Requirements) -> Voter {
    let (answer, places) =
        join(gather::gather_node(config, address, requirements, &[]), resolve_addresses(config, address.clone())).await;
    Voter { address: address.clone(), ips: places, facts: answer }
}

/// The IP addresses of a host name; none if they cannot be resolved in time.
async fn resolve_addresses(config: &Config, address: Address) -> Vec<IpAddr> {
    let lookup = move || (address.host.as_str(), address.port).to_socket_addrs().map(Vec::from_iter);
    match config.clock.timeout(LOOKUP_TIMEOUT, tokio::task::spawn_blocking(lookup)).await {
        Ok(Ok(Ok(found))) => found.iter().map(|place| place.ip()).collect(),
        _ => Vec::new(),
    }
}
