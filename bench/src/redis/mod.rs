//! The cost of locks in Redis, beside bare commands that the same client library sends to the same
//! server.

pub(crate) mod baseline;
mod cycle;
mod handoff;
mod held_leases;
pub(crate) mod peers;
pub(crate) mod server;

use std::time::Duration;

use leasehold::Locks;

use crate::report::Report;
use peers::Figures;
use server::BenchServer;

/// An error of any bench.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The TTL of all locks here.
pub(crate) const TTL: Duration = Duration::from_secs(30);
/// How many rounds each comparison has; baseline and leasehold run in turn in each.
const ROUNDS: u32 = 11;

/// The loads.
pub(crate) const LOADS: [&str; 5] = ["one", "many", "turns", "handover", "held"];

/// Runs the chosen loads, or all, on a fresh server; with `peers`, also other libraries' locks.
pub(crate) async fn run(report: &mut Report, scale: u32, chosen: &[&str], peers: bool) -> Result<(), BoxError> {
    // The peers are built before any measurement.
    let peers = if peers { Some(peers::PeerPrograms::build()?) } else { None };
    let mut bench = BenchServer::start(scale).await?;
    let (mut ours, mut floor) = (Figures::for_locks("leasehold"), Figures::for_baseline());
    for load in LOADS.into_iter().filter(|load| chosen.is_empty() || chosen.contains(load)) {
        match load {
            "one" => cycle::bench_single_task(report, &mut bench, &mut ours, &mut floor).await?,
            "many" => cycle::bench_many_tasks(report, &mut bench, &mut ours, &mut floor).await?,
            "turns" => handoff::bench_turns(report, &mut bench, &mut ours, &mut floor).await?,
            "handover" => handoff::bench_hand_off(report, &mut bench, &mut ours, &mut floor).await?,
            _ => held_leases::bench_renewals(report, &mut bench).await?,
        }
    }
    if let Some(peers) = peers {
        let mut all = vec![floor, ours];
        all.extend(peers.measure_all(&mut bench).await?);
        peers::report_table(report, &all);
    }
    Ok(())
}

async fn open_locks(bench: &BenchServer) -> leasehold::Result<Locks> {
    Locks::builder().ttl(TTL).open(&bench.url()).await
}

/// The median of `values`; the default value if there are none.
pub(crate) fn median_value<T: Copy + PartialOrd + Default>(values: &mut [T]) -> T {
    values.sort_unstable_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    values.get(values.len() / 2).copied().unwrap_or_default()
}
