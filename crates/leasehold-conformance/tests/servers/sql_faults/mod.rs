//! What the lease table of `mysql:` and `postgres:` survives, on real servers: killed connections, killed servers, cut and frozen
//! lines, lost answers, clocks that are set back, poolers, replicas, clusters. The behaviour itself is the suite's.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "a test: what fails here is the finding")]

pub(crate) mod ahead;
mod clocks;
mod cohorts;
mod costs;
mod crowd;
mod evicted_waiters;
mod evictions;
pub(crate) mod hand;
mod lines;
mod names;
#[cfg(feature = "nightly")]
mod nightly;
mod places;
mod pooled;
mod records;
mod rows;
pub(crate) mod shared;
mod shortage;
mod site;
mod wrong;
