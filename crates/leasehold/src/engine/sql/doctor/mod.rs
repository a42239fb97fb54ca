//! What `leasehold doctor` looks at: `gather` asks, `rules` judge, and nothing else decides.
//!
//! Each server of the URL is asked by itself. A lock of nobody's name is taken and written to in a transaction that is rolled
//! back. All else is read only, and bounded: 100,000 rows are counted, and 500 looked into.

mod facts;
mod gather;
mod my;
mod pg;
mod probe;
mod rules;

use std::time::Duration;

use super::Dialect;
use super::config::Config;
use crate::doctor::Finding;
use crate::engine::EngineUrl;
use crate::error::Result;

/// Examines a database.
pub(crate) async fn examine(url: &EngineUrl, ttl: Duration) -> Result<Vec<Finding>> {
    let dialect = if url.scheme == "mysql" { Dialect::MySql } else { Dialect::Postgres };
    let config = Config::read(dialect, url)?;
    Ok(rules::all(&gather::all(&config, ttl).await))
}
