//! Tasks that contend for one lock.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold::{Guard, Locks};
use tokio::task::JoinSet;

use super::floor::Bare;
use super::server::{Bench, Statements};
use crate::floor::now;
use crate::redis::Oops;

/// How many tasks contend.
pub(crate) const WAITERS: usize = 64;
/// How long they run before the measurement.
const WARM_UP: Duration = Duration::from_millis(500);
/// The pause of tasks that poll.
const PAUSE: Duration = Duration::from_millis(100);
const NAME: &str = "contest";
/// As long as the engine's row with one holder: a task that polls has no queue to store.
const STATE: &str =
    "{\"holders\":[{\"id\":\"00000000000000000000000000000000\",\"host\":\"localhost\",\"pid\":12345}]}";

/// A task that contends for the lock.
enum One {
    Ours(leasehold::Mutex),
    /// Polls over its own connection.
    Polls {
        bare: Box<Bare>,
        /// Whether it also pauses after its release, so that others acquire the lock.
        rests: bool,
    },
}

/// The acquired lock.
enum Held {
    Ours(Guard),
    Polled(i64),
}

impl One {
    async fn take(&mut self) -> Result<Held, Oops> {
        match self {
            Self::Ours(mutex) => Ok(Held::Ours(mutex.lock().await?)),
            Self::Polls { bare, .. } => loop {
                if let Some(token) = bare.poll(NAME, STATE).await? {
                    return Ok(Held::Polled(token));
                }
                tokio::time::sleep(PAUSE).await;
            },
        }
    }

    async fn give(&mut self, held: Held) -> Result<(), Oops> {
        match (self, held) {
            (Self::Polls { bare, rests }, Held::Polled(token)) => {
                bare.give(NAME, token, "{}").await?;
                if *rests {
                    tokio::time::sleep(PAUSE).await;
                }
                Ok(())
            }
            (_, Held::Ours(guard)) => {
                let _ = guard.release().await?;
                Ok(())
            }
            (Self::Ours(_), Held::Polled(_)) => Err("one has what another took".into()),
        }
    }
}

/// How often the lock was acquired, and how often by another task than before.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    hand_offs: u64,
    last: Option<usize>,
}

impl Tally {
    fn count(&mut self, index: usize) {
        self.hand_offs += u64::from(self.last.replace(index) != Some(index));
    }
}

/// The results of a period in which all tasks contend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    pub(crate) hand_offs_per_second: f64,
    pub(crate) statements_per_hand_off: f64,
}

/// A snapshot during it.
struct Moment {
    at: Duration,
    tally: Tally,
    statements: Statements,
}

impl Moment {
    fn since(&self, earlier: &Self) -> Stretch {
        let statements = self.statements.since(earlier.statements);
        let seconds = (self.at - earlier.at).as_secs_f64();
        let hand_offs = (self.tally.hand_offs - earlier.tally.hand_offs) as f64;
        Stretch { hand_offs_per_second: hand_offs / seconds, statements_per_hand_off: statements / hand_offs }
    }
}

async fn again_and_again(index: usize, mut one: One, tally: Arc<Mutex<Tally>>) -> Result<Infallible, Oops> {
    loop {
        let held = one.take().await?;
        tally.lock().unwrap_or_else(PoisonError::into_inner).count(index);
        one.give(held).await?;
    }
}

async fn stretch(bench: &Bench, all: Vec<One>, time: Duration) -> Result<Stretch, Oops> {
    let tally = Arc::new(Mutex::new(Tally::default()));
    let mut tasks = JoinSet::new();
    for (index, one) in all.into_iter().enumerate() {
        tasks.spawn(again_and_again(index, one, Arc::clone(&tally)));
    }
    let moment = async || -> Result<Moment, Oops> {
        let statements = bench.statements().await?;
        let tally = *tally.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Moment { at: now(), tally, statements })
    };
    tokio::time::sleep(WARM_UP).await;
    let before = moment().await?;
    tokio::time::sleep(time).await;
    let after = moment().await?;
    if let Some(ended) = tasks.try_join_next() {
        match ended? {
            Ok(never) => match never {},
            Err(error) => return Err(error),
        }
    }
    tasks.shutdown().await;
    Ok(after.since(&before))
}

/// Leasehold's tasks, spread evenly over new clients, for this long.
pub(crate) async fn ours(bench: &Bench, clients: usize, options: &str, time: Duration) -> Result<Stretch, Oops> {
    let mut locks: Vec<Locks> = Vec::new();
    for _ in 0..clients {
        locks.push(bench.open(options).await?);
    }
    let all = (0..WAITERS).map(|index| One::Ours(locks[index % clients].mutex(NAME))).collect();
    let stretch = stretch(bench, all, time).await?;
    for locks in locks {
        locks.close().await?;
    }
    // A task that was stopped half-way left its claim behind.
    bench.ask(&format!("DELETE FROM leasehold WHERE name = '{NAME}'")).await?;
    Ok(stretch)
}

/// Tasks that poll; with `rests` they also pause after their turn.
pub(crate) async fn polls(bench: &Bench, rests: bool, time: Duration) -> Result<Stretch, Oops> {
    let mut all = Vec::new();
    for _ in 0..WAITERS {
        all.push(One::Polls { bare: Box::new(Bare::open(bench).await?), rests });
    }
    let stretch = stretch(bench, all, time).await?;
    bench.ask(&format!("DELETE FROM floor WHERE name = '{NAME}'")).await?;
    Ok(stretch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_it_twice_hands_nothing_off() {
        let mut tally = Tally::default();
        [1, 1, 2, 2, 1].into_iter().for_each(|index| tally.count(index));
        assert_eq!(tally.hand_offs, 3);
    }
}
