//! The suite on `redlock:`: five servers for all cases, each instance with a prefix of its own.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "a test: what fails here is the finding")]

use std::sync::atomic::{AtomicU32, Ordering};

use leasehold_conformance::{Instance, Subject, suite};
use leasehold_testbed::redis::Independent;
use tokio::sync::OnceCell;

/// A prefix on servers that all cases share.
struct Redlock;

impl Subject for Redlock {
    async fn instance(&self) -> Instance {
        static SERVERS: OnceCell<Independent> = OnceCell::const_new();
        static MADE: AtomicU32 = AtomicU32::new(0);
        let servers = SERVERS.get_or_init(|| async { Independent::start(5).await.expect("servers") }).await;
        Instance::at(format!(
            "{}?prefix=case-{}:&node-timeout=30s&connect-timeout=60s",
            servers.url(),
            MADE.fetch_add(1, Ordering::Relaxed)
        ))
    }
}

suite!(redlock, Redlock);
