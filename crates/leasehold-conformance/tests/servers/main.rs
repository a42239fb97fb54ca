//! What each engine costs and which faults it survives, on real servers that are killed, paused and
//! partitioned.

mod cache;
mod examples;
mod flash_sale;
mod own_tables;
mod redis_cron_ticks;
mod redis_deployments;
mod redis_faults;
mod redis_mistakes;
mod redis_renewal_groups;
mod redis_simple;
mod redlock_faults;
mod sql_faults;
mod sql_session_faults;
mod unreachable_engine;
mod zookeeper_access;
mod zookeeper_faults;
mod zookeeper_folders;
