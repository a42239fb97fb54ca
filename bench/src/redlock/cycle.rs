//! One task acquires and releases an uncontended lock, with every variant.

use std::time::Duration;

use leasehold::{Locks, Mutex};
use serde_json::json;

use super::nodes::BenchNodes;
use super::peers::{CycleProcess, PeerInstallations};
use super::quorum_baseline::QuorumBaseline;
use super::{NODE_COUNT, ROUNDS};
use crate::baseline::monotonic_now;
use crate::held_leases::cpu_time;
use crate::redis::server::CommandCalls;
use crate::redis::{BoxError, TTL, median_value};
use crate::report::{Comparison, Report};

/// The results of one round of cycles.
pub(crate) struct RoundTimes {
    pub(crate) p50: Duration,
    /// How long the round took.
    pub(crate) total: Duration,
    /// The client's CPU time in the round.
    pub(crate) client_cpu: Duration,
}

/// A way to lock that a round measures: leasehold with some options, bare commands, or a peer.
enum LockVariant {
    Leasehold(Locks, Mutex),
    Baseline(QuorumBaseline),
    Peer(CycleProcess),
}

impl LockVariant {
    async fn run_cycles(&mut self, count: u32) -> Result<RoundTimes, BoxError> {
        if let Self::Peer(program) = self {
            return program.run_cycles(count);
        }
        let mut times = Vec::with_capacity(count as usize);
        let (used, start) = (cpu_time(), monotonic_now());
        for _ in 0..count {
            let before = monotonic_now();
            match self {
                Self::Leasehold(_, mutex) => run_cycle(mutex).await?,
                Self::Baseline(bare) => bare.run_cycle().await?,
                Self::Peer(_) => {}
            }
            times.push(monotonic_now() - before);
        }
        Ok(RoundTimes { total: monotonic_now() - start, client_cpu: cpu_time() - used, p50: median_value(&mut times) })
    }
}

/// Acquires and releases the lock once.
pub(crate) async fn run_cycle(mutex: &Mutex) -> Result<(), BoxError> {
    let guard = mutex.lock().await?;
    let _ = std::hint::black_box(guard.release().await?);
    Ok(())
}

/// A variant of the lock, and the results of its rounds: times per cycle.
struct VariantResults {
    name: String,
    /// Whether a grant has a fencing token.
    has_token: bool,
    /// Whether the client sends bare `SET` commands; otherwise a script calls `SET`.
    sends_set: bool,
    variant: LockVariant,
    /// How many cycles a round has: fewer for slow peers.
    cycles: u32,
    p50: Vec<Duration>,
    mean: Vec<Duration>,
    client_cpu: Vec<Duration>,
    servers_cpu: Vec<Duration>,
    commands_sent: Vec<f64>,
}

impl VariantResults {
    fn new(name: &str, has_token: bool, variant: LockVariant, cycles: u32) -> Self {
        let [p50, mean, client, servers] = [const { Vec::new() }; 4];
        let sets = !matches!(variant, LockVariant::Leasehold(..));
        Self {
            name: name.to_owned(),
            has_token,
            sends_set: sets,
            variant,
            cycles,
            p50,
            mean,
            client_cpu: client,
            servers_cpu: servers,
            commands_sent: Vec::new(),
        }
    }

    async fn run_round(&mut self, nodes: &mut BenchNodes, is_counted: bool) -> Result<(), BoxError> {
        let count = self.cycles;
        let (calls, used) = (nodes.command_calls().await?, nodes.cpu_time().await?);
        let round = self.variant.run_cycles(count).await?;
        let (used, calls) = (nodes.cpu_time().await? - used, nodes.command_calls().await?.since(&calls));
        if is_counted {
            self.p50.push(round.p50);
            self.mean.push(round.total / count);
            self.client_cpu.push(round.client_cpu / count);
            self.servers_cpu.push(used / count);
            self.commands_sent.push(self.count_sent(&calls) as f64 / f64::from(count));
        }
        Ok(())
    }

    fn count_sent(&self, calls: &CommandCalls) -> u64 {
        if self.sends_set { calls.sent_count() } else { calls.script_count() }
    }

    /// The CPU time of all processes in each round.
    fn total_cpu(&self) -> Vec<Duration> {
        self.client_cpu.iter().zip(&self.servers_cpu).map(|(client, servers)| *client + *servers).collect()
    }
}

/// All variants. The constants below are the indices of those that are compared.
async fn open_variants(nodes: &BenchNodes, peers: Option<&PeerInstallations>) -> Result<Vec<VariantResults>, BoxError> {
    let cycles = 1_500 / nodes.scale;
    let ours = async |url: Result<Locks, leasehold::Error>, name: &str| -> Result<VariantResults, BoxError> {
        let locks = url?;
        let mutex = locks.mutex("one");
        Ok(VariantResults::new(name, true, LockVariant::Leasehold(locks, mutex), cycles))
    };
    let bare = async |count, wait| -> Result<VariantResults, BoxError> {
        let name = format!("bare commands, {wait} of {count} replies");
        Ok(VariantResults::new(
            &name,
            false,
            LockVariant::Baseline(QuorumBaseline::open(nodes, count, wait).await?),
            cycles,
        ))
    };
    let single = Locks::builder().ttl(TTL).open(&nodes.urls(1).concat()).await;
    let mut rows = vec![
        ours(single, "leasehold redis://, one of the nodes").await?,
        ours(nodes.open_locks(NODE_COUNT, "").await, "leasehold redlock://, 5 nodes").await?,
        ours(nodes.open_locks(NODE_COUNT, "?second-round=always").await, "the same with second-round=always").await?,
        ours(nodes.open_locks(3, "").await, "leasehold redlock://, 3 nodes").await?,
        bare(NODE_COUNT, 3).await?,
        bare(NODE_COUNT, NODE_COUNT).await?,
        bare(3, 2).await?,
        bare(1, 1).await?,
    ];
    for peer in peers.map(|peers| peers.start(nodes)).transpose()?.into_iter().flatten() {
        let mut row = VariantResults::new(peer.name, false, LockVariant::Peer(peer.program), (cycles / 3).max(20));
        row.sends_set = peer.sends_set;
        rows.push(row);
    }
    Ok(rows)
}

const SINGLE_NODE: usize = 0;
const FIVE_NODES: usize = 1;
const SECOND_ROUND_ALWAYS: usize = 2;
const THREE_NODES: usize = 3;
const BASELINE_THREE_OF_FIVE: usize = 4;
const BASELINE_FIVE_OF_FIVE: usize = 5;
const BASELINE_TWO_OF_THREE: usize = 6;

/// One task acquires and releases one lock, with every variant in turn.
pub(crate) async fn bench_single_task(
    report: &mut Report,
    nodes: &mut BenchNodes,
    peers: Option<&PeerInstallations>,
) -> Result<(), BoxError> {
    let mut rows = open_variants(nodes, peers).await?;
    // The first round warms everything up. Each round starts with another variant, and every second
    // one runs backwards, so that no variant always follows the same one.
    for round in 0..=ROUNDS as usize {
        for at in 0..rows.len() {
            let step = if round.is_multiple_of(2) { at } else { rows.len() - at };
            let at = (round + step) % rows.len();
            rows[at].run_round(nodes, round > 0).await?;
        }
    }
    report_comparisons(report, &rows);
    report_table(report, &mut rows);
    for row in rows {
        if let LockVariant::Leasehold(locks, _) = row.variant {
            locks.close().await?;
        }
    }
    Ok(())
}

fn report_comparisons(report: &mut Report, rows: &[VariantResults]) {
    /// A ratio that is printed, and not judged.
    const ANY: f64 = f64::INFINITY;
    let mut compare = |what: &str, ours: &[Duration], baseline_name: &str, baseline: &[Duration], max_ratio: f64| {
        report.add_comparison(Comparison {
            name: what,
            baseline_name,
            leasehold: &mut ours.to_vec(),
            baseline: &mut baseline.to_vec(),
            max_ratio,
        });
    };

    let (single, five, always, three) =
        (&rows[SINGLE_NODE], &rows[FIVE_NODES], &rows[SECOND_ROUND_ALWAYS], &rows[THREE_NODES]);
    let (one_node, of_three) = ("redis:// on one of the nodes", "bare commands, 3 of 5 replies");
    compare("redlock: acquire and release, p50", &five.p50, one_node, &single.p50, 1.5);
    compare("redlock: second-round=always, p50", &always.p50, one_node, &single.p50, 2.2);
    compare("redlock: acquire and release, mean", &five.mean, one_node, &single.mean, ANY);
    compare("redlock: second-round=always, mean", &always.mean, one_node, &single.mean, ANY);
    compare("redlock: 3 nodes, p50", &three.p50, one_node, &single.p50, ANY);
    compare("redlock: acquire and release, p50", &five.p50, of_three, &rows[BASELINE_THREE_OF_FIVE].p50, ANY);
    compare("redlock: acquire and release, mean", &five.mean, of_three, &rows[BASELINE_THREE_OF_FIVE].mean, ANY);
    let of_five = "bare commands, all 5 replies";
    compare("redlock: acquire and release, p50", &five.p50, of_five, &rows[BASELINE_FIVE_OF_FIVE].p50, ANY);
    compare(
        "redlock: 3 nodes, p50",
        &three.p50,
        "bare commands, 2 of 3 replies",
        &rows[BASELINE_TWO_OF_THREE].p50,
        ANY,
    );
    compare("redlock: CPU time of all processes", &five.total_cpu(), one_node, &single.total_cpu(), ANY);
    compare(
        "redlock: CPU time of all processes",
        &five.total_cpu(),
        of_three,
        &rows[BASELINE_THREE_OF_FIVE].total_cpu(),
        ANY,
    );
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u32;
    let floor: Vec<Duration> = five.total_cpu().iter().map(|cpu| *cpu / cores).collect();
    compare("redlock: acquire and release, mean", &five.mean, &format!("its CPU time over {cores} cores"), &floor, ANY);
}

/// Adds the table of all variants.
fn report_table(report: &mut Report, rows: &mut [VariantResults]) {
    let line = |cells: [String; 7]| {
        let [name, rest @ ..] = cells;
        rest.iter().fold(format!("{name:<44}"), |row, cell| format!("{row} {cell:>13}"))
    };
    let head = ["", "p50", "mean", "sent", "client's CPU", "servers' CPU", "token"];
    report.print_line(&line(head.map(str::to_owned)));
    for row in rows {
        let times =
            [&mut row.p50, &mut row.mean, &mut row.client_cpu, &mut row.servers_cpu].map(|times| median_value(times));
        let [p50, mean, client, servers] = times.map(|time| format!("{time:.1?}"));
        let sent = median_value(&mut row.commands_sent);
        let token = if row.has_token { "yes" } else { "no" };
        report.print_line(&line([
            row.name.clone(),
            p50,
            mean,
            format!("{sent:.1}"),
            client,
            servers,
            token.to_owned(),
        ]));
        let [p50, mean, client, servers] = times.map(|time| time.as_nanos() as u64);
        report.add_json(json!({
            "what": "redlock: one task acquires and releases", "lock": row.name, "p50_ns": p50, "mean_ns": mean, "sent": sent,
            "client_cpu_ns": client, "servers_cpu_ns": servers, "token": row.has_token, "cycles": row.cycles,
            "rounds": row.commands_sent.len(),
        }));
    }
}
