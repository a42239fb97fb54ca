//! Tests the checker with written and random histories, with and without violations.
#![allow(clippy::expect_used, reason = "tests report failures by panicking")]

mod availability;
mod faults;
mod force_releases;
mod history_builder;
mod holds;
#[cfg(feature = "nightly")]
mod long;
mod not_guaranteed;
mod random;
mod registers;
mod simulation;
mod three_checkers;
mod ticks;
mod unaffected_servers;
mod verdict;
