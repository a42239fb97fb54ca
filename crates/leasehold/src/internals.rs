//! What leasehold's own crates use of the inside. They reach it through the crate
//! `leasehold-internals`, which has no stable interface.

/// The pure decisions.
pub mod logic {
    pub use crate::logic::*;
}
/// Metrics that may be switched off.
pub mod metrics {
    pub use crate::metrics::{Metrics, OptionalMetrics};

    /// The metrics to which these locks report.
    pub fn of(locks: &crate::Locks) -> &OptionalMetrics {
        &locks.shared.manager.metrics
    }
}
/// Random bits and delays.
pub mod random {
    pub use crate::random::*;
}
/// The folder of the file engine, which needs Linux.
#[cfg(all(feature = "file", target_os = "linux"))]
pub mod file {
    pub use crate::engine::file::{config, folder};
}
/// Connections to Redis, and the keys and scripts there.
#[cfg(feature = "redis")]
pub mod redis {
    pub use crate::engine::redis::{config, connect, error, link, nodes, wire};
}
/// The settings of Redlock.
#[cfg(feature = "redis")]
pub mod redlock {
    pub use crate::engine::redlock::config;
}
/// Connections to databases, and the tables there.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub mod sql {
    pub use crate::engine::sql::{Dialect, config, connection, ddl, error, lease, session_locks};
}
/// Sessions of ZooKeeper, and the nodes there.
#[cfg(feature = "zookeeper")]
pub mod zookeeper {
    pub use crate::engine::zookeeper::{MIN_TTL, config, error, session, wire};
}
