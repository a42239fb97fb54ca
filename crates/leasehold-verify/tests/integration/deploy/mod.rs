//! Each engine, and each fault that it can have: begins, ends, and the engine grants again.
#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "a test: what fails here is the finding")]

mod alone;
#[cfg(feature = "nightly")]
mod controls;
#[cfg(feature = "nightly")]
mod engines;
mod left;
#[cfg(feature = "nightly")]
mod left_on_servers;
mod refusals;
mod remote;
#[cfg(feature = "nightly")]
mod remote_redlock;
mod site;
mod wires;
