//! Each engine, and each fault that it can have: begun, ended, and the engine grants again.
#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "a test: what fails here is the finding")]

mod controls;
mod engines;
mod left;
mod refusals;
mod remote;
mod site;
mod wires;
