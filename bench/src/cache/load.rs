//! Readers and writers, and the staleness of the values read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use leasehold_cache::strategy::Strategy;
use tokio::task::JoinSet;

use super::database::{KEY_COUNT, Table, key, random_below};
use crate::redis::BoxError;

/// Readers per client.
const READERS_PER_CLIENT: usize = 16;
/// The longest pause of a writer between two writes.
const MAX_WRITE_PAUSE: Duration = Duration::from_millis(40);

/// How many reads, stale reads, writes and loads there were.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LoadCounts {
    pub(crate) reads: u64,
    pub(crate) stale: u64,
    pub(crate) writes: u64,
    pub(crate) loads: u64,
}

impl LoadCounts {
    pub(crate) fn stale_per_million(&self) -> f64 {
        self.stale as f64 * 1e6 / self.reads.max(1) as f64
    }

    pub(crate) fn loads_per_write(&self) -> f64 {
        self.loads as f64 / self.writes.max(1) as f64
    }
}

#[derive(Default)]
struct LoadState {
    /// The last number of each key whose write has returned.
    last_written: [AtomicU64; KEY_COUNT],
    is_over: AtomicBool,
    reads: AtomicU64,
    stale: AtomicU64,
    writes: AtomicU64,
}

impl LoadState {
    async fn run_reader(&self, strategy: &dyn Strategy, table: &Table) -> Result<(), BoxError> {
        while !self.is_over.load(Ordering::Relaxed) {
            let number = random_below(KEY_COUNT as u64) as usize;
            let least = self.last_written[number].load(Ordering::SeqCst);
            let value = strategy.read(table, &key(number)).await?.ok_or("a row is missing")?;
            let value: u64 = std::str::from_utf8(&value)?.parse()?;
            self.reads.fetch_add(1, Ordering::Relaxed);
            if value < least {
                self.stale.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    async fn run_writer(&self, strategy: &dyn Strategy, table: &Table, number: usize) -> Result<(), BoxError> {
        let mut value = 0u64;
        while !self.is_over.load(Ordering::Relaxed) {
            tokio::time::sleep(MAX_WRITE_PAUSE.mul_f64(random_below(1000) as f64 / 1000.0)).await;
            value += 1;
            strategy.write(table, &key(number), value.to_string().into_bytes()).await?;
            self.last_written[number].store(value, Ordering::SeqCst);
            self.writes.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Lets all readers and writers of the two clients run for `duration`, and returns the counts.
pub(crate) async fn run_load(
    table: &Arc<Table>,
    clients: [Arc<dyn Strategy>; 2],
    duration: Duration,
) -> Result<LoadCounts, BoxError> {
    let board = Arc::<LoadState>::default();
    let mut tasks = JoinSet::new();
    for number in 0..READERS_PER_CLIENT * 2 {
        let (board, table, strategy) = (Arc::clone(&board), Arc::clone(table), Arc::clone(&clients[number % 2]));
        tasks.spawn(async move { board.run_reader(&*strategy, &table).await });
    }
    for number in 0..KEY_COUNT {
        let (board, table, strategy) = (Arc::clone(&board), Arc::clone(table), Arc::clone(&clients[number % 2]));
        tasks.spawn(async move { board.run_writer(&*strategy, &table, number).await });
    }
    tokio::time::sleep(duration).await;
    board.is_over.store(true, Ordering::Relaxed);
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    let of = |count: &AtomicU64| count.load(Ordering::SeqCst);
    Ok(LoadCounts {
        reads: of(&board.reads),
        stale: of(&board.stale),
        writes: of(&board.writes),
        loads: of(&table.loads),
    })
}
