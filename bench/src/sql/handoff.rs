//! 64 tasks contend for one lock.

use std::path::Path;
use std::time::Duration;

use leasehold::ErrorKind;
use serde_json::json;

use super::baseline::create_table;
use super::contention::{ContentionResult, WAITERS, measure_leasehold, measure_polling};
use super::peers;
use super::server::{BenchServer, DatabaseKind};
use crate::redis::{BoxError, median_value};
use crate::report::{RateComparison, Report};

/// The target: leasehold makes at least this many times the hand-offs of the tasks that poll.
const MIN_RATIO: f64 = 3.0;

/// One of the lock implementations that are compared, and the results of its rounds.
struct Competitor<'a> {
    name: &'static str,
    kind: CompetitorKind<'a>,
    rounds: Vec<ContentionResult>,
    /// Why it cannot run this load; `None` if it can.
    unsupported_reason: Option<String>,
}

enum CompetitorKind<'a> {
    Leasehold { clients: usize, options: &'static str },
    Polling { pauses_after_release: bool },
    Peer { program: &'a Path, name: &'static str },
}

impl<'a> Competitor<'a> {
    fn new(name: &'static str, kind: CompetitorKind<'a>) -> Self {
        Self { name, kind, rounds: Vec::new(), unsupported_reason: None }
    }

    async fn run_round(&mut self, bench: &BenchServer, duration: Duration) -> Result<(), BoxError> {
        if self.unsupported_reason.is_some() {
            return Ok(());
        }
        match self.kind {
            CompetitorKind::Leasehold { clients, options } => {
                match measure_leasehold(bench, clients, options, duration).await {
                    Ok(stretch) => self.rounds.push(stretch),
                    Err(error) => match error.downcast::<leasehold::Error>() {
                        Ok(error) if error.kind() == ErrorKind::Unsupported => {
                            self.unsupported_reason = Some(error.to_string())
                        }
                        Ok(error) => return Err(error),
                        Err(error) => return Err(error),
                    },
                }
            }
            CompetitorKind::Polling { pauses_after_release: rests } => {
                self.rounds.push(measure_polling(bench, rests, duration).await?)
            }
            CompetitorKind::Peer { program, name } => {
                match peers::measure_peer(bench, program, name, duration).await? {
                    Ok(stretch) => self.rounds.push(stretch),
                    Err(no) => self.unsupported_reason = Some(no),
                }
            }
        }
        Ok(())
    }

    fn rates(&self) -> Vec<f64> {
        self.rounds.iter().map(|round| round.hand_offs_per_second).collect()
    }
}

fn competitors<'a>(database: DatabaseKind, peers: Option<&'a Path>) -> Vec<Competitor<'a>> {
    let ours = |name, clients, options| Competitor::new(name, CompetitorKind::Leasehold { clients, options });
    let mut all = vec![
        ours("leasehold, one client", 1, ""),
        ours("leasehold, eight clients", 8, ""),
        // With these techniques each waiter occupies a connection.
        ours("leasehold, technique=session", 1, "technique=session&connections=70"),
        ours("leasehold, technique=for-update", 1, "technique=for-update&connections=70"),
        Competitor::new("polling every 100 ms", CompetitorKind::Polling { pauses_after_release: false }),
        Competitor::new("100 ms, after each turn, too", CompetitorKind::Polling { pauses_after_release: true }),
    ];
    if let Some(program) = peers {
        let peers = peers::peers_of(database).into_iter();
        all.extend(peers.map(|(shown, name)| Competitor::new(shown, CompetitorKind::Peer { program, name })));
    }
    all
}

/// Leasehold, tasks that poll, and with `peers` other libraries, in turn.
pub(crate) async fn bench_hand_off(
    report: &mut Report,
    bench: &BenchServer,
    peers: Option<&Path>,
) -> Result<(), BoxError> {
    create_table(bench).await?;
    bench.start_counting_statements().await?;
    let quick = bench.scale > 1;
    let (rounds, time) = (if quick { 1 } else { 5 }, Duration::from_millis(if quick { 1_000 } else { 3_000 }));
    let mut all = competitors(bench.database, peers);
    for _ in 0..rounds {
        for contender in &mut all {
            contender.run_round(bench, time).await?;
        }
    }
    let what = format!("{}: {WAITERS} waiters on one lock", bench.label());
    let (ours, others): (Vec<&Competitor<'_>>, Vec<_>) = all
        .iter()
        .filter(|one| !one.rounds.is_empty())
        .partition(|one| matches!(one.kind, CompetitorKind::Leasehold { .. }));
    for other in others {
        for (index, one) in ours.iter().enumerate() {
            let what = if index == 0 { what.clone() } else { format!("{}: {}", bench.label(), one.name) };
            // The target is for the default technique, compared with tasks that poll; and, in one
            // client like the peer, compared with PostgreSQL's peer.
            let aims = match other.kind {
                CompetitorKind::Polling { .. } => index < 2,
                _ => index == 0 && bench.database == DatabaseKind::Postgres,
            };
            let least = if aims { MIN_RATIO } else { 0.0 };
            let (ours, floor) = (&mut one.rates()[..], &mut other.rates()[..]);
            report.add_rates(RateComparison {
                name: &what,
                unit: "hand-offs/s",
                baseline_name: other.name,
                leasehold: ours,
                baseline: floor,
                min_ratio: least,
            });
        }
    }
    report.print_line(&format!("{what:<44} {:>15} {:>15}", "hand-offs/s", "statements each"));
    for one in &all {
        let of =
            |value: fn(&ContentionResult) -> f64| median_value(&mut one.rounds.iter().map(value).collect::<Vec<_>>());
        let (rate, statements) = (of(|round| round.hand_offs_per_second), of(|round| round.statements_per_hand_off));
        match &one.unsupported_reason {
            Some(no) => report.print_line(&format!("{:<44} {no}", one.name)),
            None => report.print_line(&format!("{:<44} {rate:>15.0} {statements:>15.2}", one.name)),
        }
        report.add_json(json!({
            "what": what, "lock": one.name, "hand_offs_per_second": one.unsupported_reason.is_none().then_some(rate),
            "statements_per_hand_off": one.unsupported_reason.is_none().then_some(statements), "rounds": one.rounds.len(), "no": one.unsupported_reason,
        }));
    }
    Ok(())
}
