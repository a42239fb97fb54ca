//! The checks of `leasehold doctor` for Redis: `gather` queries the servers, and `rules` judge the
//! facts.
//!
//! The probes run a lock's commands, with the engine's own prefix and names that no client uses,
//! and clean up. All other queries are read-only and limited: at most 100 pings, 128 entries of the
//! slow log, and 2000 of leasehold's keys among 300,000 of all.

mod cluster;
mod facts;
mod gather;
mod keys;
mod measure;
mod probe;
mod probe_name;
mod query;
pub(crate) mod redlock;
mod rules;
mod sentinel;

use std::time::Duration;

use self::facts::{Deployment, Requirements};
use self::rules::ExpectedRole;
use crate::Finding;
use leasehold::Result;
use leasehold::engine::EngineUrl;
use leasehold_internals::redis::{Config, Topology};

/// Examines one server, a master with its Sentinels, or a cluster, as the URL says; `ttl` is that
/// of the locks.
pub(crate) async fn examine(url: &EngineUrl, ttl: Duration) -> Result<Vec<Finding>> {
    let config = Config::read(url)?;
    let requirements = |kind| Requirements::new(&config, ttl, kind);
    Ok(match &config.topology {
        Topology::Single(address) => {
            let replicas = gather::list_replicas(&config, address).await;
            let replicas = replicas.into_iter().map(|replica| (replica, ExpectedRole::Replica, Vec::new()));
            let servers: Vec<_> =
                [(address.clone(), ExpectedRole::Master, Vec::new())].into_iter().chain(replicas).collect();
            gather::examine_servers(&config, &servers, &requirements(Deployment::Single), None).await
        }
        Topology::Sentinel(sentinels, name) => {
            sentinel::examine(&config, sentinels, name, &requirements(Deployment::Sentinel)).await
        }
        Topology::Cluster(nodes) => cluster::examine(&config, nodes, &requirements(Deployment::Cluster)).await,
    })
}
