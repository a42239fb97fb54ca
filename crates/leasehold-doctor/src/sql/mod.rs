//! The checks of `leasehold doctor` for databases: `gather` queries the servers, and `rules` judge
//! the facts.
//!
//! Each server of the URL is queried separately. A lock with an unused name is acquired and written
//! to, in a transaction that is rolled back. All other queries are read-only and limited: 100,000
//! rows are counted, and 500 are parsed.

mod facts;
mod gather;
mod mysql;
mod postgres;
mod probe;
mod rules;

use std::time::Duration;

use crate::Finding;
use leasehold::Result;
use leasehold::engine::EngineUrl;
use leasehold_internals::sql::Dialect;
use leasehold_internals::sql::config::Config;

/// Examines the database servers of the URL; `ttl` is that of the locks.
pub(crate) async fn examine(url: &EngineUrl, ttl: Duration) -> Result<Vec<Finding>> {
    let dialect = if url.scheme == "mysql" { Dialect::MySql } else { Dialect::Postgres };
    let config = Config::from_url(dialect, url)?;
    Ok(rules::judge_all(&gather::gather_facts(&config, ttl).await))
}
