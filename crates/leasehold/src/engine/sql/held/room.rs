//! State that all claims of one client share: connections, and the local queues.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::super::config::Config;
use super::super::error::{Failure, Meaning};
use super::super::pool::Pool;
use super::seat::Seats;
use super::session::Session;
use super::trouble::Trouble;
use super::wire::Wire;
use crate::claim::Token;
use crate::clock::Clock;
use crate::engine::LossBoard;
use crate::name::LockName;

/// How many rows are remembered as existing.
const ROWS: usize = 4096;
/// How many idle connections are kept.
const IDLE: usize = 8;
/// How many times a statement is tried that others blocked.
const TRIES: usize = 4;

/// State that all claims of one client share.
#[derive(Debug)]
pub(super) struct Room {
    pub(super) config: Arc<Config>,
    pub(super) wire: Wire,
    pub(super) clock: Clock,
    pub(super) board: LossBoard,
    pub(super) seats: Seats,
    /// For statements that hold nothing: counters, ending other statements, checks.
    pub(super) side: Arc<Pool>,
    /// Permits for connections that may hold or wait.
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<Session>>,
    lines: Mutex<HashMap<LockName, Arc<Line>>>,
    rows: Mutex<HashSet<LockName>>,
}

/// The local queue of one lock. One claim of this client at a time asks the server; the others wait
/// here, in order, and need no connection.
#[derive(Debug)]
pub(super) struct Line {
    turn: Arc<Semaphore>,
    /// Whether the claim at the head waits at the server.
    pub(super) blocked: watch::Sender<bool>,
}

/// A claim's turn to ask the server; it ends when dropped.
#[derive(Debug)]
pub(super) struct Turn {
    line: Arc<Line>,
    _permit: OwnedSemaphorePermit,
}

impl Turn {
    /// Notes that the claim waits at the server.
    pub(super) fn block(&self) {
        self.line.blocked.send_replace(true);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.line.blocked.send_replace(false);
    }
}

impl Line {
    /// Waits for the next turn.
    pub(super) async fn turn(self: &Arc<Self>) -> Result<Turn, Trouble> {
        let permit = Arc::clone(&self.turn).acquire_owned().await.map_err(|_| Failure::Closed)?;
        Ok(Turn { line: Arc::clone(self), _permit: permit })
    }

    /// Waits for the next turn; `None` if the claim whose turn it is waits at the server.
    pub(super) async fn turn_or_blocked(self: &Arc<Self>) -> Result<Option<Turn>, Trouble> {
        let mut blocked = self.blocked.subscribe();
        tokio::select! {
            biased;
            turn = self.turn() => turn.map(Some),
            _ = blocked.wait_for(|blocked| *blocked) => Ok(None),
        }
    }
}

impl Room {
    pub(super) fn new(config: Arc<Config>, wire: Wire, clock: Clock, side: Arc<Pool>, places: usize) -> Self {
        Self {
            config,
            wire,
            clock,
            board: LossBoard::default(),
            seats: Seats::default(),
            side,
            permits: Arc::new(Semaphore::new(places)),
            idle: Mutex::default(),
            lines: Mutex::default(),
            rows: Mutex::default(),
        }
    }

    /// The local queue of a lock.
    pub(super) fn line(&self, name: &LockName) -> Arc<Line> {
        let new = || Arc::new(Line { turn: Arc::new(Semaphore::new(1)), blocked: watch::Sender::new(false) });
        Arc::clone(lock(&self.lines).entry(name.clone()).or_insert_with(new))
    }

    /// Drops the queue if it is empty.
    pub(super) fn tidy(&self, name: &LockName, line: Arc<Line>) {
        let mut lines = lock(&self.lines);
        drop(line);
        if lines.get(name).is_some_and(|line| Arc::strong_count(line) == 1) {
            lines.remove(name);
        }
    }

    /// A permit for one more connection, if there is one.
    pub(super) fn permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.permits).try_acquire_owned().ok()
    }

    /// A permit for one more connection, as soon as there is one; in order of the requests.
    pub(super) async fn next_permit(&self) -> Result<OwnedSemaphorePermit, Trouble> {
        Arc::clone(&self.permits).acquire_owned().await.map_err(|_| Failure::Closed.into())
    }

    /// A connection that was used before.
    pub(super) fn used_session(&self) -> Option<Session> {
        let now = self.clock.now();
        let mut idle = lock(&self.idle);
        idle.retain(|session| session.is_fresh(now));
        idle.pop()
    }

    /// Keeps a connection that certainly has no lock.
    pub(super) async fn keep(&self, session: Session) {
        let full = {
            let mut idle = lock(&self.idle);
            if idle.len() < IDLE && !self.permits.is_closed() && session.is_fresh(self.clock.now()) {
                idle.push(session);
                None
            } else {
                Some(session)
            }
        };
        if let Some(session) = full {
            session.close().await;
        }
    }

    pub(super) fn knows_row(&self, name: &LockName) -> bool {
        lock(&self.rows).contains(name)
    }

    pub(super) fn note_row(&self, name: &LockName, there: bool) {
        let mut rows = lock(&self.rows);
        if !there {
            rows.remove(name);
        } else if !rows.contains(name) {
            if rows.len() >= ROWS {
                rows.clear();
            }
            rows.insert(name.clone());
        }
    }

    /// Increments the counter on another connection than the lock's: a rollback there would undo
    /// it.
    pub(super) async fn side_token(&self, name: &LockName) -> Result<Token, Trouble> {
        let (sql, values) = self.wire.token(name.as_str());
        let mut tries = 0;
        loop {
            tries += 1;
            let failure = match self.side.run(&sql, &values).await {
                Ok(reply) => return Ok(self.wire.token_of(&reply)?),
                Err(failure) => failure,
            };
            // Incrementing twice does no harm. The server may have closed an idle connection.
            let broken = matches!(failure, Failure::Broken(_));
            if broken {
                self.side.forget_idle();
            }
            let again = broken || was_undone(&failure, &self.wire);
            if !again || tries == TRIES {
                return Err(failure.into());
            }
        }
    }

    /// Increments the counter on the connection that holds the lock.
    pub(super) async fn own_token(&self, session: &mut Session, name: &LockName) -> Result<Token, Trouble> {
        let mut tries = 0;
        loop {
            tries += 1;
            match session.token(&self.wire, name).await {
                Ok(token) => return Ok(token),
                Err(failure) if tries < TRIES && was_undone(&failure, &self.wire) => {}
                Err(failure) => return Err(failure.into()),
            }
        }
    }

    /// Time limit for getting a connection, or for ending its statement.
    pub(super) fn bound(&self) -> Duration {
        self.config.connect_timeout
    }

    /// Closes all connections.
    pub(super) async fn close(&self) {
        self.permits.close();
        let idle = std::mem::take(&mut *lock(&self.idle));
        for session in idle {
            session.close().await;
        }
        self.side.close().await;
    }
}

/// Whether others blocked the statement, so that it had no effect.
fn was_undone(failure: &Failure, wire: &Wire) -> bool {
    matches!(failure.meaning(wire.dialect), Some(Meaning::Collision | Meaning::Occupied))
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
