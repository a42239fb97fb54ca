//! Several clients contend for one lock. There is no queue: a client that does not get the lock
//! withdraws, and retries after a pause.
//!
//! The counts come from the servers' command statistics, which include commands called by scripts.
//! Only the script that releases or withdraws does not call `TIME`. Every attempt ends with it on
//! each node, so the number of such scripts over the number of nodes is the number of attempts.
//! Each attempt sends each node one request. All other scripts belong to second rounds, each of
//! which goes to three nodes or more.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold::Locks;
use tokio::task::JoinSet;

use super::NODE_COUNT;
use super::nodes::BenchNodes;
use crate::baseline::monotonic_now;
use crate::redis::{BoxError, median_value};
use crate::report::Report;

/// How many rounds there are; each number of contenders is measured once in each.
const ROUNDS: u32 = 5;
/// The numbers of contenders.
const CONTENDERS: [usize; 2] = [2, 8];

#[derive(Default)]
struct GrantCounts {
    /// How many grants are still to come; later ones, while all tasks stop, count too.
    remaining: u32,
    grants_by_client: Vec<u32>,
    last_client: Option<usize>,
    hand_offs: u32,
    longest_wait: Duration,
}

impl GrantCounts {
    /// Counts a grant; returns whether there are more.
    fn count_grant(&mut self, index: usize, waited: Duration) -> bool {
        self.grants_by_client[index] += 1;
        self.hand_offs += u32::from(self.last_client.replace(index).is_some_and(|last| last != index));
        self.longest_wait = self.longest_wait.max(waited);
        self.remaining = self.remaining.saturating_sub(1);
        self.remaining > 0
    }
}

/// The results of one round in which clients contend for the lock.
struct RoundResult {
    hand_offs_per_second: f64,
    grants_per_second: f64,
    attempts_per_grant: f64,
    scripts_per_grant: f64,
    second_round_scripts_per_grant: f64,
    longest_wait: Duration,
}

async fn run_round(nodes: &mut BenchNodes, clients: &[Locks], grants: u32) -> Result<RoundResult, BoxError> {
    let name = format!("contended-{}", clients.len());
    let tally = Arc::new(Mutex::new(GrantCounts {
        remaining: grants,
        grants_by_client: vec![0; clients.len()],
        ..GrantCounts::default()
    }));
    let before = nodes.command_calls().await?;
    let start = monotonic_now();
    let mut tasks = JoinSet::new();
    for (index, client) in clients.iter().enumerate() {
        let (mutex, tally) = (client.mutex(name.as_str()), Arc::clone(&tally));
        tasks.spawn(async move {
            loop {
                let requested_at = monotonic_now();
                let guard = mutex.lock().await?;
                let more = tally
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .count_grant(index, monotonic_now() - requested_at);
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
    let taken = (monotonic_now() - start).as_secs_f64();
    let calls = nodes.command_calls().await?.since(&before);
    let tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
    let grants = f64::from(tally.grants_by_client.iter().sum::<u32>());
    let scripts = calls.script_count();
    let ended = scripts.saturating_sub(calls.count_of("time"));
    Ok(RoundResult {
        hand_offs_per_second: f64::from(tally.hand_offs) / taken,
        grants_per_second: grants / taken,
        attempts_per_grant: ended as f64 / NODE_COUNT as f64 / grants,
        scripts_per_grant: scripts as f64 / grants,
        second_round_scripts_per_grant: scripts.saturating_sub(2 * ended) as f64 / grants,
        longest_wait: tally.longest_wait,
    })
}

/// Measures 2 and 8 clients that contend for one lock.
pub(crate) async fn bench_contention(report: &mut Report, nodes: &mut BenchNodes) -> Result<(), BoxError> {
    let mut clients = Vec::new();
    for _ in 0..CONTENDERS.into_iter().sum() {
        let locks = nodes.open_locks(NODE_COUNT, "").await?;
        // The first cycle sets up the connections.
        super::cycle::run_cycle(&locks.mutex("contended")).await?;
        clients.push(locks);
    }
    let (few, many) = clients.split_at(CONTENDERS[0]);
    let grants = 400 / nodes.scale;
    let mut rounds = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (clients, rounds) in [few, many].into_iter().zip(&mut rounds) {
            rounds.push(run_round(nodes, clients, grants).await?);
        }
    }
    for (contenders, rounds) in CONTENDERS.into_iter().zip(rounds) {
        let mut figure = |what: &str, unit: &str, value: &dyn Fn(&RoundResult) -> f64| {
            let value = median_value(&mut rounds.iter().map(value).collect::<Vec<_>>());
            report.add_figure(&format!("redlock: {contenders} contenders, {what}"), value, unit, f64::INFINITY);
        };
        figure("hand-offs", "/s", &|round| round.hand_offs_per_second);
        figure("grants", "/s", &|round| round.grants_per_second);
        figure("attempts", "for a grant", &|round| round.attempts_per_grant);
        figure("scripts, all nodes", "for a grant", &|round| round.scripts_per_grant);
        // Second rounds are rare: the median over all rounds would be zero.
        let second = rounds.iter().map(|round| round.second_round_scripts_per_grant).sum::<f64>() / f64::from(ROUNDS);
        let what = format!("redlock: {contenders} contenders, second rounds' scripts");
        report.add_figure(&what, second, "for a grant; a second round has 3 to 5", f64::INFINITY);
        let longest = rounds.iter().map(|round| round.longest_wait).max().unwrap_or_default();
        let what = format!("redlock: {contenders} contenders, longest wait");
        report.add_figure(&what, longest.as_secs_f64() * 1e3, "ms", f64::INFINITY);
    }
    for locks in clients {
        locks.close().await?;
    }
    Ok(())
}
