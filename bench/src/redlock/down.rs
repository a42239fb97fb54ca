//! The cost of a node that is dead or hangs.

use std::time::Duration;

use leasehold::{Locks, Mutex};
use leasehold_testbed::Data;

use super::NODES;
use super::cycle::ours;
use super::nodes::Nodes;
use crate::floor::now;
use crate::redis::server::calls;
use crate::redis::{Oops, middle};
use crate::report::{Line, Report};

const ROUNDS: u32 = 5;
/// How long to wait for a node's response.
const NODE_TIMEOUT: Duration = Duration::from_millis(250);
/// How long a restarted node may stay without a request.
const BACK: Duration = Duration::from_secs(20);

/// The results of the cycles in one state, per round.
#[derive(Default)]
struct Cycles {
    first: Vec<Duration>,
    p50: Vec<Duration>,
    longest: Vec<Duration>,
}

impl Cycles {
    async fn measure(&mut self, mutex: &Mutex, count: u32) -> Result<(), Oops> {
        let mut times = Vec::with_capacity(count as usize);
        for _ in 0..=count {
            let start = now();
            ours(mutex).await?;
            times.push(now() - start);
        }
        self.first.push(times.remove(0));
        self.longest.push(times.iter().copied().max().unwrap_or_default());
        self.p50.push(middle(&mut times));
        Ok(())
    }
}

/// Waits until a restarted node receives requests again.
async fn back(nodes: &Nodes, at: usize, mutex: &Mutex) -> Result<(), Oops> {
    let mut asker = nodes.asker(at).await?;
    let end = now() + BACK;
    loop {
        let before = calls(&mut asker).await?;
        for _ in 0..10 {
            ours(mutex).await?;
        }
        if calls(&mut asker).await?.since(&before).scripts() >= 20 {
            return Ok(());
        }
        if now() > end {
            return Err(format!("node {at} is back, and is not asked").into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// One task while nodes are down, compared with the same while all are alive, in rounds.
pub(crate) async fn down(report: &mut Report, nodes: &mut Nodes) -> Result<(), Oops> {
    let locks: Locks = nodes.open(NODES, "").await?;
    let mutex = locks.mutex("down");
    let count = 1_500 / nodes.scale;
    let mut states: [Cycles; 4] = Default::default();
    let [alive, dead, two, hangs] = &mut states;
    for _ in 0..ROUNDS {
        alive.measure(&mutex, count).await?;
        nodes.set.server_mut(0).kill()?;
        dead.measure(&mutex, count).await?;
        nodes.set.server_mut(1).kill()?;
        two.measure(&mutex, count).await?;
        for at in 0..2 {
            nodes.set.server_mut(at).restart(Data::Wipe).await?;
            back(nodes, at, &mutex).await?;
        }
        nodes.set.server_mut(2).pause()?;
        hangs.measure(&mutex, count).await?;
        nodes.set.server_mut(2).resume()?;
        back(nodes, 2, &mutex).await?;
    }
    let [mut alive, dead, two, hangs] = states;
    for (state, mut cycles) in [("1 of 5 dead", dead), ("2 of 5 dead", two), ("1 of 5 hangs", hangs)] {
        let what = format!("redlock: {state}, p50");
        let (floor_is, floor) = ("all five alive", &mut alive.p50);
        report.compare(Line { what: &what, floor_is, ours: &mut cycles.p50, floor, most: f64::INFINITY });
        let most = NODE_TIMEOUT.as_secs_f64() * 1e3;
        for (which, times) in [("first cycle", cycles.first), ("longest cycle after it", cycles.longest)] {
            let longest = times.into_iter().max().unwrap_or_default().as_secs_f64() * 1e3;
            report.figure(&format!("redlock: {state}, {which}"), longest, "ms, most of all rounds", most);
        }
    }
    locks.close().await?;
    Ok(())
}
