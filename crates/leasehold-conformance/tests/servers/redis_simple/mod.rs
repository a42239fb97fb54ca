//! `protocol=simple`: the suite, and the same lock in two hands: redis-py's `Lock` and ours keep each other out.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "a test: what fails here is the finding")]

mod battle;
mod interop;
mod python;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::Locks;
use leasehold_conformance::{Instance, Subject, suite};
use leasehold_testbed::Server;
use tokio::sync::OnceCell;

/// One server for everything here.
async fn server() -> &'static Server {
    static SERVER: OnceCell<Server> = OnceCell::const_new();
    SERVER.get_or_init(|| async { leasehold_testbed::redis::start().await.expect("a server") }).await
}

/// A client of ours, at the server or at something in front of it.
async fn ours(at: &str, ttl: Duration) -> Locks {
    Locks::builder().ttl(ttl).open(&format!("{at}?protocol=simple")).await.expect("the server")
}

/// A prefix on the server.
struct Simple;

impl Subject for Simple {
    async fn instance(&self) -> Instance {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let (url, made) = (server().await.url(), MADE.fetch_add(1, Ordering::Relaxed));
        Instance::at(format!("{url}?protocol=simple&prefix=case-{made}:"))
    }
}

suite!(redis_simple, Simple);
