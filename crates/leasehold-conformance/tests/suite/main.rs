//! The behaviour suite, on every engine: one module for each. The gate runs all of it where an engine differs from all others, and
//! the essential cases of the techniques that hold a lock by a connection; the nightly run has all of it everywhere.

mod completeness;
mod file;
#[cfg(feature = "nightly")]
mod limited;
mod memory;
mod model;
mod mysql;
mod mysql_for_update;
mod mysql_session;
mod outside;
mod postgres;
mod postgres_for_update;
mod postgres_session;
mod redis;
mod redis_cluster;
#[cfg(feature = "nightly")]
mod redis_sentinel;
mod redlock;
mod zookeeper;
