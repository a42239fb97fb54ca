//! The engine on streams in memory, in virtual time: redis-rs, our link, the acquire loop and the
//! keeper are the real ones, with scripted servers and Sentinels behind them. Scripted answers
//! belong here only; the conformance suite runs on real servers.

mod commands;
mod connection;
mod elections;
mod leases;
mod network;
mod resp;
mod seeds;
mod sentinel;
mod server;

use std::sync::Arc;
use std::time::Duration;

use self::server::Scripted;
use crate::virtual_time;

const TTL: Duration = Duration::from_secs(10);

/// A server that answers everything, until the test scripts something else.
fn with<F: Future<Output = ()>>(test: impl FnOnce(Arc<Scripted>) -> F) {
    virtual_time::run(1, async { test(Scripted::new(1)).await });
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
