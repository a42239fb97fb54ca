//! The suite on `redis:`: one server for all cases, each instance with its own prefix.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "tests report failures by panicking")]

use std::sync::atomic::{AtomicU32, Ordering};

use leasehold_conformance::{Instance, Subject, suite};
use leasehold_testbed::Server;
use tokio::sync::OnceCell;

/// A prefix on a shared server.
struct Redis;

impl Subject for Redis {
    async fn instance(&self) -> Instance {
        static SERVER: OnceCell<Server> = OnceCell::const_new();
        static NEXT_PREFIX: AtomicU32 = AtomicU32::new(0);
        let server = SERVER.get_or_init(|| async { leasehold_testbed::redis::start().await.expect("a server") }).await;
        Instance::with_url(format!(
            "{}?prefix=case-{}:&connect-timeout=60s",
            server.url(),
            NEXT_PREFIX.fetch_add(1, Ordering::Relaxed)
        ))
    }
}

suite!(redis, Redis);
