//! What `zookeeper:` leaves in its folders, and what it finds there, on real servers: removed
//! folders, exhausted sequences, unusual names and foreign nodes. The suite covers the behaviour
//! itself.
#![allow(clippy::expect_used, reason = "tests report failures by panicking")]

mod fixture;
mod folder_removal;
mod foreign_nodes;
mod formats;
mod names;
mod sequence_exhaustion;
mod snapshot;
