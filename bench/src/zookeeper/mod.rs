//! The cost of locks in ZooKeeper, beside bare requests that the same client library sends to the
//! same server.
//!
//! | load | measures |
//! |---|---|
//! | `cycle` | one client acquires and releases an uncontended lock, beside a bare create and delete |
//! | `handoff` | 64 clients contend for one lock: hand-offs per second, and requests for each |
//! | `herd` | a lock is released while 8, 64 and 256 clients wait: how many are notified, beside the simple lock where all watch one node |
//!
//! Every waiter has its own client, and so its own session and connection, as if it were on a
//! separate machine; this also applies to the other libraries' waiters. All are in one process, on
//! the server's machine.
//!
//! Requests and events come from the server's count of packets, on the measured clients'
//! connections only. Each response belongs to a request, so all other packets sent are events.
//!
//! With `--peers`, `handoff` also measures other libraries' locks, in the same rounds: Curator's
//! `InterProcessMutex` (Java) and kazoo's `Lock` (Python).

mod contention;
mod cycle;
mod handoff;
mod peers;
mod server;
mod simple_lock;
mod thundering_herd;

use crate::redis::BoxError;
use crate::report::Report;
use server::BenchServer;

/// The loads.
pub(crate) const LOADS: [&str; 3] = ["cycle", "handoff", "herd"];

/// Runs the chosen loads, or all, on fresh servers; with `peers`, also other libraries' locks.
pub(crate) async fn run(report: &mut Report, scale: u32, chosen: &[&str], peers: bool) -> Result<(), BoxError> {
    let wanted = |load: &str| chosen.is_empty() || chosen.contains(&load);
    // The peers are built before any measurement.
    let peers = if peers && wanted("handoff") { Some(peers::PeerPrograms::build()?) } else { None };
    let bench = BenchServer::start(scale, false).await?;
    bench.report_server(report).await?;
    for load in LOADS.into_iter().filter(|load| wanted(load)) {
        match load {
            "cycle" => cycle::bench_cycle(report, &bench).await?,
            "handoff" => handoff::bench_hand_off(report, &bench, peers.as_ref()).await?,
            _ => thundering_herd::bench_herd(report, &bench).await?,
        }
    }
    Ok(())
}
