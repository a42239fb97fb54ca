//! The cost of locks on a majority of five Redis servers, beside our own locks on one of these
//! servers.
//!
//! | load | measures |
//! |---|---|
//! | `one` | one task acquires and releases: with the second round where it is needed (never, here) and always; on three nodes; and bare commands to all nodes at once |
//! | `far` | the same with every message delayed by a millisecond: the cost that remains if the servers have their own machines |
//! | `contended` | 2 and 8 clients contend for one lock: there is no queue, they retry after a pause |
//! | `down` | one task while one or two nodes are dead, or one hangs; the first cycle as a separate figure |
//!
//! All servers run on this machine. With more servers than cores, a cycle cannot be shorter than
//! the CPU time of all processes in it over the number of cores. That time is printed beside each
//! variant; on separate machines the servers spend their share concurrently.
//!
//! With `--peers`, `one` also measures other libraries' Redlocks, on the same nodes and in the same
//! rounds: rslock (Rust), redlock for Node.js (needs `npm`), and pottery (Python).

mod contended;
mod cycle;
mod delayed_messages;
mod nodes;
mod nodes_down;
mod peers;
mod quorum_baseline;

use crate::redis::BoxError;
use crate::report::Report;
use nodes::BenchNodes;

/// How many nodes there are.
const NODE_COUNT: usize = 5;
/// How often each comparison runs, all variants in turn.
const ROUNDS: u32 = 11;

/// The loads.
pub(crate) const LOADS: [&str; 4] = ["one", "far", "contended", "down"];

/// Runs the chosen loads, or all, on fresh servers; with `peers`, also other libraries' locks.
pub(crate) async fn run(report: &mut Report, scale: u32, chosen: &[&str], peers: bool) -> Result<(), BoxError> {
    let wanted = |load: &str| chosen.is_empty() || chosen.contains(&load);
    // The peers are built before any measurement.
    let peers = if peers && wanted("one") { Some(peers::PeerInstallations::build()?) } else { None };
    let mut nodes = BenchNodes::start(scale).await?;
    for load in LOADS.into_iter().filter(|load| wanted(load)) {
        match load {
            "one" => cycle::bench_single_task(report, &mut nodes, peers.as_ref()).await?,
            "far" => delayed_messages::bench_delayed(report, &nodes).await?,
            "contended" => contended::bench_contention(report, &mut nodes).await?,
            _ => nodes_down::bench_nodes_down(report, &mut nodes).await?,
        }
    }
    Ok(())
}
