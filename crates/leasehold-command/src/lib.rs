//! Shared by the commands `leasehold` and `leasehold-verify`: exit codes, output, durations,
//! start-up and exit.
//!
//! This crate has no stable interface.

pub mod duration;
pub mod exit;
pub mod output;
pub mod secret;
pub mod startup;
pub mod verify_options;
