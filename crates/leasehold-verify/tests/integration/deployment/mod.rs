//! Tests deployments: each fault that an engine can have begins and ends, and the engine grants
//! locks again.
#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "tests report failures by panicking")]

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
