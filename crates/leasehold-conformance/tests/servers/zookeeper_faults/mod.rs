//! What `zookeeper:` survives, on real servers: leaders that die, followers that are cut off, lines that break, answers that are lost,
//! nodes that somebody deletes. The behaviour itself is the suite's.
#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "a test: what fails here is the finding")]

#[cfg(feature = "nightly")]
mod again;
#[cfg(feature = "nightly")]
mod ensemble;
mod evictions;
mod fencing;
mod leader;
mod lines;
mod nodes;
mod requests;
mod review;
mod riders;
mod sessions;
mod site;
