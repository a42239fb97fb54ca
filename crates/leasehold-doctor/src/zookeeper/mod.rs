//! The checks of `leasehold doctor` for ZooKeeper: `gather` queries the servers, and `rules` judge
//! the facts.
//!
//! Each server of the URL is queried with four-letter words and in its own session. One more
//! session examines the nodes. A lock with an unused name is created, written to a few times and
//! removed. Parents that were created for it are removed, too. All other queries are read-only and
//! limited: 1000 locks, 10,000 claims.

mod facts;
mod four_letter_words;
mod gather;
mod probe;
mod rules;
mod walk;

use std::time::Duration;

use crate::Finding;
use leasehold::Result;
use leasehold::engine::EngineUrl;
use leasehold_internals::zookeeper::config::Config;

/// Examines the ensemble of the URL; `ttl` is that of the locks.
pub(crate) async fn examine(url: &EngineUrl, ttl: Duration) -> Result<Vec<Finding>> {
    let config = Config::from_url(url)?;
    Ok(rules::judge_all(&gather::gather_facts(&config, ttl).await?))
}
