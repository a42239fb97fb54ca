//! Redis as it is run: alone with replicas, behind Sentinels, as a cluster; and what all of these have in common.
#![allow(clippy::expect_used, reason = "a test: what fails here is the finding")]

mod acl;
mod acl_bundles;
#[cfg(feature = "nightly")]
mod acl_deployments;
#[cfg(feature = "nightly")]
mod acl_redlock;
mod all;
mod cluster_hung;
#[cfg(feature = "nightly")]
mod cluster_masters;
mod cluster_moves;
mod deployment;
mod election;
mod failover;
#[cfg(feature = "nightly")]
mod failover_more;
mod inherited;
mod logins;
#[cfg(feature = "nightly")]
mod logins_cluster;
mod records;
mod replicas;
#[cfg(feature = "nightly")]
mod replicas_away;
mod review;
#[cfg(feature = "nightly")]
mod review_sets;
mod scale_out;
mod strict;
#[cfg(feature = "nightly")]
mod strict_waits;
mod tls;
