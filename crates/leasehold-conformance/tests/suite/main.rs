//! The behaviour suite, on every engine: one module for each.

mod file;
mod limited;
mod memory;
mod meta;
mod model;
mod mysql;
mod mysql_for_update;
mod mysql_session;
mod postgres;
mod postgres_for_update;
mod postgres_session;
mod redis;
mod redis_cluster;
mod redis_sentinel;
mod redlock;
mod zookeeper;
