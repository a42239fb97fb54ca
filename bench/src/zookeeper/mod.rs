//! What locks in ZooKeeper cost, beside bare requests that the same client library sends to the same server.
//!
//! | load | what |
//! |---|---|
//! | `cycle` | one client takes and gives back a lock that nobody else wants, beside a bare create and delete |
//! | `handoff` | 64 clients want one lock: hand-offs in a second, and requests for each |
//! | `herd` | a lock is given back while 8, 64 and 256 wait: who is told, beside the simple lock where everybody watches one node |
//!
//! Every waiter has a client, and so a session and a connection, of its own, as if it were on a machine of its own; also the others'
//! waiters. All are in one process, and on the machine of the server.
//!
//! What was asked and told is read from the server's count of packets, of the connections of those who are measured only: each answer
//! belongs to a request, so whatever else was sent are events.
//!
//! With `--peers`, `handoff` has other people's locks beside ours, in the same rounds: Curator's `InterProcessMutex` (Java) and kazoo's
//! `Lock` (Python).

mod contest;
mod cycle;
mod handoff;
mod herd;
mod peers;
mod server;
mod simple;

use crate::redis::Oops;
use crate::report::Report;
use server::Bench;

/// What there is to measure.
pub(crate) const LOADS: [&str; 3] = ["cycle", "handoff", "herd"];

/// Measures the chosen loads, or all, on servers of their own; with `peers`, other people's locks, too.
pub(crate) async fn run(report: &mut Report, scale: u32, chosen: &[&str], peers: bool) -> Result<(), Oops> {
    let wanted = |load: &str| chosen.is_empty() || chosen.contains(&load);
    // They are built before anything is measured.
    let peers = if peers && wanted("handoff") { Some(peers::Programs::build()?) } else { None };
    let bench = Bench::start(scale, false).await?;
    bench.introduce(report).await?;
    for load in LOADS.into_iter().filter(|load| wanted(load)) {
        match load {
            "cycle" => cycle::cycle(report, &bench).await?,
            "handoff" => handoff::handoff(report, &bench, peers.as_ref()).await?,
            _ => herd::herd(report, &bench).await?,
        }
    }
    Ok(())
}
