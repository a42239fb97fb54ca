//! What `zookeeper:` leaves in its folders, and what it finds there, on real servers: folders that vanish, sequences that end,
//! names that nobody expects and nodes of others. The behaviour itself is the suite's.
#![allow(clippy::expect_used, reason = "a test: what fails here is the finding")]

mod end_of_numbers;
mod names;
mod site;
mod snapshot;
mod strangers;
mod vanishing;
