//! What all claims of one client share: the sessions, and one queue per lock for the claims that
//! wait.

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

/// How many locks are remembered whose row exists.
const MAX_KNOWN_ROWS: usize = 4096;
/// How many sessions without a lock are kept for reuse.
const MAX_IDLE: usize = 8;
/// How many times a statement is tried that conflicts with other transactions.
const MAX_TRIES: usize = 4;

/// What all claims of one client share.
#[derive(Debug)]
pub(super) struct SessionPool {
    pub(super) config: Arc<Config>,
    pub(super) wire: SessionStatements,
    pub(super) clock: Clock,
    pub(super) losses: LossBroadcaster,
    pub(super) claims: ClaimRegistry,
    /// Connections for statements on behalf of no lock: token counters, cancelling other
    /// statements, checks.
    pub(super) side_pool: Arc<Pool>,
    /// One permit for each session that may hold a lock or wait for one.
    permits: Arc<Semaphore>,
    /// Sessions without a lock, for reuse.
    idle: Mutex<Vec<Session>>,
    queues: Mutex<HashMap<LockName, Arc<LocalQueue>>>,
    /// The locks whose row exists, as far as this client knows.
    known_rows: Mutex<HashSet<LockName>>,
}

/// This client's own queue for one lock. One claim at a time has the turn, and may wait at the
/// server. The others wait here, in order, and need no connection.
#[derive(Debug)]
pub(super) struct LocalQueue {
    /// Has one permit, which is the turn.
    turns: Arc<Semaphore>,
    /// Whether the claim that has the turn waits at the server.
    pub(super) is_head_waiting: watch::Sender<bool>,
}

/// A claim's turn to acquire the lock and wait at the server. It ends when it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    queue: Arc<LocalQueue>,
    _permit: OwnedSemaphorePermit,
}

impl Turn {
    /// Notes that the claim that has the turn waits at the server.
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
    /// Waits for the turn, in the order of the calls.
    pub(super) async fn turn(self: &Arc<Self>) -> Result<Turn, ClaimError> {
        let permit = Arc::clone(&self.turns).acquire_owned().await.map_err(|_| Failure::Closed)?;
        Ok(Turn { queue: Arc::clone(self), _permit: permit })
    }

    /// Waits for the turn. `None`: the claim that has the turn waits at the server, so the lock is
    /// not free.
    pub(super) async fn next_turn_unless_waiting(self: &Arc<Self>) -> Result<Option<Turn>, ClaimError> {
        let mut is_head_waiting = self.is_head_waiting.subscribe();
        tokio::select! {
            biased;
            turn = self.turn() => turn.map(Some),
            _ = is_head_waiting.wait_for(|is_waiting| *is_waiting) => Ok(None),
        }
    }
}

impl SessionPool {
    /// No sessions yet; at most `max_sessions` may hold a lock or wait for one.
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

    /// This client's own queue for a lock; creates it if necessary.
    pub(super) fn queue(&self, name: &LockName) -> Arc<LocalQueue> {
        let new =
            || Arc::new(LocalQueue { turns: Arc::new(Semaphore::new(1)), is_head_waiting: watch::Sender::new(false) });
        Arc::clone(lock(&self.queues).entry(name.clone()).or_insert_with(new))
    }

    /// Gives `queue` back, and removes it if no other claim uses it.
    pub(super) fn remove_queue_if_empty(&self, name: &LockName, queue: Arc<LocalQueue>) {
        let mut queues = lock(&self.queues);
        drop(queue);
        if queues.get(name).is_some_and(|queue| Arc::strong_count(queue) == 1) {
            queues.remove(name);
        }
    }

    /// The permit for one more session that may hold or wait; `None` if all are in use.
    pub(super) fn try_permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.permits).try_acquire_owned().ok()
    }

    /// Waits for the permit for one more session that may hold or wait, in the order of the calls.
    pub(super) async fn next_permit(&self) -> Result<OwnedSemaphorePermit, ClaimError> {
        Arc::clone(&self.permits).acquire_owned().await.map_err(|_| Failure::Closed.into())
    }

    /// A session without a lock that was used before; `None` if none is idle.
    pub(super) fn take_idle_session(&self) -> Option<Session> {
        let now = self.clock.now();
        let mut idle = lock(&self.idle);
        idle.retain(|session| session.is_reusable(now));
        idle.pop()
    }

    /// Keeps a session that certainly has no lock for reuse, or closes it if there are enough.
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

    /// Whether the row of a lock is known to exist.
    pub(super) fn is_row_known(&self, name: &LockName) -> bool {
        lock(&self.known_rows).contains(name)
    }

    /// Sets whether the row of a lock is known to exist.
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

    /// Increments a lock's token counter on a connection of the side pool. The session that holds
    /// the lock has a transaction open, whose rollback would undo the increment.
    pub(super) async fn next_token_on_side_pool(&self, name: &LockName) -> Result<Token, ClaimError> {
        let (sql, values) = self.wire.next_token(name.as_str());
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
            // The server may have closed the idle connection. If it incremented the counter before
            // that, incrementing it again only skips a number.
            let is_broken = matches!(failure, Failure::ConnectionLost(_));
            if is_broken {
                self.side_pool.discard_idle();
            }
            let may_retry = is_broken || had_no_effect(&failure, &self.wire);
            if !may_retry || tries == MAX_TRIES {
                return Err(failure.into());
            }
        }
    }

    /// Increments a lock's token counter on the session that holds the lock.
    pub(super) async fn next_token_on_session(
        &self,
        session: &mut Session,
        name: &LockName,
    ) -> Result<Token, ClaimError> {
        let mut tries = 0;
        loop {
            tries += 1;
            match session.next_token(&self.wire, name).await {
                Ok(token) => return Ok(token),
                Err(failure) if tries < MAX_TRIES && had_no_effect(&failure, &self.wire) => {}
                Err(failure) => return Err(failure.into()),
            }
        }
    }

    /// The time limit for getting a connection, and for cancelling a statement.
    pub(super) fn connection_timeout(&self) -> Duration {
        self.config.connect_timeout
    }

    /// Closes the idle connections; no claim gets a connection any more.
    pub(super) async fn close(&self) {
        self.permits.close();
        let idle = std::mem::take(&mut *lock(&self.idle));
        for session in idle {
            session.close().await;
        }
        self.side_pool.close().await;
    }
}

/// Whether the statement failed because of other transactions, without an effect.
fn had_no_effect(failure: &Failure, wire: &SessionStatements) -> bool {
    matches!(failure.class(wire.dialect), Some(ErrorClass::Conflict | ErrorClass::RowLocked))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
