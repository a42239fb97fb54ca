//! The private parts of this crate that leasehold's own crates use. They reach them through the
//! crate `leasehold-internals`, whose interface is not stable.

/// The number of the format in which leasehold stores everything at an engine.
pub const FORMAT: u32 = crate::types::FORMAT;
/// The decisions of the protocols, without I/O.
pub mod logic {
    pub use crate::logic::*;
}
/// The receiver of metrics, and the one to which a [`Locks`](crate::Locks) reports.
pub mod metrics {
    pub use crate::metrics::{Metrics, OptionalMetrics};

    /// The metrics to which these locks report.
    pub fn of(locks: &crate::Locks) -> &OptionalMetrics {
        &locks.shared.manager.metrics
    }
}
/// Random bits and claim ids.
pub mod random {
    pub use crate::random::*;
}
/// The folder of the file engine, which needs Linux.
#[cfg(all(feature = "file", target_os = "linux"))]
pub mod file {
    pub use crate::engine::file::{config, folder};
}
/// Connections to Redis, and the keys and scripts that the engine uses there.
#[cfg(feature = "redis")]
pub mod redis {
    pub use crate::engine::redis::wire;
    pub use crate::redis_client::*;
}
/// The settings of Redlock, and the values that it stores.
#[cfg(feature = "redis")]
pub mod redlock {
    pub use crate::engine::redlock::{config, wire};
}
/// Connections to PostgreSQL and MySQL, and the tables that the engine uses there.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub mod sql {
    pub use crate::engine::sql::{Dialect, config, connection, ddl, error, lease, session_locks};
}
/// Sessions of ZooKeeper, and the nodes that the engine uses there.
#[cfg(feature = "zookeeper")]
pub mod zookeeper {
    pub use crate::engine::zookeeper::{MIN_TTL, config, error, session, wire};
}
