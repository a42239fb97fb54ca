//! What `redlock:` survives on real servers: nodes that die, hang, lose data, have skewed clocks or
//! reply late. The suite covers the behaviour itself.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "tests report failures by panicking")]

mod addresses;
mod clocks;
mod empty_restarts;
mod fixture;
mod force_release;
mod formats;
mod hung_nodes;
#[cfg(feature = "nightly")]
mod nightly;
mod no_majority;
mod options;
mod proxied_connections;
mod reentry;
mod review_findings;
mod scripts;
mod tokens;
mod two_dead_nodes;
