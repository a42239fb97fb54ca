//! What `redlock:` survives, on real servers: nodes that die, hang, forget, disagree about the time or answer late. The behaviour
//! itself is the suite's.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "a test: what fails here is the finding")]

mod addresses;
mod clocks;
mod eviction;
mod forgetful;
mod hung;
mod lines;
#[cfg(feature = "nightly")]
mod nightly;
mod options;
mod pairs;
mod reentry;
mod review;
mod scripts;
mod site;
mod tokens;
mod too_few;
