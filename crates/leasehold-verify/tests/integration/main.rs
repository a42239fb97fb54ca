//! Tests the checker, the reports, the deployments and the command of `leasehold-verify`.

mod checker;
mod command;
#[cfg(feature = "nightly")]
mod command_long;
mod deployment;
mod report;
mod smoke;
