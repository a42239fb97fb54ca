//! Readers and writers, and the staleness of the values read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use leasehold::cache::strategy::Strategy;
use tokio::task::JoinSet;

use super::source::{KEYS, Table, key, random};
use crate::redis::Oops;

/// Readers per client.
const READERS: usize = 16;
/// The longest pause of a writer between two writes.
const PAUSE: Duration = Duration::from_millis(40);

/// The counts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) reads: u64,
    pub(crate) stale: u64,
    pub(crate) writes: u64,
    pub(crate) loads: u64,
}

impl Outcome {
    pub(crate) fn stale_in_a_million(&self) -> f64 {
        self.stale as f64 * 1e6 / self.reads.max(1) as f64
    }

    pub(crate) fn loads_for_each_write(&self) -> f64 {
        self.loads as f64 / self.writes.max(1) as f64
    }
}

#[derive(Default)]
struct Board {
    /// The last number of each key whose write has returned.
    returned: [AtomicU64; KEYS],
    over: AtomicBool,
    reads: AtomicU64,
    stale: AtomicU64,
    writes: AtomicU64,
}

impl Board {
    async fn read(&self, strategy: &dyn Strategy, table: &Table) -> Result<(), Oops> {
        while !self.over.load(Ordering::Relaxed) {
            let number = random(KEYS as u64) as usize;
            let least = self.returned[number].load(Ordering::SeqCst);
            let value = strategy.read(table, &key(number)).await?.ok_or("a row is missing")?;
            let value: u64 = std::str::from_utf8(&value)?.parse()?;
            self.reads.fetch_add(1, Ordering::Relaxed);
            if value < least {
                self.stale.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    async fn write(&self, strategy: &dyn Strategy, table: &Table, number: usize) -> Result<(), Oops> {
        let mut value = 0u64;
        while !self.over.load(Ordering::Relaxed) {
            tokio::time::sleep(PAUSE.mul_f64(random(1000) as f64 / 1000.0)).await;
            value += 1;
            strategy.write(table, &key(number), value.to_string().into_bytes()).await?;
            self.returned[number].store(value, Ordering::SeqCst);
            self.writes.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Reads and writes for this long.
pub(crate) async fn run_load(
    table: &Arc<Table>,
    clients: [Arc<dyn Strategy>; 2],
    time: Duration,
) -> Result<Outcome, Oops> {
    let board = Arc::<Board>::default();
    let mut tasks = JoinSet::new();
    for number in 0..READERS * 2 {
        let (board, table, strategy) = (Arc::clone(&board), Arc::clone(table), Arc::clone(&clients[number % 2]));
        tasks.spawn(async move { board.read(&*strategy, &table).await });
    }
    for number in 0..KEYS {
        let (board, table, strategy) = (Arc::clone(&board), Arc::clone(table), Arc::clone(&clients[number % 2]));
        tasks.spawn(async move { board.write(&*strategy, &table, number).await });
    }
    tokio::time::sleep(time).await;
    board.over.store(true, Ordering::Relaxed);
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    let of = |count: &AtomicU64| count.load(Ordering::SeqCst);
    Ok(Outcome { reads: of(&board.reads), stale: of(&board.stale), writes: of(&board.writes), loads: of(&table.loads) })
}
