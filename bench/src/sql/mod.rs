//! The cost of locks in MariaDB and PostgreSQL, beside bare statements that the same client
//! libraries send to the same servers.
//!
//! | load | measures |
//! |---|---|
//! | `cycle` | one task acquires and releases an uncontended lock, beside its two statements, sent bare, and beside a bare upsert and a bare update of such a row, without checks |
//! | `handoff` | 64 tasks contend for one lock, of one client and of eight: hand-offs per second, and statements for each |
//! | `waiters` | 500 tasks wait for one lock, with ten connections: how long until all had it, and how many connections there were |
//! | `leases` | 2,000 leases are held and renewed: statements per second, and the server's share of a core |
//!
//! `handoff` also measures 64 tasks that retry every 100 ms, each over its own connection, and with
//! `--peers` other libraries' locks, all in the same rounds.
//!
//! Each load runs on a server that waits for the disk at each commit (`durable`, the default of
//! both servers), and on one that does not (`relaxed`). The server counts the statements. `mysql`
//! or `postgres` among the loads excludes the other database.

mod baseline;
mod contention;
mod cycle;
mod exact_statements;
mod handoff;
mod leases;
mod peers;
mod server;
mod waiters;

use crate::redis::BoxError;
use crate::report::Report;
use server::{BenchServer, DatabaseKind};

/// The databases and the loads.
pub(crate) const DATABASES_AND_LOADS: [&str; 6] = ["mysql", "postgres", "cycle", "handoff", "waiters", "leases"];

/// Runs the chosen loads, or all, on fresh servers; with `peers`, also other libraries' locks.
pub(crate) async fn run(report: &mut Report, scale: u32, chosen: &[&str], peers: bool) -> Result<(), BoxError> {
    let (bases, loads) = DATABASES_AND_LOADS.split_at(2);
    let of = |all: &'static [&'static str]| {
        let some: Vec<&str> = all.iter().copied().filter(|word| chosen.contains(word)).collect();
        if some.is_empty() { all.to_vec() } else { some }
    };
    let (bases, loads) = (of(bases), of(loads));
    // The peers are built before any measurement.
    let program = if peers && loads.contains(&"handoff") { Some(crate::redis::peers::build_rust()?) } else { None };
    for base in bases.into_iter().map(|name| if name == "mysql" { DatabaseKind::MySql } else { DatabaseKind::Postgres })
    {
        for syncs in [true, false] {
            let bench = BenchServer::start(base, syncs, scale).await?;
            bench.report_server(report).await?;
            for load in &loads {
                match *load {
                    "cycle" => cycle::bench_cycle(report, &bench).await?,
                    "handoff" => handoff::bench_hand_off(report, &bench, program.as_deref()).await?,
                    "waiters" => waiters::bench_waiters(report, &bench).await?,
                    _ => leases::bench_leases(report, &bench).await?,
                }
            }
        }
    }
    Ok(())
}
