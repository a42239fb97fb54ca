//! State that all claims of one client share: connections, and the local queues.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::super::config::Config;
use super::super::error::{ErrorClass, Failure};
use super::super::pool::Pool;
use super::claim_entry::ClaimRegistry;
use super::claim_error::ClaimError;
use super::session::Session;
use super::wire::{self, SessionStatements};
use crate::clock::Clock;
use crate::engine::LossBroadcaster;
use crate::types::{LockName, Token};

/// How many rows are remembered as existing.
const MAX_KNOWN_ROWS: usize = 4096;
/// How many idle connections are kept.
const MAX_IDLE: usize = 8;
/// How many times a statement is tried that others blocked.
const MAX_TRIES: usize = 4;

/// State that all claims of one client share.
#[derive(Debug)]
pub(super) struct SessionPool {
    pub(super) config: Arc<Config>,
    pub(super) wire: SessionStatements,
    pub(super) clock: Clock,
    pub(super) losses: LossBroadcaster,
    pub(super) claims: ClaimRegistry,
    /// For statements without a lock: counters, ending other statements, checks.
    pub(super) side_pool: Arc<Pool>,
    /// Permits for connections that may hold or wait.
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<Session>>,
    queues: Mutex<HashMap<LockName, Arc<LocalQueue>>>,
    known_rows: Mutex<HashSet<LockName>>,
}

/// The local queue of one lock. One claim of this client at a time waits at the server; the others
/// wait here, in order, and need no connection.
#[derive(Debug)]
pub(super) struct LocalQueue {
    turns: Arc<Semaphore>,
    /// Whether the claim at the head waits at the server.
    pub(super) is_head_waiting: watch::Sender<bool>,
}

/// A claim's turn to wait at the server; it ends when dropped.
#[derive(Debug)]
pub(super) struct Turn {
    queue: Arc<LocalQueue>,
    _permit: OwnedSemaphorePermit,
}

impl Turn {
    /// Notes that the claim waits at the server.
    pub(super) fn mark_waiting(&self) {
        self.queue.is_head_waiting.send_replace(true);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.queue.is_head_waiting.send_replace(false);
    }
}

impl LocalQueue {
    /// Waits for the next turn.
    pub(super) async fn turn(self: &Arc<Self>) -> Result<Turn, ClaimError> {
        let permit = Arc::clone(&self.turns).acquire_owned().await.map_err(|_| Failure::Closed)?;
        Ok(Turn { queue: Arc::clone(self), _permit: permit })
    }

    /// Waits for the next turn; `None` if the claim whose turn it is waits at the server.
    pub(super) async fn next_turn_unless_waiting(self: &Arc<Self>) -> Result<Option<Turn>, ClaimError> {
        let mut blocked = self.is_head_waiting.subscribe();
        tokio::select! {
            biased;
            turn = self.turn() => turn.map(Some),
            _ = blocked.wait_for(|blocked| *blocked) => Ok(None),
        }
    }
}

impl SessionPool {
    pub(super) fn new(
        config: Arc<Config>,
        wire: SessionStatements,
        clock: Clock,
        side_pool: Arc<Pool>,
        max_sessions: usize,
    ) -> Self {
        Self {
            config,
            wire,
            clock,
            losses: LossBroadcaster::default(),
            claims: ClaimRegistry::default(),
            side_pool,
            permits: Arc::new(Semaphore::new(max_sessions)),
            idle: Mutex::default(),
            queues: Mutex::default(),
            known_rows: Mutex::default(),
        }
    }

    /// The local queue of a lock.
    pub(super) fn queue(&self, name: &LockName) -> Arc<LocalQueue> {
        let new =
            || Arc::new(LocalQueue { turns: Arc::new(Semaphore::new(1)), is_head_waiting: watch::Sender::new(false) });
        Arc::clone(lock(&self.queues).entry(name.clone()).or_insert_with(new))
    }

    /// Drops the queue if it is empty.
    pub(super) fn remove_queue_if_empty(&self, name: &LockName, queue: Arc<LocalQueue>) {
        let mut queues = lock(&self.queues);
        drop(queue);
        if queues.get(name).is_some_and(|queue| Arc::strong_count(queue) == 1) {
            queues.remove(name);
        }
    }

    /// A permit for one more connection, if there is one.
    pub(super) fn try_permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.permits).try_acquire_owned().ok()
    }

    /// A permit for one more connection, as soon as there is one; in order of the requests.
    pub(super) async fn next_permit(&self) -> Result<OwnedSemaphorePermit, ClaimError> {
        Arc::clone(&self.permits).acquire_owned().await.map_err(|_| Failure::Closed.into())
    }

    /// A connection that was used before.
    pub(super) fn take_idle_session(&self) -> Option<Session> {
        let now = self.clock.now();
        let mut idle = lock(&self.idle);
        idle.retain(|session| session.is_reusable(now));
        idle.pop()
    }

    /// Keeps a connection that certainly has no lock.
    pub(super) async fn return_session(&self, session: Session) {
        let surplus = {
            let mut idle = lock(&self.idle);
            if idle.len() < MAX_IDLE && !self.permits.is_closed() && session.is_reusable(self.clock.now()) {
                idle.push(session);
                None
            } else {
                Some(session)
            }
        };
        if let Some(session) = surplus {
            session.close().await;
        }
    }

    pub(super) fn is_row_known(&self, name: &LockName) -> bool {
        lock(&self.known_rows).contains(name)
    }

    pub(super) fn set_row_known(&self, name: &LockName, is_known: bool) {
        let mut rows = lock(&self.known_rows);
        if !is_known {
            rows.remove(name);
        } else if !rows.contains(name) {
            if rows.len() >= MAX_KNOWN_ROWS {
                rows.clear();
            }
            rows.insert(name.clone());
        }
    }

    /// Increments the counter on another connection than the lock's: a rollback there would undo
    /// it.
    pub(super) async fn next_token_on_side_pool(&self, name: &LockName) -> Result<Token, ClaimError> {
        let (sql, values) = self.wire.token(name.as_str());
        let mut tries = 0;
        loop {
            tries += 1;
            let failure = match self.side_pool.run(&sql, &values).await {
                Ok(reply) => match self.wire.parse_token(&reply) {
                    Some(token) => return Ok(token),
                    None => {
                        let (sql, values) = self.wire.token_format(name.as_str());
                        return Err(wire::no_token(&self.side_pool.run(&sql, &values).await?).into());
                    }
                },
                Err(failure) => failure,
            };
            // Incrementing twice is harmless. The server may have closed an idle connection.
            let broken = matches!(failure, Failure::ConnectionLost(_));
            if broken {
                self.side_pool.discard_idle();
            }
            let again = broken || had_no_effect(&failure, &self.wire);
            if !again || tries == MAX_TRIES {
                return Err(failure.into());
            }
        }
    }

    /// Increments the counter on the connection that holds the lock.
    pub(super) async fn next_token_on_session(
        &self,
        session: &mut Session,
        name: &LockName,
    ) -> Result<Token, ClaimError> {
        let mut tries = 0;
        loop {
            tries += 1;
            match session.token(&self.wire, name).await {
                Ok(token) => return Ok(token),
                Err(failure) if tries < MAX_TRIES && had_no_effect(&failure, &self.wire) => {}
                Err(failure) => return Err(failure.into()),
            }
        }
    }

    /// Time limit for getting a connection, or for ending its statement.
    pub(super) fn connection_timeout(&self) -> Duration {
        self.config.connect_timeout
    }

    /// Closes all connections.
    pub(super) async fn close(&self) {
        self.permits.close();
        let idle = std::mem::take(&mut *lock(&self.idle));
        for session in idle {
            session.close().await;
        }
        self.side_pool.close().await;
    }
}

/// Whether others blocked the statement, so that it had no effect.
fn had_no_effect(failure: &Failure, wire: &SessionStatements) -> bool {
    matches!(failure.class(wire.dialect), Some(ErrorClass::Conflict | ErrorClass::RowLocked))
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
