//! The cost of a node that is dead or hangs.

use std::time::Duration;

use leasehold::{Locks, Mutex};
use leasehold_testbed::Data;

use super::NODE_COUNT;
use super::cycle::run_cycle;
use super::nodes::BenchNodes;
use crate::baseline::monotonic_now;
use crate::redis::server::command_calls;
use crate::redis::{BoxError, median_value};
use crate::report::{Comparison, Report};

const ROUNDS: u32 = 5;
/// How long the client waits for a node's response before it counts as unresponsive.
const NODE_TIMEOUT: Duration = Duration::from_millis(250);
/// The time limit for a restarted node to receive requests again.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(20);

/// The times of the cycles while the nodes are in one state, one value per round.
#[derive(Default)]
struct CycleTimes {
    first: Vec<Duration>,
    p50: Vec<Duration>,
    longest: Vec<Duration>,
}

impl CycleTimes {
    async fn measure(&mut self, mutex: &Mutex, count: u32) -> Result<(), BoxError> {
        let mut times = Vec::with_capacity(count as usize);
        for _ in 0..=count {
            let start = monotonic_now();
            run_cycle(mutex).await?;
            times.push(monotonic_now() - start);
        }
        self.first.push(times.remove(0));
        self.longest.push(times.iter().copied().max().unwrap_or_default());
        self.p50.push(median_value(&mut times));
        Ok(())
    }
}

/// Waits until a restarted node receives requests again.
async fn wait_until_used(nodes: &BenchNodes, index: usize, mutex: &Mutex) -> Result<(), BoxError> {
    let mut stats = nodes.connect_for_stats(index).await?;
    let end = monotonic_now() + RECOVERY_TIMEOUT;
    loop {
        let before = command_calls(&mut stats).await?;
        for _ in 0..10 {
            run_cycle(mutex).await?;
        }
        if command_calls(&mut stats).await?.since(&before).script_count() >= 20 {
            return Ok(());
        }
        if monotonic_now() > end {
            return Err(format!("node {index} is back, but receives no requests").into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// One task acquires and releases one lock while nodes are down, compared with the same cycles
/// while all nodes are alive.
pub(crate) async fn bench_nodes_down(report: &mut Report, nodes: &mut BenchNodes) -> Result<(), BoxError> {
    let locks: Locks = nodes.open_locks(NODE_COUNT, "").await?;
    let mutex = locks.mutex("down");
    let count = 1_500 / nodes.scale;
    let mut states: [CycleTimes; 4] = Default::default();
    let [alive, dead, two, hangs] = &mut states;
    for _ in 0..ROUNDS {
        alive.measure(&mutex, count).await?;
        nodes.servers.server_mut(0).kill()?;
        dead.measure(&mutex, count).await?;
        nodes.servers.server_mut(1).kill()?;
        two.measure(&mutex, count).await?;
        for at in 0..2 {
            nodes.servers.server_mut(at).restart(Data::Wipe).await?;
            wait_until_used(nodes, at, &mutex).await?;
        }
        nodes.servers.server_mut(2).pause()?;
        hangs.measure(&mutex, count).await?;
        nodes.servers.server_mut(2).resume()?;
        wait_until_used(nodes, 2, &mutex).await?;
    }
    let [mut alive, dead, two, hangs] = states;
    for (state, mut cycles) in [("1 of 5 dead", dead), ("2 of 5 dead", two), ("1 of 5 hangs", hangs)] {
        let what = format!("redlock: {state}, p50");
        let (floor_is, floor) = ("all five alive", &mut alive.p50);
        report.add_comparison(Comparison {
            name: &what,
            baseline_name: floor_is,
            leasehold: &mut cycles.p50,
            baseline: floor,
            max_ratio: f64::INFINITY,
        });
        let most = NODE_TIMEOUT.as_secs_f64() * 1e3;
        for (which, times) in [("first cycle", cycles.first), ("longest cycle after it", cycles.longest)] {
            let longest = times.into_iter().max().unwrap_or_default().as_secs_f64() * 1e3;
            report.add_figure(&format!("redlock: {state}, {which}"), longest, "ms, most of all rounds", most);
        }
    }
    locks.close().await?;
    Ok(())
}
