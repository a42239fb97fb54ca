//! Redis as it is run: alone with replicas, behind Sentinels, as a cluster; and what all of these have in common.
#![allow(clippy::expect_used, reason = "a test: what fails here is the finding")]

mod acl;
mod all;
mod cluster_moves;
mod deployment;
mod election;
mod failover;
mod logins;
mod records;
mod replicas;
mod review;
mod strict;
mod tls;
