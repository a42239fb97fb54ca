//! The checker on histories made by hand and at random: what keeps a promise, and what breaks it.
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
