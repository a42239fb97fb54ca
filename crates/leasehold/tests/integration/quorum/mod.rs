//! Majorities of nodes without a network: every order of events within small bounds (`model`), and
//! many long random runs with faults (`simulation`). Both use the real decisions of client and
//! node, and one client around them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "these are tests")]

mod client;
mod model;
mod simulation;
