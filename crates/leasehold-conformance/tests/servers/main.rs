//! What each engine costs and survives, on real servers that are killed, paused and cut off.

mod away;
mod cache;
mod examples;
mod flash_sale;
mod own_tables;
mod redis_bundles;
mod redis_deployments;
mod redis_faults;
mod redis_mistakes;
mod redis_simple;
mod redis_ticks;
mod redlock_faults;
mod sql_faults;
mod sql_held_faults;
mod zookeeper_access;
mod zookeeper_faults;
mod zookeeper_folders;
