//! The command `leasehold`, as a user runs it.

mod common;
mod cron;
mod cron_redis;
mod doctor;
mod doctor_redlock;
mod doctor_sql;
mod doctor_zookeeper;
mod errors;
mod exit_codes;
#[cfg(feature = "nightly")]
mod fleet;
mod inherited_environment;
mod locking;
mod lost_lock;
mod other_commands;
mod passwords;
mod redis;
mod redlock;
mod shared_folder;
mod signals;
mod sql;
mod terminal;
mod three_hosts;
mod unreachable_engine;
mod verify;
mod zookeeper;
