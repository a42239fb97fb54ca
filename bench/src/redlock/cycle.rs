//! One task acquires and releases an uncontended lock, with every variant.

use std::time::Duration;

use leasehold::{Locks, Mutex};
use serde_json::json;

use super::bare::Bare;
use super::nodes::Nodes;
use super::peers::{Program, Programs};
use super::{NODES, ROUNDS};
use crate::floor::now;
use crate::held::cpu;
use crate::redis::server::Calls;
use crate::redis::{Oops, TTL, middle};
use crate::report::{Line, Report};

/// The results of one round of cycles.
pub(crate) struct Round {
    pub(crate) p50: Duration,
    /// The round's duration, and the client's CPU time in it.
    pub(crate) total: Duration,
    pub(crate) client: Duration,
}

/// A variant of the lock.
enum Way {
    Ours(Locks, Mutex),
    Bare(Bare),
    Peer(Program),
}

impl Way {
    async fn cycles(&mut self, count: u32) -> Result<Round, Oops> {
        if let Self::Peer(program) = self {
            return program.cycles(count);
        }
        let mut times = Vec::with_capacity(count as usize);
        let (used, start) = (cpu(), now());
        for _ in 0..count {
            let before = now();
            match self {
                Self::Ours(_, mutex) => ours(mutex).await?,
                Self::Bare(bare) => bare.cycle().await?,
                Self::Peer(_) => {}
            }
            times.push(now() - before);
        }
        Ok(Round { total: now() - start, client: cpu() - used, p50: middle(&mut times) })
    }
}

/// Acquires and releases.
pub(crate) async fn ours(mutex: &Mutex) -> Result<(), Oops> {
    let guard = mutex.lock().await?;
    let _ = std::hint::black_box(guard.release().await?);
    Ok(())
}

/// A variant, and the results of its rounds: times per cycle.
struct Row {
    name: String,
    /// Whether a grant has a fencing token.
    token: bool,
    /// Whether it sends bare `SET`s; if not, a script calls them.
    sets: bool,
    way: Way,
    /// A peer may be slow: it runs fewer cycles.
    cycles: u32,
    p50: Vec<Duration>,
    mean: Vec<Duration>,
    client: Vec<Duration>,
    servers: Vec<Duration>,
    sent: Vec<f64>,
}

impl Row {
    fn new(name: &str, token: bool, way: Way, cycles: u32) -> Self {
        let [p50, mean, client, servers] = [const { Vec::new() }; 4];
        let sets = !matches!(way, Way::Ours(..));
        Self { name: name.to_owned(), token, sets, way, cycles, p50, mean, client, servers, sent: Vec::new() }
    }

    async fn round(&mut self, nodes: &mut Nodes, counts: bool) -> Result<(), Oops> {
        let count = self.cycles;
        let (calls, used) = (nodes.calls().await?, nodes.cpu().await?);
        let round = self.way.cycles(count).await?;
        let (used, calls) = (nodes.cpu().await? - used, nodes.calls().await?.since(&calls));
        if counts {
            self.p50.push(round.p50);
            self.mean.push(round.total / count);
            self.client.push(round.client / count);
            self.servers.push(used / count);
            self.sent.push(self.sent_by(&calls) as f64 / f64::from(count));
        }
        Ok(())
    }

    fn sent_by(&self, calls: &Calls) -> u64 {
        if self.sets { calls.sent() } else { calls.scripts() }
    }

    /// The CPU time of all processes in each round.
    fn cpu(&self) -> Vec<Duration> {
        self.client.iter().zip(&self.servers).map(|(client, servers)| *client + *servers).collect()
    }
}

/// All variants; constants hold the indices of those that are compared.
async fn rows(nodes: &Nodes, peers: Option<&Programs>) -> Result<Vec<Row>, Oops> {
    let cycles = 1_500 / nodes.scale;
    let ours = async |url: Result<Locks, leasehold::Error>, name: &str| -> Result<Row, Oops> {
        let locks = url?;
        let mutex = locks.mutex("one");
        Ok(Row::new(name, true, Way::Ours(locks, mutex), cycles))
    };
    let bare = async |count, wait| -> Result<Row, Oops> {
        let name = format!("bare commands, {wait} of {count} answers");
        Ok(Row::new(&name, false, Way::Bare(Bare::open(nodes, count, wait).await?), cycles))
    };
    let single = Locks::builder().ttl(TTL).open(&nodes.urls(1).concat()).await;
    let mut rows = vec![
        ours(single, "leasehold redis://, one of the nodes").await?,
        ours(nodes.open(NODES, "").await, "leasehold redlock://, 5 nodes").await?,
        ours(nodes.open(NODES, "?second-round=always").await, "the same with second-round=always").await?,
        ours(nodes.open(3, "").await, "leasehold redlock://, 3 nodes").await?,
        bare(NODES, 3).await?,
        bare(NODES, NODES).await?,
        bare(3, 2).await?,
        bare(1, 1).await?,
    ];
    for peer in peers.map(|peers| peers.start(nodes)).transpose()?.into_iter().flatten() {
        let mut row = Row::new(peer.name, false, Way::Peer(peer.program), (cycles / 3).max(20));
        row.sets = peer.sets;
        rows.push(row);
    }
    Ok(rows)
}

const SINGLE: usize = 0;
const NEEDED: usize = 1;
const ALWAYS: usize = 2;
const THREE: usize = 3;
const BARE: usize = 4;
const BARE_ALL: usize = 5;
const BARE_THREE: usize = 6;

/// One task, one lock.
pub(crate) async fn one(report: &mut Report, nodes: &mut Nodes, peers: Option<&Programs>) -> Result<(), Oops> {
    let mut rows = rows(nodes, peers).await?;
    // The first round warms everything up. Each round starts with another variant, and every second
    // one runs backwards, so that no variant always follows the same one.
    for round in 0..=ROUNDS as usize {
        for at in 0..rows.len() {
            let step = if round.is_multiple_of(2) { at } else { rows.len() - at };
            let at = (round + step) % rows.len();
            rows[at].round(nodes, round > 0).await?;
        }
    }
    compare(report, &rows);
    table(report, &mut rows);
    for row in rows {
        if let Way::Ours(locks, _) = row.way {
            locks.close().await?;
        }
    }
    Ok(())
}

fn compare(report: &mut Report, rows: &[Row]) {
    let mut line = |what: &str, ours: &[Duration], floor_is: &str, floor: &[Duration], most: f64| {
        report.compare(Line { what, floor_is, ours: &mut ours.to_vec(), floor: &mut floor.to_vec(), most });
    };
    let open = f64::INFINITY;
    let (single, needed, always, three) = (&rows[SINGLE], &rows[NEEDED], &rows[ALWAYS], &rows[THREE]);
    let (is_single, is_bare) = ("redis:// on one of the nodes", "bare commands, 3 of 5 answers");
    line("redlock: take and give back, p50", &needed.p50, is_single, &single.p50, 1.5);
    line("redlock: second-round=always, p50", &always.p50, is_single, &single.p50, 2.2);
    line("redlock: take and give back, mean", &needed.mean, is_single, &single.mean, open);
    line("redlock: second-round=always, mean", &always.mean, is_single, &single.mean, open);
    line("redlock: 3 nodes, p50", &three.p50, is_single, &single.p50, open);
    line("redlock: take and give back, p50", &needed.p50, is_bare, &rows[BARE].p50, open);
    line("redlock: take and give back, mean", &needed.mean, is_bare, &rows[BARE].mean, open);
    let all = "bare commands, all 5 answers";
    line("redlock: take and give back, p50", &needed.p50, all, &rows[BARE_ALL].p50, open);
    line("redlock: 3 nodes, p50", &three.p50, "bare commands, 2 of 3 answers", &rows[BARE_THREE].p50, open);
    line("redlock: CPU time of all processes", &needed.cpu(), is_single, &single.cpu(), open);
    line("redlock: CPU time of all processes", &needed.cpu(), is_bare, &rows[BARE].cpu(), open);
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u32;
    let floor: Vec<Duration> = needed.cpu().iter().map(|cpu| *cpu / cores).collect();
    line("redlock: take and give back, mean", &needed.mean, &format!("its CPU time over {cores} cores"), &floor, open);
}

/// Adds the table of all variants.
fn table(report: &mut Report, rows: &mut [Row]) {
    let line = |cells: [String; 7]| {
        let [name, rest @ ..] = cells;
        rest.iter().fold(format!("{name:<44}"), |row, cell| format!("{row} {cell:>13}"))
    };
    let head = ["", "p50", "mean", "sent", "client's CPU", "servers' CPU", "token"];
    report.say(&line(head.map(str::to_owned)));
    for row in rows {
        let times = [&mut row.p50, &mut row.mean, &mut row.client, &mut row.servers].map(|times| middle(times));
        let [p50, mean, client, servers] = times.map(|time| format!("{time:.1?}"));
        let sent = middle(&mut row.sent);
        let token = if row.token { "yes" } else { "no" };
        report.say(&line([row.name.clone(), p50, mean, format!("{sent:.1}"), client, servers, token.to_owned()]));
        let [p50, mean, client, servers] = times.map(|time| time.as_nanos() as u64);
        report.add(json!({
            "what": "redlock: one task takes and gives back", "lock": row.name, "p50_ns": p50, "mean_ns": mean, "sent": sent,
            "client_cpu_ns": client, "servers_cpu_ns": servers, "token": row.token, "cycles": row.cycles,
            "rounds": row.sent.len(),
        }));
    }
}
