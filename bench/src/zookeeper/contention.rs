//! Clients that contend for one lock.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold::{Guard, Locks};
use tokio::task::JoinSet;

use super::peers::PeerProcess;
use super::server::{BenchServer, Traffic};
use super::simple_lock::{SimpleLock, WaitCounts};
use crate::baseline::monotonic_now;
use crate::redis::BoxError;

const LOCK_NAME: &str = "contest";
/// How long the clients contend before the measurement.
const WARM_UP: Duration = Duration::from_millis(500);

/// Which implementation of the lock the clients use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockKind {
    Leasehold,
    Simple,
}

/// A client that contends for the lock.
#[derive(Clone)]
pub(crate) enum ContendingClient {
    Leasehold(leasehold::Mutex),
    Simple(Arc<SimpleLock>),
}

/// A lock that a client holds.
pub(crate) enum AcquiredLock {
    Leasehold(Guard),
    Simple(Arc<SimpleLock>),
}

impl ContendingClient {
    pub(crate) async fn acquire(&self) -> Result<AcquiredLock, BoxError> {
        match self {
            Self::Leasehold(mutex) => Ok(AcquiredLock::Leasehold(mutex.lock().await?)),
            Self::Simple(simple) => {
                simple.acquire().await?;
                Ok(AcquiredLock::Simple(Arc::clone(simple)))
            }
        }
    }
}

impl AcquiredLock {
    pub(crate) async fn release(self) -> Result<(), BoxError> {
        match self {
            Self::Leasehold(guard) => {
                let _ = guard.release().await?;
                Ok(())
            }
            Self::Simple(simple) => simple.release().await,
        }
    }
}

/// Clients with one session each.
pub(crate) struct ContendingClients {
    pub(crate) clients: Vec<ContendingClient>,
    /// The session of each client.
    pub(crate) sessions: Vec<String>,
    pub(crate) counts: Arc<WaitCounts>,
    locks: Vec<Locks>,
    /// A client that only inspects.
    inspector: Option<Locks>,
}

impl ContendingClients {
    pub(crate) async fn open(bench: &BenchServer, kind: LockKind, count: usize) -> Result<Self, BoxError> {
        let inspector = if kind == LockKind::Leasehold { Some(bench.open_locks().await?) } else { None };
        let (all, sessions, locks) = (Vec::new(), Vec::new(), Vec::new());
        let mut clients = Self { clients: all, sessions, counts: Arc::default(), locks, inspector };
        let mut before = bench.traffic().await?;
        for _ in 0..count {
            match kind {
                LockKind::Leasehold => {
                    let locks = bench.open_locks().await?;
                    clients.clients.push(ContendingClient::Leasehold(locks.mutex(LOCK_NAME)));
                    clients.locks.push(locks);
                }
                LockKind::Simple => {
                    let simple = SimpleLock::new(bench.open_bare_session().await?, &clients.counts);
                    clients.clients.push(ContendingClient::Simple(Arc::new(simple)));
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
    pub(crate) async fn waiter_count(&self) -> Result<usize, BoxError> {
        match &self.inspector {
            Some(inspector) => Ok(inspector.inspect(LOCK_NAME).await?.waiters.len()),
            None => Ok(self.counts.watcher_count.load(Ordering::Relaxed)),
        }
    }

    /// Closes the clients' sessions.
    pub(crate) async fn close(self) -> Result<(), BoxError> {
        drop(self.clients);
        for locks in self.locks.into_iter().chain(self.inspector) {
            locks.close().await?;
        }
        Ok(())
    }
}

/// How often the lock was handed off.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HandOffCount {
    hand_offs: u64,
    last_client: Option<usize>,
}

impl HandOffCount {
    pub(crate) fn new(hand_offs: u64) -> Self {
        Self { hand_offs, last_client: None }
    }

    fn count_turn(&mut self, index: usize) {
        self.hand_offs += u64::from(self.last_client.replace(index) != Some(index));
    }
}

/// The results of a period in which all clients contend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContentionResult {
    pub(crate) hand_offs_per_second: f64,
    pub(crate) requests_per_hand_off: f64,
}

/// The counts at one time while the clients contend.
struct Snapshot {
    at: Duration,
    tally: HandOffCount,
    traffic: Traffic,
}

impl Snapshot {
    fn result_since(&self, earlier: &Self, sessions: &HashSet<String>) -> ContentionResult {
        let requests = self.traffic.total_packets_since(sessions, &earlier.traffic).request_count() as f64;
        let seconds = (self.at - earlier.at).as_secs_f64();
        let hand_offs = (self.tally.hand_offs - earlier.tally.hand_offs) as f64;
        ContentionResult { hand_offs_per_second: hand_offs / seconds, requests_per_hand_off: requests / hand_offs }
    }
}

async fn contend_forever(
    index: usize,
    client: ContendingClient,
    tally: Arc<Mutex<HandOffCount>>,
) -> Result<Infallible, BoxError> {
    loop {
        let held = client.acquire().await?;
        tally.lock().unwrap_or_else(PoisonError::into_inner).count_turn(index);
        held.release().await?;
    }
}

/// New clients contend for one lock for this long. None is idle, so the requests contain hardly any
/// pings.
pub(crate) async fn measure_contention(
    bench: &BenchServer,
    kind: LockKind,
    count: usize,
    duration: Duration,
) -> Result<ContentionResult, BoxError> {
    let clients = ContendingClients::open(bench, kind, count).await?;
    let sessions: HashSet<String> = clients.sessions.iter().cloned().collect();
    let tally = Arc::new(Mutex::new(HandOffCount::default()));
    let mut tasks = JoinSet::new();
    for (index, one) in clients.clients.iter().cloned().enumerate() {
        let tally = Arc::clone(&tally);
        tasks.spawn(contend_forever(index, one, tally));
    }
    let moment = async || -> Result<Snapshot, BoxError> {
        let traffic = bench.traffic().await?;
        let tally = *tally.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Snapshot { at: monotonic_now(), tally, traffic })
    };
    tokio::time::sleep(WARM_UP).await;
    let before = moment().await?;
    tokio::time::sleep(duration).await;
    let after = moment().await?;
    if let Some(ended) = tasks.try_join_next() {
        match ended? {
            Ok(never) => match never {},
            Err(error) => return Err(error),
        }
    }
    tasks.shutdown().await;
    clients.close().await?;
    Ok(after.result_since(&before, &sessions))
}

/// Measures the already connected clients of another library, which contend for one lock for
/// `duration`.
pub(crate) async fn measure_program(
    bench: &BenchServer,
    program: &mut PeerProcess,
    duration: Duration,
) -> Result<ContentionResult, BoxError> {
    program.start_contending()?;
    let mut moment = async || -> Result<Snapshot, BoxError> {
        let traffic = bench.traffic().await?;
        let tally = program.query_tally()?;
        Ok(Snapshot { at: monotonic_now(), tally, traffic })
    };
    tokio::time::sleep(WARM_UP).await;
    let before = moment().await?;
    tokio::time::sleep(duration).await;
    let after = moment().await?;
    program.stop_contending()?;
    Ok(after.result_since(&before, &program.sessions))
}
