//! The checker, the report and the deployments of `leasehold-verify`.

mod check;
mod command;
mod deploy;
mod report;
