//! The engine on streams in memory, in virtual time: redis-rs, the link, the acquire loop and the
//! keeper are the real ones, with scripted servers and Sentinels behind them. Scripted answers
//! belong here only; the conformance suite runs on real servers.

mod commands;
mod connection;
mod elections;
mod leases;
mod network;
mod random_faults;
mod resp;
mod sentinel;
mod server;

use std::sync::Arc;
use std::time::Duration;

use self::server::ScriptedServer;
use crate::virtual_time;

const TTL: Duration = Duration::from_secs(10);

/// A server that answers everything, until the test scripts something else.
fn with_server<F: Future<Output = ()>>(test: impl FnOnce(Arc<ScriptedServer>) -> F) {
    virtual_time::run_seed(1, async { test(ScriptedServer::new(1)).await });
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
