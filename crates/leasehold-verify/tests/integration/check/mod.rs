//! Tests the checker on hand-made and random histories, with and without violations.
#![allow(clippy::expect_used, reason = "a test: what fails here is the finding")]

mod agree;
mod build;
mod evictions;
mod faults;
mod guaranteed;
mod holds;
#[cfg(feature = "nightly")]
mod long;
mod random;
mod registers;
mod serving;
mod simulate;
mod spared;
mod ticks;
mod whole;
