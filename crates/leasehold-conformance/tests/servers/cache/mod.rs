//! The cache on a real MariaDB and Redis. Gates order the steps of each race; textbook strategies
//! run beside leasehold's as controls.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "tests report failures by panicking")]

mod clock_set_back;
#[cfg(feature = "nightly")]
mod cluster_and_sentinel;
mod controls;
mod crashes;
mod deployments;
#[cfg(feature = "nightly")]
mod double_delete;
mod fixture;
mod outage;
mod races;
mod scripts;
#[cfg_attr(not(feature = "nightly"), allow(dead_code, reason = "the gate runs a part of the example"))]
#[path = "../../../../../examples/cache/shop.rs"]
mod shop;
mod shop_example;
mod stampede;
mod writers;
