//! Redis deployments: a server with replicas, Sentinels, a cluster, and what they have in common.
#![allow(clippy::expect_used, reason = "tests report failures by panicking")]

mod acl;
#[cfg(feature = "nightly")]
mod acl_deployments;
#[cfg(feature = "nightly")]
mod acl_redlock;
mod acl_renewal_groups;
mod cluster_hung;
#[cfg(feature = "nightly")]
mod cluster_masters;
mod cluster_moves;
mod deployment;
mod election;
mod failover;
#[cfg(feature = "nightly")]
mod failover_more;
mod inherited_leases;
mod logins;
#[cfg(feature = "nightly")]
mod logins_cluster;
mod multi_lock;
mod records;
mod replicas;
mod review_findings;
#[cfg(feature = "nightly")]
mod review_findings_sets;
mod scale_out;
mod strict;
#[cfg(feature = "nightly")]
mod strict_waits;
mod tls;
#[cfg(feature = "nightly")]
mod unreachable_replicas;
