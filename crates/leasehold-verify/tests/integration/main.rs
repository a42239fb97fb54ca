//! The checker, the report and the deployments of `leasehold-verify`.

mod check;
mod command;
#[cfg(feature = "nightly")]
mod command_long;
mod deploy;
mod report;
mod smoke;
