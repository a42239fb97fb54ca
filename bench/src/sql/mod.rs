//! What locks in MariaDB and PostgreSQL cost, beside bare statements that the same client libraries send to the same servers.
//!
//! | load | what |
//! |---|---|
//! | `cycle` | one task takes and gives back a lock that nobody else wants, beside the two statements that this takes, sent bare, and beside a bare upsert and a bare update of such a row, which ask nothing |
//! | `handoff` | 64 tasks want one lock, of one client and of eight: hand-offs in a second, and statements for each |
//! | `waiters` | 500 tasks wait for one lock, with ten connections: how long until all had it, and how many connections there were |
//! | `leases` | 2,000 leases are held and renewed: statements in a second, and the server's share of a core |
//!
//! Beside `handoff` stand 64 tasks that ask again every 100 ms, each over a connection of its own, and with `--peers` other people's
//! locks, all in the same rounds.
//!
//! Each load is run on a server that waits for the disk with each commit (`durable`, which is what both servers do where nobody says
//! otherwise), and on one that does not (`relaxed`). The statements are counted by the server. `mysql` or
//! `postgres` among the loads leaves the other database out.

mod contest;
mod cycle;
mod exact;
mod floor;
mod handoff;
mod leases;
mod peers;
mod server;
mod waiters;

use crate::redis::Oops;
use crate::report::Report;
use server::{Base, Bench};

/// What there is to measure, and on what.
pub(crate) const WORDS: [&str; 6] = ["mysql", "postgres", "cycle", "handoff", "waiters", "leases"];

/// Measures the chosen loads, or all, on servers of their own; with `peers`, other people's locks, too.
pub(crate) async fn run(report: &mut Report, scale: u32, chosen: &[&str], peers: bool) -> Result<(), Oops> {
    let (bases, loads) = WORDS.split_at(2);
    let of = |all: &'static [&'static str]| {
        let some: Vec<&str> = all.iter().copied().filter(|word| chosen.contains(word)).collect();
        if some.is_empty() { all.to_vec() } else { some }
    };
    let (bases, loads) = (of(bases), of(loads));
    // They are built before anything is measured.
    let program = if peers && loads.contains(&"handoff") { Some(crate::redis::peers::build_rust()?) } else { None };
    for base in bases.into_iter().map(|name| if name == "mysql" { Base::MySql } else { Base::Postgres }) {
        for syncs in [true, false] {
            let bench = Bench::start(base, syncs, scale).await?;
            bench.introduce(report).await?;
            for load in &loads {
                match *load {
                    "cycle" => cycle::cycle(report, &bench).await?,
                    "handoff" => handoff::handoff(report, &bench, program.as_deref()).await?,
                    "waiters" => waiters::waiters(report, &bench).await?,
                    _ => leases::leases(report, &bench).await?,
                }
            }
        }
    }
    Ok(())
}
