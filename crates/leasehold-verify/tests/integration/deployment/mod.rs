//! Each engine, and each fault that it can have: begins, ends, and the engine grants again.
#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "a test: what fails here is the finding")]

#[cfg(feature = "nightly")]
mod controls;
#[cfg(feature = "nightly")]
mod engines;
mod fixture;
#[cfg(feature = "nightly")]
mod leftover_sessions;
mod leftovers;
mod memory_and_file;
mod network_namespace;
mod refusals;
mod remote;
#[cfg(feature = "nightly")]
mod remote_redlock;
