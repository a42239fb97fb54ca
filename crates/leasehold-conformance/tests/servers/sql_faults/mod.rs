//! What the lease table of `mysql:` and `postgres:` survives on real servers: killed connections
//! and servers, cut and frozen connections, lost replies, clocks set back, poolers, replicas,
//! clusters. The suite covers the behaviour itself.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "tests report failures by panicking")]

mod clocks;
mod connections;
mod costs;
mod deployments;
mod fixture;
mod force_released_waiters;
mod force_releases;
mod formats;
mod local_hand_offs;
pub(crate) mod manual_transaction;
mod many_waiters;
mod names;
#[cfg(feature = "nightly")]
mod nightly;
mod records;
mod rows;
pub(crate) mod shared_server;
pub(crate) mod shifted_clock;
mod shortage;
mod undeclared_pooler;
mod wrong_server;
