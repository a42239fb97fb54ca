//! The behaviour suite on every engine, one module each. The gate runs all of it for engines that
//! differ from the others, and the essential cases for the techniques that hold a lock by a
//! connection. Nightly runs cover everything.

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
