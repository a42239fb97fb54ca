//! The checks of `leasehold doctor` for `redlock:`: the URL's settings for all nodes, and each
//! node.

use std::time::Duration;

use crate::Finding;
use crate::redis::redlock::{self, RedlockSettings};
use leasehold::Result;
use leasehold::engine::EngineUrl;
use leasehold_internals::redlock::config::Config;

/// Examines the nodes. An even number of nodes is a finding here, not an error.
pub(crate) async fn examine(url: &EngineUrl, ttl: Duration) -> Result<Vec<Finding>> {
    let (config, even_allowed) = Config::read_any_count(url)?;
    let settings = RedlockSettings {
        quorum: config.quorum,
        is_even_allowed: even_allowed,
        node_timeout: config.node_timeout,
        drift: config.drift,
        strict: config.nodes.first().and_then(|node| node.strict),
    };
    Ok(redlock::examine(&config.nodes, &settings, ttl).await)
}
