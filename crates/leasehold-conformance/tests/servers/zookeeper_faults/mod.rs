//! What `zookeeper:` survives, on real servers: leaders that die, followers that are cut off, lines that break, answers that are lost,
//! nodes that somebody deletes. The behaviour itself is the suite's.
#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "a test: what fails here is the finding")]

mod connections;
mod dropped_calls;
#[cfg(feature = "nightly")]
mod ended_holds;
#[cfg(feature = "nightly")]
mod ensemble;
mod evictions;
mod fencing;
mod fixture;
mod leader;
mod nodes;
mod re_entry;
mod requests;
mod sessions;
