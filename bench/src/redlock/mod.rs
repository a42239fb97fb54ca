//! What locks on a majority of five Redis servers cost, beside our own locks on one of these servers.
//!
//! | load | what |
//! |---|---|
//! | `one` | one task takes and gives back: with the second round where it is needed (never, here) and always; on three nodes; and bare commands to all nodes at once |
//! | `far` | the same with every message held back for a millisecond: what is left when the servers have machines of their own |
//! | `contended` | 2 and 8 clients want one lock: there is no queue, they ask again after a pause |
//! | `down` | one task while one or two nodes are dead, or one hangs; the first cycle by itself |
//!
//! All servers are on this machine: with more of them than cores, a cycle cannot be shorter than the CPU time of all processes in it
//! over the number of cores. That time stands beside each way to lock; between machines the servers' share is paid at once.
//!
//! With `--peers`, `one` has other people's Redlocks beside ours, on the same nodes and in the same rounds: rslock (Rust), redlock
//! for Node.js (needs `npm`), and pottery (Python).

mod bare;
mod contended;
mod cycle;
mod down;
mod far;
mod nodes;
mod peers;

use crate::redis::Oops;
use crate::report::Report;
use nodes::Nodes;

/// How many nodes there are.
const NODES: usize = 5;
/// How often each comparison is made, all in turn.
const ROUNDS: u32 = 11;

/// What there is to measure.
pub(crate) const LOADS: [&str; 4] = ["one", "far", "contended", "down"];

/// Measures the chosen loads, or all, on servers of their own; with `peers`, other people's locks, too.
pub(crate) async fn run(report: &mut Report, scale: u32, chosen: &[&str], peers: bool) -> Result<(), Oops> {
    let wanted = |load: &str| chosen.is_empty() || chosen.contains(&load);
    // They are built before anything is measured.
    let peers = if peers && wanted("one") { Some(peers::Programs::build()?) } else { None };
    let mut nodes = Nodes::start(scale).await?;
    for load in LOADS.into_iter().filter(|load| wanted(load)) {
        match load {
            "one" => cycle::one(report, &mut nodes, peers.as_ref()).await?,
            "far" => far::far(report, &nodes).await?,
            "contended" => contended::contended(report, &mut nodes).await?,
            _ => down::down(report, &mut nodes).await?,
        }
    }
    Ok(())
}
