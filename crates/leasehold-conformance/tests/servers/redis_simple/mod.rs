//! `protocol=simple`: the suite, and mutual exclusion with redis-py's `Lock`.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "tests report failures by panicking")]

mod contention;
mod interop;
mod python;
#[cfg(feature = "nightly")]
mod suite;

use std::time::Duration;

use leasehold::Locks;
use leasehold::clock::Clock;
use leasehold_testbed::Server;
use tokio::sync::OnceCell;

use crate::redis_faults::manual_time::patient_client;

/// One server for all tests of this module.
async fn server() -> &'static Server {
    static SERVER: OnceCell<Server> = OnceCell::const_new();
    SERVER.get_or_init(|| async { leasehold_testbed::redis::start().await.expect("a server") }).await
}

/// A leasehold client of the server, or of a proxy in front of it.
async fn our_client(at: &str, ttl: Duration) -> Locks {
    our_client_with_clock(at, ttl, Clock::system()).await
}

/// A leasehold client of the server, or of a proxy in front of it, that uses `clock`.
async fn our_client_with_clock(at: &str, ttl: Duration, clock: Clock) -> Locks {
    patient_client(&format!("{at}?protocol=simple"), ttl, clock).await
}
