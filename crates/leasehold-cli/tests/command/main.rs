//! The command `leasehold`, as a user runs it.

mod away;
mod codes;
mod common;
mod cron;
mod cron_redis;
mod doctor;
mod doctor_redlock;
mod doctor_sql;
mod doctor_zookeeper;
mod errors;
#[cfg(feature = "nightly")]
mod fleet;
mod inherited;
mod locking;
mod lost;
mod others;
mod passwords;
mod redis;
mod redlock;
mod shared_folder;
mod signals;
mod sql;
mod terminal;
mod three_hosts;
mod verify;
mod zookeeper;
