//! 64 tasks contend for one lock.

use std::path::Path;
use std::time::Duration;

use leasehold::ErrorKind;
use serde_json::json;

use super::contest::{Stretch, WAITERS, ours, polls};
use super::floor::make_table;
use super::peers;
use super::server::{Base, Bench};
use crate::redis::{Oops, middle};
use crate::report::{Rates, Report};

/// The target: this many times the hand-offs of the others.
const LEAST: f64 = 3.0;

/// A contender, and the results of its rounds.
struct Contender<'a> {
    name: &'static str,
    kind: Kind<'a>,
    rounds: Vec<Stretch>,
    /// Why it cannot take part.
    no: Option<String>,
}

enum Kind<'a> {
    Ours { clients: usize, options: &'static str },
    Polls { rests: bool },
    Peer { program: &'a Path, name: &'static str },
}

impl<'a> Contender<'a> {
    fn new(name: &'static str, kind: Kind<'a>) -> Self {
        Self { name, kind, rounds: Vec::new(), no: None }
    }

    async fn round(&mut self, bench: &Bench, time: Duration) -> Result<(), Oops> {
        if self.no.is_some() {
            return Ok(());
        }
        match self.kind {
            Kind::Ours { clients, options } => match ours(bench, clients, options, time).await {
                Ok(stretch) => self.rounds.push(stretch),
                Err(error) => match error.downcast::<leasehold::Error>() {
                    Ok(error) if error.kind() == ErrorKind::Unsupported => self.no = Some(error.to_string()),
                    Ok(error) => return Err(error),
                    Err(error) => return Err(error),
                },
            },
            Kind::Polls { rests } => self.rounds.push(polls(bench, rests, time).await?),
            Kind::Peer { program, name } => match peers::stretch(bench, program, name, time).await? {
                Ok(stretch) => self.rounds.push(stretch),
                Err(no) => self.no = Some(no),
            },
        }
        Ok(())
    }

    fn rates(&self) -> Vec<f64> {
        self.rounds.iter().map(|round| round.hand_offs_per_second).collect()
    }
}

fn contenders<'a>(base: Base, peers: Option<&'a Path>) -> Vec<Contender<'a>> {
    let ours = |name, clients, options| Contender::new(name, Kind::Ours { clients, options });
    let mut all = vec![
        ours("leasehold, one client", 1, ""),
        ours("leasehold, eight clients", 8, ""),
        // With these techniques each waiter occupies a connection.
        ours("leasehold, technique=session", 1, "technique=session&connections=70"),
        ours("leasehold, technique=for-update", 1, "technique=for-update&connections=70"),
        Contender::new("asking every 100 ms", Kind::Polls { rests: false }),
        Contender::new("100 ms, after each turn, too", Kind::Polls { rests: true }),
    ];
    if let Some(program) = peers {
        let peers = peers::of(base).into_iter();
        all.extend(peers.map(|(shown, name)| Contender::new(shown, Kind::Peer { program, name })));
    }
    all
}

/// Leasehold, tasks that poll, and with `peers` other libraries, in turn.
pub(crate) async fn handoff(report: &mut Report, bench: &Bench, peers: Option<&Path>) -> Result<(), Oops> {
    make_table(bench).await?;
    bench.count_statements().await?;
    let quick = bench.scale > 1;
    let (rounds, time) = (if quick { 1 } else { 5 }, Duration::from_millis(if quick { 1_000 } else { 3_000 }));
    let mut all = contenders(bench.base, peers);
    for _ in 0..rounds {
        for contender in &mut all {
            contender.round(bench, time).await?;
        }
    }
    let what = format!("{}: {WAITERS} waiters on one lock", bench.label());
    let (ours, others): (Vec<&Contender<'_>>, Vec<_>) =
        all.iter().filter(|one| !one.rounds.is_empty()).partition(|one| matches!(one.kind, Kind::Ours { .. }));
    for other in others {
        for (index, one) in ours.iter().enumerate() {
            let what = if index == 0 { what.clone() } else { format!("{}: {}", bench.label(), one.name) };
            // The target is for the default technique, compared with tasks that poll; and, in one
            // client like the peer, compared with PostgreSQL's peer.
            let aims = match other.kind {
                Kind::Polls { .. } => index < 2,
                _ => index == 0 && bench.base == Base::Postgres,
            };
            let least = if aims { LEAST } else { 0.0 };
            let (ours, floor) = (&mut one.rates()[..], &mut other.rates()[..]);
            report.rates(Rates { what: &what, unit: "hand-offs/s", floor_is: other.name, ours, floor, least });
        }
    }
    report.say(&format!("{what:<44} {:>15} {:>15}", "hand-offs/s", "statements each"));
    for one in &all {
        let of = |value: fn(&Stretch) -> f64| middle(&mut one.rounds.iter().map(value).collect::<Vec<_>>());
        let (rate, statements) = (of(|round| round.hand_offs_per_second), of(|round| round.statements_per_hand_off));
        match &one.no {
            Some(no) => report.say(&format!("{:<44} {no}", one.name)),
            None => report.say(&format!("{:<44} {rate:>15.0} {statements:>15.2}", one.name)),
        }
        report.add(json!({
            "what": what, "lock": one.name, "hand_offs_per_second": one.no.is_none().then_some(rate),
            "statements_per_hand_off": one.no.is_none().then_some(statements), "rounds": one.rounds.len(), "no": one.no,
        }));
    }
    Ok(())
}
