//! One client acquires and releases an uncontended lock.

use std::time::Duration;

use leasehold::Mutex;
use leasehold_zookeeper::{Acls, Client, CreateMode};

use super::server::Bench;
use crate::floor::now;
use crate::redis::Oops;
use crate::report::{Line, Report};

/// How often each comparison runs, floor and leasehold in turn.
const ROUNDS: u32 = 11;
const FLOOR: &str = "create (ephemeral, sequential), delete";
const FOLDER: &str = "/floor";

async fn ours(mutex: &Mutex) -> Result<(), Oops> {
    let guard = mutex.lock().await?;
    let _ = std::hint::black_box(guard.release().await?);
    Ok(())
}

async fn bare(client: &Client) -> Result<(), Oops> {
    let node = format!("{FOLDER}/lock-");
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let (_, sequence) = client.create(&node, b"", &options).await?;
    Ok(client.delete(&format!("{node}{sequence}"), None).await?)
}

/// The percentile of these times.
fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times.get(times.len() * percent / 100).copied().unwrap_or_default()
}

/// p50 and p99 of every round.
#[derive(Default)]
struct Rounds {
    p50: Vec<Duration>,
    p99: Vec<Duration>,
}

impl Rounds {
    async fn round(&mut self, count: u32, mut cycle: impl AsyncFnMut() -> Result<(), Oops>) -> Result<(), Oops> {
        let mut times = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let start = now();
            cycle().await?;
            times.push(now() - start);
        }
        self.p50.push(percentile(&mut times, 50));
        self.p99.push(percentile(&mut times, 99));
        Ok(())
    }
}

async fn compare(bench: &Bench, cycles: u32) -> Result<(Rounds, Rounds), Oops> {
    let locks = bench.open().await?;
    let (mutex, client) = (locks.mutex("cycle"), bench.bare().await?);
    client.mkdir(FOLDER, &CreateMode::Persistent.with_acls(Acls::anyone_all())).await?;
    let mut warm = Rounds::default();
    warm.round(cycles, async || ours(&mutex).await).await?;
    warm.round(cycles, async || bare(&client).await).await?;
    let (mut mine, mut floor) = (Rounds::default(), Rounds::default());
    for round in 0..ROUNDS {
        // Neither is always first.
        if round.is_multiple_of(2) {
            mine.round(cycles, async || ours(&mutex).await).await?;
        }
        floor.round(cycles, async || bare(&client).await).await?;
        if !round.is_multiple_of(2) {
            mine.round(cycles, async || ours(&mutex).await).await?;
        }
    }
    locks.close().await?;
    Ok((mine, floor))
}

/// One client, one lock; and the same on a server that waits for the disk.
pub(crate) async fn cycle(report: &mut Report, bench: &Bench) -> Result<(), Oops> {
    let mut line = |what: &str, mut ours: Vec<Duration>, mut floor: Vec<Duration>, most: f64| {
        report.compare(Line { what, floor_is: FLOOR, ours: &mut ours, floor: &mut floor, most });
    };
    let (ours, floor) = compare(bench, 1_500 / bench.scale).await?;
    line("zookeeper: take and give back, p50", ours.p50, floor.p50, 1.1);
    line("zookeeper: take and give back, p99", ours.p99, floor.p99, f64::INFINITY);
    let durable = Bench::start(bench.scale, true).await?;
    let (ours, floor) = compare(&durable, 200 / bench.scale).await?;
    line("zookeeper: the same with forceSync=yes, p50", ours.p50, floor.p50, f64::INFINITY);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_sorted() {
        let mut times: Vec<Duration> = (0..200).rev().map(Duration::from_millis).collect();
        assert_eq!(percentile(&mut times, 50), Duration::from_millis(100));
        assert_eq!(percentile(&mut times, 99), Duration::from_millis(198));
        assert_eq!(percentile(&mut [], 50), Duration::ZERO);
    }
}
