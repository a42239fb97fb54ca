//! The checker, the report and the deployments of `leasehold-verify`.

mod checker;
mod command;
#[cfg(feature = "nightly")]
mod command_long;
mod deployment;
mod report;
mod smoke;
