//! What `leasehold doctor` looks at: `gather` asks, `rules` judge, and nothing else decides.
//!
//! Each server of the URL is asked by four-letter words, and by a session of its own; one more session looks at the nodes. A
//! lock of nobody's name is made, written to a few times and removed; parents of it that were not there are removed again, too. All
//! else is read only, and bounded: 1000 locks, 10,000 claims.

mod facts;
mod gather;
mod probe;
mod rules;
mod walk;
mod words;

use std::time::Duration;

use super::config::Config;
use crate::doctor::Finding;
use crate::engine::EngineUrl;
use crate::error::Result;

/// Examines an ensemble.
pub(crate) async fn examine(url: &EngineUrl, ttl: Duration) -> Result<Vec<Finding>> {
    let config = Config::read(url)?;
    Ok(rules::all(&gather::all(&config, ttl).await?))
}
