//! One client acquires and releases an uncontended lock.

use std::time::Duration;

use leasehold::Mutex;
use leasehold_zookeeper::{Acls, Client, CreateMode};

use super::server::BenchServer;
use crate::baseline::monotonic_now;
use crate::redis::BoxError;
use crate::report::{Comparison, Report};

/// How many rounds each comparison has; baseline and leasehold run in turn in each.
const ROUNDS: u32 = 11;
const BASELINE_NAME: &str = "create (ephemeral, sequential), delete";
const BASELINE_FOLDER: &str = "/floor";

async fn run_cycle(mutex: &Mutex) -> Result<(), BoxError> {
    let guard = mutex.lock().await?;
    let _ = std::hint::black_box(guard.release().await?);
    Ok(())
}

async fn run_baseline_cycle(client: &Client) -> Result<(), BoxError> {
    let node = format!("{BASELINE_FOLDER}/lock-");
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let (_, sequence) = client.create(&node, b"", &options).await?;
    Ok(client.delete(&format!("{node}{sequence}"), None).await?)
}

/// The given percentile of these times; sorts them.
fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times.get(times.len() * percent / 100).copied().unwrap_or_default()
}

/// The median and the 99th percentile of each round's cycles.
#[derive(Default)]
struct RoundTimes {
    p50: Vec<Duration>,
    p99: Vec<Duration>,
}

impl RoundTimes {
    async fn run_round(
        &mut self,
        count: u32,
        mut cycle: impl AsyncFnMut() -> Result<(), BoxError>,
    ) -> Result<(), BoxError> {
        let mut times = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let start = monotonic_now();
            cycle().await?;
            times.push(monotonic_now() - start);
        }
        self.p50.push(percentile(&mut times, 50));
        self.p99.push(percentile(&mut times, 99));
        Ok(())
    }
}

async fn measure_rounds(bench: &BenchServer, cycles: u32) -> Result<(RoundTimes, RoundTimes), BoxError> {
    let locks = bench.open_locks().await?;
    let (mutex, client) = (locks.mutex("cycle"), bench.open_bare_session().await?);
    client.mkdir(BASELINE_FOLDER, &CreateMode::Persistent.with_acls(Acls::anyone_all())).await?;
    let mut warm = RoundTimes::default();
    warm.run_round(cycles, async || run_cycle(&mutex).await).await?;
    warm.run_round(cycles, async || run_baseline_cycle(&client).await).await?;
    let (mut mine, mut floor) = (RoundTimes::default(), RoundTimes::default());
    for round in 0..ROUNDS {
        // Baseline and leasehold take turns in being first.
        if round.is_multiple_of(2) {
            mine.run_round(cycles, async || run_cycle(&mutex).await).await?;
        }
        floor.run_round(cycles, async || run_baseline_cycle(&client).await).await?;
        if !round.is_multiple_of(2) {
            mine.run_round(cycles, async || run_cycle(&mutex).await).await?;
        }
    }
    locks.close().await?;
    Ok((mine, floor))
}

/// One client acquires and releases one lock, compared with a bare create and delete; on a server
/// that does not wait for the disk, and on one that does.
pub(crate) async fn bench_cycle(report: &mut Report, bench: &BenchServer) -> Result<(), BoxError> {
    let mut line = |what: &str, mut ours: Vec<Duration>, mut floor: Vec<Duration>, most: f64| {
        report.add_comparison(Comparison {
            name: what,
            baseline_name: BASELINE_NAME,
            leasehold: &mut ours,
            baseline: &mut floor,
            max_ratio: most,
        });
    };
    let (ours, floor) = measure_rounds(bench, 1_500 / bench.scale).await?;
    line("zookeeper: acquire and release, p50", ours.p50, floor.p50, 1.1);
    line("zookeeper: acquire and release, p99", ours.p99, floor.p99, f64::INFINITY);
    let durable = BenchServer::start(bench.scale, true).await?;
    let (ours, floor) = measure_rounds(&durable, 200 / bench.scale).await?;
    line("zookeeper: the same with forceSync=yes, p50", ours.p50, floor.p50, f64::INFINITY);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_sorted_times() {
        let mut times: Vec<Duration> = (0..200).rev().map(Duration::from_millis).collect();
        assert_eq!(percentile(&mut times, 50), Duration::from_millis(100));
        assert_eq!(percentile(&mut times, 99), Duration::from_millis(198));
        assert_eq!(percentile(&mut [], 50), Duration::ZERO);
    }
}
