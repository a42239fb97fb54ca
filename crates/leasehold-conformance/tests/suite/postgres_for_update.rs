//! The suite on `postgres:…?technique=for-update`: one server for all cases, each instance with tables of its own.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "a test: what fails here is the finding")]

use std::sync::atomic::{AtomicU32, Ordering};

use leasehold_conformance::{Instance, Subject, suite};
use leasehold_testbed::Server;
use leasehold_testbed::postgres::Postgres;
use tokio::sync::OnceCell;

/// Tables on a server that all cases share.
struct Held;

impl Subject for Held {
    async fn instance(&self) -> Instance {
        static SERVER: OnceCell<Server> = OnceCell::const_new();
        static MADE: AtomicU32 = AtomicU32::new(0);
        let start = || async { Postgres::new().setting("max_connections", "600").start().await.expect("a server") };
        let server = SERVER.get_or_init(start).await;
        let made = MADE.fetch_add(1, Ordering::Relaxed);
        // Each lock that is held has a connection of its own, and one case holds more than a hundred.
        Instance::at(format!("{}?technique=for-update&connections=200&table=case{made}", server.url()))
    }
}

suite!(postgres_for_update, Held);
