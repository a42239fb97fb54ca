//! 64 clients contend for one lock.

use std::time::Duration;

use serde_json::json;

use super::contention::{ContentionResult, LockKind, measure_contention, measure_program};
use super::peers::PeerPrograms;
use super::server::BenchServer;
use crate::redis::{BoxError, median_value};
use crate::report::{RateComparison, Report};

/// How many clients contend.
pub(crate) const WAITERS: usize = 64;

/// The median over the rounds.
fn median_over_rounds(rounds: &[ContentionResult], value: impl Fn(&ContentionResult) -> f64) -> f64 {
    median_value(&mut rounds.iter().map(value).collect::<Vec<_>>())
}

/// Leasehold, and with `peers` other libraries, in turn.
pub(crate) async fn bench_hand_off(
    report: &mut Report,
    bench: &BenchServer,
    peers: Option<&PeerPrograms>,
) -> Result<(), BoxError> {
    let quick = bench.scale > 1;
    let (rounds, time) = (if quick { 1 } else { 5 }, Duration::from_millis(if quick { 1_000 } else { 3_000 }));
    let mut programs = match peers {
        Some(peers) => peers.start(bench).await?,
        None => Vec::new(),
    };
    // Warms up the Java machine, which compiles frequently run code.
    for program in &mut programs {
        measure_program(bench, program, time).await?;
    }
    let mut ours = Vec::new();
    let mut theirs = vec![Vec::new(); programs.len()];
    for _ in 0..rounds {
        ours.push(measure_contention(bench, LockKind::Leasehold, WAITERS, time).await?);
        for (program, rounds) in programs.iter_mut().zip(&mut theirs) {
            rounds.push(measure_program(bench, program, time).await?);
        }
    }
    let rates = |rounds: &[ContentionResult]| rounds.iter().map(|round| round.hand_offs_per_second).collect::<Vec<_>>();
    let what = format!("zookeeper: {WAITERS} waiters on one lock");
    for (program, theirs) in programs.iter().zip(&theirs) {
        let (ours, floor) = (&mut rates(&ours)[..], &mut rates(theirs)[..]);
        let unit = "hand-offs/s";
        report.add_rates(RateComparison {
            name: &what,
            unit,
            baseline_name: program.name,
            leasehold: ours,
            baseline: floor,
            min_ratio: 1.0,
        });
    }
    report.print_line("requests are counted by the server; no client is idle for long, so few of them are pings");
    report.print_line(&format!("{what:<44} {:>15} {:>15}", "hand-offs/s", "requests each"));
    let names = std::iter::once("leasehold").chain(programs.iter().map(|program| program.name));
    for (name, rounds) in names.zip(std::iter::once(&ours).chain(&theirs)) {
        let rate = median_over_rounds(rounds, |round| round.hand_offs_per_second);
        let requests = median_over_rounds(rounds, |round| round.requests_per_hand_off);
        report.print_line(&format!("{name:<44} {rate:>15.0} {requests:>15.2}"));
        report.add_json(json!({
            "what": what, "lock": name, "hand_offs_per_second": rate, "requests_per_hand_off": requests,
            "rounds": rounds.len(),
        }));
    }
    Ok(())
}
