//! The checks of `leasehold doctor`: the URL's settings for all nodes together, and then each node.

use std::time::Duration;

use super::config::Config;
use crate::doctor::Finding;
use crate::engine::EngineUrl;
use crate::engine::redis::doctor::redlock::{self, RedlockSettings};
use crate::error::Result;

/// Examines the nodes. An even number of nodes is a finding here, not an error.
pub(crate) async fn examine(url: &EngineUrl, ttl: Duration) -> Result<Vec<Finding>> {
    let (config, even_allowed) = Config::read_any_count(url)?;
    let plan = RedlockSettings {
        quorum: config.quorum,
        is_even_allowed: even_allowed,
        node_timeout: config.node_timeout,
        drift: config.drift,
        strict: config.nodes.first().and_then(|node| node.strict),
    };
    Ok(redlock::examine(&config.nodes, &plan, ttl).await)
}
