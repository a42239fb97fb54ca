//! The cache beside its database, on a real MariaDB and a real Redis: each race by itself, in an order that gates decide, with what the
//! textbook's strategies make of it beside ours.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "a test: what fails here is the finding")]

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
