//! What the commands `leasehold` and `leasehold-verify` share: exit codes, output, durations, and how a command starts and ends.
//!
//! This crate has no stable interface.

pub mod duration;
pub mod exit;
pub mod output;
pub mod secret;
pub mod start;
pub mod verify;
