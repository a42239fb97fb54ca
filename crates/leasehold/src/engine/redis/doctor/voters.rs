//! Several independent servers that vote on each lock: each of them, and all beside each other.

use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};

use super::super::config::{Address, Config, Topology};
use super::facts::{Aim, Kind, Node};
use super::{gather, rules};
use crate::doctor::Finding;
use crate::error::Result;
use crate::logic::lease::Drift;
use crate::logic::quorum::Quorum;

/// How long a name is looked up.
const LOOK_UP: Duration = Duration::from_secs(5);

/// What the URL says of them together.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) quorum: Quorum,
    /// Whether an even number is wanted.
    pub(crate) even_allowed: bool,
    pub(crate) node_timeout: Duration,
    pub(crate) drift: Drift,
    /// The longest lease, for which a server abstains that may have forgotten some.
    pub(crate) strict: Option<Duration>,
}

/// One of them.
#[derive(Debug)]
pub(crate) struct Voter {
    pub(crate) address: Address,
    /// Where its name leads to.
    pub(crate) places: Vec<IpAddr>,
    pub(crate) answer: Result<Node>,
}

/// Asks all of them at once, and judges them.
pub(in crate::engine) async fn examine(nodes: &[Arc<Config>], plan: &Plan, ttl: Duration) -> Vec<Finding> {
    let Some(first) = nodes.first() else { return Vec::new() };
    let aim = &Aim::new(first, ttl, Kind::Redlock);
    let asked = nodes.iter().filter_map(|config| match &config.topology {
        Topology::Single(address) => Some(voter(config, address, aim)),
        _ => None,
    });
    rules::voters::all(&join_all(asked).await, plan, aim)
}

async fn voter(config: &Config, address: &Address, aim: &Aim) -> Voter {
    let (answer, places) = join(gather::node(config, address, aim, &[]), places(config, address.clone())).await;
    Voter { address: address.clone(), places, answer }
}

/// Where a name leads to; nowhere, if nobody knows.
async fn places(config: &Config, address: Address) -> Vec<IpAddr> {
    let look = move || (address.host.as_str(), address.port).to_socket_addrs().map(Vec::from_iter);
    match config.clock.timeout(LOOK_UP, tokio::task::spawn_blocking(look)).await {
        Ok(Ok(Ok(found))) => found.iter().map(|place| place.ip()).collect(),
        _ => Vec::new(),
    }
}
