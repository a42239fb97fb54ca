//! The suite on `redis+sentinel:`: one set for all cases, each instance with its own prefix.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "tests report failures by panicking")]

use std::sync::atomic::{AtomicU32, Ordering};

use leasehold_conformance::{Instance, Subject, suite};
use leasehold_testbed::redis::SentinelSet;
use tokio::sync::OnceCell;

/// A prefix on a shared set.
struct Sentinel;

impl Subject for Sentinel {
    async fn instance(&self) -> Instance {
        static SET: OnceCell<SentinelSet> = OnceCell::const_new();
        static NEXT_PREFIX: AtomicU32 = AtomicU32::new(0);
        let set = SET.get_or_init(|| async { SentinelSet::start(1).await.expect("a set") }).await;
        Instance::with_url(format!(
            "{}?prefix=case-{}:&connect-timeout=60s",
            set.url(),
            NEXT_PREFIX.fetch_add(1, Ordering::Relaxed)
        ))
    }
}

suite!(redis_sentinel, Sentinel);
