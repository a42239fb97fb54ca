//! Clients that contend for one lock.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold::{Guard, Locks};
use tokio::task::JoinSet;

use super::peers::Program;
use super::server::{Bench, Traffic};
use super::simple::{Counts, Simple};
use crate::floor::now;
use crate::redis::Oops;

const NAME: &str = "contest";
/// How long they run before the measurement.
const WARM_UP: Duration = Duration::from_millis(500);

/// The implementation of the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Ours,
    Simple,
}

/// A client.
#[derive(Clone)]
pub(crate) enum One {
    Ours(leasehold::Mutex),
    Simple(Arc<Simple>),
}

/// The acquired lock.
pub(crate) enum Held {
    Ours(Guard),
    Simple(Arc<Simple>),
}

impl One {
    pub(crate) async fn take(&self) -> Result<Held, Oops> {
        match self {
            Self::Ours(mutex) => Ok(Held::Ours(mutex.lock().await?)),
            Self::Simple(simple) => {
                simple.take().await?;
                Ok(Held::Simple(Arc::clone(simple)))
            }
        }
    }
}

impl Held {
    pub(crate) async fn give(self) -> Result<(), Oops> {
        match self {
            Self::Ours(guard) => {
                let _ = guard.release().await?;
                Ok(())
            }
            Self::Simple(simple) => simple.give().await,
        }
    }
}

/// Clients with one session each.
pub(crate) struct Clients {
    pub(crate) all: Vec<One>,
    /// The session of each client.
    pub(crate) sessions: Vec<String>,
    pub(crate) counts: Arc<Counts>,
    locks: Vec<Locks>,
    /// A client that only inspects.
    looks: Option<Locks>,
}

impl Clients {
    pub(crate) async fn open(bench: &Bench, kind: Kind, count: usize) -> Result<Self, Oops> {
        let looks = if kind == Kind::Ours { Some(bench.open().await?) } else { None };
        let (all, sessions, locks) = (Vec::new(), Vec::new(), Vec::new());
        let mut clients = Self { all, sessions, counts: Arc::default(), locks, looks };
        let mut before = bench.traffic().await?;
        for _ in 0..count {
            match kind {
                Kind::Ours => {
                    let locks = bench.open().await?;
                    clients.all.push(One::Ours(locks.mutex(NAME)));
                    clients.locks.push(locks);
                }
                Kind::Simple => {
                    let simple = Simple::new(bench.bare().await?, &clients.counts);
                    clients.all.push(One::Simple(Arc::new(simple)));
                }
            }
            let after = bench.traffic().await?;
            clients.sessions.extend(after.new_since(&before));
            before = after;
        }
        if clients.sessions.len() == count {
            Ok(clients)
        } else {
            Err(format!("{count} clients have {} sessions", clients.sessions.len()).into())
        }
    }

    /// How many clients wait for the lock.
    pub(crate) async fn waiting(&self) -> Result<usize, Oops> {
        match &self.looks {
            Some(looks) => Ok(looks.inspect(NAME).await?.waiters.len()),
            None => Ok(self.counts.watching.load(Ordering::Relaxed)),
        }
    }

    /// Closes their sessions.
    pub(crate) async fn close(self) -> Result<(), Oops> {
        drop(self.all);
        for locks in self.locks.into_iter().chain(self.looks) {
            locks.close().await?;
        }
        Ok(())
    }
}

/// How often the lock was handed off.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    hand_offs: u64,
    last: Option<usize>,
}

impl Tally {
    pub(crate) fn new(hand_offs: u64) -> Self {
        Self { hand_offs, last: None }
    }

    fn count(&mut self, index: usize) {
        self.hand_offs += u64::from(self.last.replace(index) != Some(index));
    }
}

/// The results of a period in which all clients contend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    pub(crate) hand_offs_per_second: f64,
    pub(crate) requests_per_hand_off: f64,
}

/// A snapshot during it.
struct Moment {
    at: Duration,
    tally: Tally,
    traffic: Traffic,
}

impl Moment {
    fn since(&self, earlier: &Self, sessions: &HashSet<String>) -> Stretch {
        let requests = self.traffic.of_all(sessions, &earlier.traffic).requests() as f64;
        let seconds = (self.at - earlier.at).as_secs_f64();
        let hand_offs = (self.tally.hand_offs - earlier.tally.hand_offs) as f64;
        Stretch { hand_offs_per_second: hand_offs / seconds, requests_per_hand_off: requests / hand_offs }
    }
}

async fn again_and_again(index: usize, one: One, tally: Arc<Mutex<Tally>>) -> Result<Infallible, Oops> {
    loop {
        let held = one.take().await?;
        tally.lock().unwrap_or_else(PoisonError::into_inner).count(index);
        held.give().await?;
    }
}

/// New clients contend for one lock for this long. None is idle, so the requests contain hardly any
/// pings.
pub(crate) async fn stretch(bench: &Bench, kind: Kind, count: usize, time: Duration) -> Result<Stretch, Oops> {
    let clients = Clients::open(bench, kind, count).await?;
    let sessions: HashSet<String> = clients.sessions.iter().cloned().collect();
    let tally = Arc::new(Mutex::new(Tally::default()));
    let mut tasks = JoinSet::new();
    for (index, one) in clients.all.iter().cloned().enumerate() {
        let tally = Arc::clone(&tally);
        tasks.spawn(again_and_again(index, one, tally));
    }
    let moment = async || -> Result<Moment, Oops> {
        let traffic = bench.traffic().await?;
        let tally = *tally.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Moment { at: now(), tally, traffic })
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
    clients.close().await?;
    Ok(after.since(&before, &sessions))
}

/// The same with another library's lock, whose clients are already connected.
pub(crate) async fn stretch_of(bench: &Bench, program: &mut Program, time: Duration) -> Result<Stretch, Oops> {
    program.go()?;
    let mut moment = async || -> Result<Moment, Oops> {
        let traffic = bench.traffic().await?;
        let tally = program.tally()?;
        Ok(Moment { at: now(), tally, traffic })
    };
    tokio::time::sleep(WARM_UP).await;
    let before = moment().await?;
    tokio::time::sleep(time).await;
    let after = moment().await?;
    program.stop()?;
    Ok(after.since(&before, &program.sessions))
}
