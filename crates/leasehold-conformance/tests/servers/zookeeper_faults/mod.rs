//! What `zookeeper:` survives on real servers: dying leaders, partitioned followers, broken
//! connections, lost replies, deleted nodes. The suite covers the behaviour itself.
#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "tests report failures by panicking")]

mod connections;
mod dropped_calls;
#[cfg(feature = "nightly")]
mod ended_holds;
#[cfg(feature = "nightly")]
mod ensemble;
mod fencing;
mod fixture;
mod force_releases;
mod leader;
mod nodes;
mod re_entry;
mod requests;
mod sessions;
