//! The suite on `redis+cluster:`: one cluster for all cases, each instance with its own prefix.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "tests report failures by panicking")]

use std::sync::atomic::{AtomicU32, Ordering};

use leasehold_conformance::{Instance, Subject, suite};
use leasehold_testbed::redis;
use tokio::sync::OnceCell;

/// A prefix on a shared cluster.
struct Cluster;

impl Subject for Cluster {
    async fn instance(&self) -> Instance {
        static CLUSTER: OnceCell<redis::Cluster> = OnceCell::const_new();
        static NEXT_PREFIX: AtomicU32 = AtomicU32::new(0);
        let cluster = CLUSTER.get_or_init(|| async { redis::Cluster::start(3, 0).await.expect("a cluster") }).await;
        Instance::with_url(format!(
            "{}?prefix=case-{}:&connect-timeout=60s",
            cluster.url(),
            NEXT_PREFIX.fetch_add(1, Ordering::Relaxed)
        ))
    }
}

suite!(redis_cluster, Cluster);
