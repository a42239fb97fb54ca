//! Several independent servers that vote on each lock: each of them, and all in comparison.

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
use leasehold_internals::redis::config::{Address, Config, Topology};

/// Timeout of a name lookup.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// The settings in the URL for all servers together.
#[derive(Clone, Debug)]
pub(crate) struct RedlockSettings {
    pub(crate) quorum: Quorum,
    /// Whether an even number is intended.
    pub(crate) is_even_allowed: bool,
    pub(crate) node_timeout: Duration,
    pub(crate) drift: Drift,
    /// The longest lease: the length of the cool-down of a server that may have lost leases.
    pub(crate) strict: Option<Duration>,
}

/// One server.
#[derive(Debug)]
pub(crate) struct Voter {
    pub(crate) address: Address,
    /// The addresses of its name.
    pub(crate) ips: Vec<IpAddr>,
    pub(crate) facts: Result<NodeFacts>,
}

/// Queries all servers concurrently, and judges them.
pub(crate) async fn examine(nodes: &[Arc<Config>], settings: &RedlockSettings, ttl: Duration) -> Vec<Finding> {
    let Some(first) = nodes.first() else { return Vec::new() };
    let aim = &Requirements::new(first, ttl, Deployment::Redlock);
    let queries = nodes.iter().filter_map(|config| match &config.topology {
        Topology::Single(address) => Some(gather_voter(config, address, aim)),
        _ => None,
    });
    rules::redlock::judge(&join_all(queries).await, settings, aim)
}

async fn gather_voter(config: &Config, address: &Address, aim: &Requirements) -> Voter {
    let (answer, places) = join(gather::gather_node(config, address, aim, &[]), resolve(config, address.clone())).await;
    Voter { address: address.clone(), ips: places, facts: answer }
}

/// The addresses of a name; none if the lookup fails.
async fn resolve(config: &Config, address: Address) -> Vec<IpAddr> {
    let lookup = move || (address.host.as_str(), address.port).to_socket_addrs().map(Vec::from_iter);
    match config.clock.timeout(LOOKUP_TIMEOUT, tokio::task::spawn_blocking(lookup)).await {
        Ok(Ok(Ok(found))) => found.iter().map(|place| place.ip()).collect(),
        _ => Vec::new(),
    }
}
