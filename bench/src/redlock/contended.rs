//! Several clients contend for one lock. There is no queue: a client that does not get the lock
//! withdraws, and retries after a pause.
//!
//! The counts come from the servers' command statistics, which include commands called by scripts.
//! Only the script that releases or withdraws does not call `TIME`. Every attempt ends with it on
//! each node, so the number of such scripts over the number of nodes is the number of attempts.
//! Each attempt asks each node once. All other scripts belong to second rounds, each of which goes
//! to three nodes or more.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold::Locks;
use tokio::task::JoinSet;

use super::NODES;
use super::nodes::Nodes;
use crate::floor::now;
use crate::redis::{Oops, middle};
use crate::report::Report;

/// How often each number of contenders is measured, in turn.
const ROUNDS: u32 = 5;
/// The numbers of contenders.
const CONTENDERS: [usize; 2] = [2, 8];

#[derive(Default)]
struct Tally {
    /// How many grants are still to come; later ones, while all tasks stop, count too.
    left: u32,
    served: Vec<u32>,
    last: Option<usize>,
    hand_offs: u32,
    longest: Duration,
}

impl Tally {
    /// Counts a grant; returns whether there are more.
    fn count(&mut self, index: usize, waited: Duration) -> bool {
        self.served[index] += 1;
        self.hand_offs += u32::from(self.last.replace(index).is_some_and(|last| last != index));
        self.longest = self.longest.max(waited);
        self.left = self.left.saturating_sub(1);
        self.left > 0
    }
}

/// The results of one round: per second, per grant, and the longest wait.
struct Round {
    hand_offs: f64,
    grants: f64,
    attempts: f64,
    scripts: f64,
    second: f64,
    longest: Duration,
}

async fn round(nodes: &mut Nodes, clients: &[Locks], left: u32) -> Result<Round, Oops> {
    let name = format!("contended-{}", clients.len());
    let tally = Arc::new(Mutex::new(Tally { left, served: vec![0; clients.len()], ..Tally::default() }));
    let before = nodes.calls().await?;
    let start = now();
    let mut tasks = JoinSet::new();
    for (index, client) in clients.iter().enumerate() {
        let (mutex, tally) = (client.mutex(name.as_str()), Arc::clone(&tally));
        tasks.spawn(async move {
            loop {
                let asked = now();
                let guard = mutex.lock().await?;
                let more = tally.lock().unwrap_or_else(PoisonError::into_inner).count(index, now() - asked);
                let _ = guard.release().await?;
                if !more {
                    return Ok::<(), leasehold::Error>(());
                }
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    let taken = (now() - start).as_secs_f64();
    let calls = nodes.calls().await?.since(&before);
    let tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
    let grants = f64::from(tally.served.iter().sum::<u32>());
    let scripts = calls.scripts();
    let ended = scripts.saturating_sub(calls.of("time"));
    Ok(Round {
        hand_offs: f64::from(tally.hand_offs) / taken,
        grants: grants / taken,
        attempts: ended as f64 / NODES as f64 / grants,
        scripts: scripts as f64 / grants,
        second: scripts.saturating_sub(2 * ended) as f64 / grants,
        longest: tally.longest,
    })
}

/// 2 and 8 clients on one lock.
pub(crate) async fn contended(report: &mut Report, nodes: &mut Nodes) -> Result<(), Oops> {
    let mut clients = Vec::new();
    for _ in 0..CONTENDERS.into_iter().sum() {
        let locks = nodes.open(NODES, "").await?;
        // The first cycle sets up the connections.
        super::cycle::ours(&locks.mutex("contended")).await?;
        clients.push(locks);
    }
    let (few, many) = clients.split_at(CONTENDERS[0]);
    let grants = 400 / nodes.scale;
    let mut rounds = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (clients, rounds) in [few, many].into_iter().zip(&mut rounds) {
            rounds.push(round(nodes, clients, grants).await?);
        }
    }
    for (contenders, rounds) in CONTENDERS.into_iter().zip(rounds) {
        let mut figure = |what: &str, unit: &str, value: &dyn Fn(&Round) -> f64| {
            let value = middle(&mut rounds.iter().map(value).collect::<Vec<_>>());
            report.figure(&format!("redlock: {contenders} contenders, {what}"), value, unit, f64::INFINITY);
        };
        figure("hand-offs", "/s", &|round| round.hand_offs);
        figure("grants", "/s", &|round| round.grants);
        figure("attempts", "for a grant", &|round| round.attempts);
        figure("scripts, all nodes", "for a grant", &|round| round.scripts);
        // Second rounds are rare: the median over all rounds would be zero.
        let second = rounds.iter().map(|round| round.second).sum::<f64>() / f64::from(ROUNDS);
        let what = format!("redlock: {contenders} contenders, second rounds' scripts");
        report.figure(&what, second, "for a grant; a second round has 3 to 5", f64::INFINITY);
        let longest = rounds.iter().map(|round| round.longest).max().unwrap_or_default();
        let what = format!("redlock: {contenders} contenders, longest wait");
        report.figure(&what, longest.as_secs_f64() * 1e3, "ms", f64::INFINITY);
    }
    for locks in clients {
        locks.close().await?;
    }
    Ok(())
}
