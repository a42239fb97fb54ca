//! What `zookeeper:` leaves in its folders, and what it finds there, on real servers: folders that vanish, sequences that end,
//! names that nobody expects and nodes of others. The behaviour itself is the suite's.
#![allow(clippy::expect_used, reason = "a test: what fails here is the finding")]

mod fixture;
mod folder_removal;
mod foreign_nodes;
mod names;
mod sequence_exhaustion;
mod snapshot;
