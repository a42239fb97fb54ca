//! The suite on `redlock:`: five servers for all cases, each instance with its own prefix.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "tests report failures by panicking")]

use std::sync::atomic::{AtomicU32, Ordering};

use leasehold_conformance::{Instance, Subject, suite};
use leasehold_testbed::redis::IndependentServers;
use tokio::sync::OnceCell;

/// A prefix on shared servers.
struct Redlock;

impl Subject for Redlock {
    async fn instance(&self) -> Instance {
        static SERVERS: OnceCell<IndependentServers> = OnceCell::const_new();
        static NEXT_PREFIX: AtomicU32 = AtomicU32::new(0);
        let servers = SERVERS.get_or_init(|| async { IndependentServers::start(5).await.expect("servers") }).await;
        Instance::with_url(format!(
            "{}?prefix=case-{}:&node-timeout=30s&connect-timeout=60s",
            servers.url(),
            NEXT_PREFIX.fetch_add(1, Ordering::Relaxed)
        ))
    }
}

suite!(redlock, Redlock);
