//! The suite on `zookeeper:`: one server for all cases, each instance with its own folder.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "tests report failures by panicking")]

use std::sync::atomic::{AtomicU32, Ordering};

use leasehold_conformance::{Instance, Subject, suite};
use leasehold_testbed::Server;
use leasehold_testbed::zookeeper::ZooKeeper;
use tokio::sync::OnceCell;

/// A folder on a shared server.
struct Zookeeper;

impl Subject for Zookeeper {
    async fn instance(&self) -> Instance {
        static SERVER: OnceCell<Server> = OnceCell::const_new();
        static NEXT_INSTANCE: AtomicU32 = AtomicU32::new(0);
        let server = SERVER.get_or_init(|| async { ZooKeeper::new().start().await.expect("a server") }).await;
        Instance::with_url(format!(
            "zookeeper://{}/cases/{}?connect-timeout=60s",
            server.url(),
            NEXT_INSTANCE.fetch_add(1, Ordering::Relaxed)
        ))
    }
}

suite!(zookeeper, Zookeeper);
