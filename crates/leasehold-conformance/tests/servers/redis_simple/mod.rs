//! `protocol=simple`: the suite, and the same lock in two hands: redis-py's `Lock` and ours keep each other out.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "a test: what fails here is the finding")]

mod battle;
mod interop;
mod python;
#[cfg(feature = "nightly")]
mod suite;

use std::time::Duration;

use leasehold::Locks;
use leasehold::clock::Clock;
use leasehold_testbed::Server;
use tokio::sync::OnceCell;

use crate::redis_faults::time::timed;

/// One server for everything here.
async fn server() -> &'static Server {
    static SERVER: OnceCell<Server> = OnceCell::const_new();
    SERVER.get_or_init(|| async { leasehold_testbed::redis::start().await.expect("a server") }).await
}

/// A client of ours, at the server or at something in front of it.
async fn ours(at: &str, ttl: Duration) -> Locks {
    ours_by(at, ttl, Clock::system()).await
}

/// One that goes by this clock.
async fn ours_by(at: &str, ttl: Duration, clock: Clock) -> Locks {
    timed(&format!("{at}?protocol=simple"), ttl, clock).await
}
