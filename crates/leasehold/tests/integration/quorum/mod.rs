//! The `redlock:` protocol without a network: `model` checks every order of events within small
//! bounds, and `simulation` does many long random runs with faults. Both use the real decisions of
//! client and node, and the client in `client`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "these are tests")]

mod client;
mod model;
mod simulation;
