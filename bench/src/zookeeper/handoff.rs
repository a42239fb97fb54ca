//! 64 clients contend for one lock.

use std::time::Duration;

use serde_json::json;

use super::contest::{Kind, Stretch, stretch, stretch_of};
use super::peers::Programs;
use super::server::Bench;
use crate::redis::{Oops, middle};
use crate::report::{Rates, Report};

/// How many clients contend.
pub(crate) const WAITERS: usize = 64;

/// The median over the rounds.
fn median(rounds: &[Stretch], value: impl Fn(&Stretch) -> f64) -> f64 {
    middle(&mut rounds.iter().map(value).collect::<Vec<_>>())
}

/// Leasehold, and with `peers` other libraries, in turn.
pub(crate) async fn handoff(report: &mut Report, bench: &Bench, peers: Option<&Programs>) -> Result<(), Oops> {
    let quick = bench.scale > 1;
    let (rounds, time) = (if quick { 1 } else { 5 }, Duration::from_millis(if quick { 1_000 } else { 3_000 }));
    let mut programs = match peers {
        Some(peers) => peers.start(bench).await?,
        None => Vec::new(),
    };
    // Warms up the Java machine, which compiles frequently run code.
    for program in &mut programs {
        stretch_of(bench, program, time).await?;
    }
    let mut ours = Vec::new();
    let mut theirs = vec![Vec::new(); programs.len()];
    for _ in 0..rounds {
        ours.push(stretch(bench, Kind::Ours, WAITERS, time).await?);
        for (program, rounds) in programs.iter_mut().zip(&mut theirs) {
            rounds.push(stretch_of(bench, program, time).await?);
        }
    }
    let rates = |rounds: &[Stretch]| rounds.iter().map(|round| round.hand_offs_per_second).collect::<Vec<_>>();
    let what = format!("zookeeper: {WAITERS} waiters on one lock");
    for (program, theirs) in programs.iter().zip(&theirs) {
        let (ours, floor) = (&mut rates(&ours)[..], &mut rates(theirs)[..]);
        let unit = "hand-offs/s";
        report.rates(Rates { what: &what, unit, floor_is: program.name, ours, floor, least: 1.0 });
    }
    report
        .say("requests are those that the server counted; nobody is idle so long that pings would be many among them");
    report.say(&format!("{what:<44} {:>15} {:>15}", "hand-offs/s", "requests each"));
    let names = std::iter::once("leasehold").chain(programs.iter().map(|program| program.name));
    for (name, rounds) in names.zip(std::iter::once(&ours).chain(&theirs)) {
        let rate = median(rounds, |round| round.hand_offs_per_second);
        let requests = median(rounds, |round| round.requests_per_hand_off);
        report.say(&format!("{name:<44} {rate:>15.0} {requests:>15.2}"));
        report.add(json!({
            "what": what, "lock": name, "hand_offs_per_second": rate, "requests_per_hand_off": requests,
            "rounds": rounds.len(),
        }));
    }
    Ok(())
}
