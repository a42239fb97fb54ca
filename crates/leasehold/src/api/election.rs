//! Elections: one leader at a time, visible to all clients.

use crate::api::locks::Locks;
use crate::api::request::{Request, options};
use crate::core::guard::{Guard, ReleaseOutcome};
use crate::engine::LockView;
use crate::engine::LostReason;
use crate::logic::lease as rules;
use crate::types::{Holder, LockName, Mode, Result, Token};

/// An election. Made by [`Locks::election`]. It is a mutex whose holder is the leader.
#[derive(Clone)]
pub struct Election {
    locks: Locks,
    request: Request,
}

/// The current leader.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The leading process, with the text that the leader passed to `describe`: an address, for
    /// example.
    pub holder: Holder,
    /// The term: it rises with every leader.
    pub token: Token,
}

impl Election {
    options!();

    pub(crate) fn new(locks: Locks, request: Request) -> Self {
        Self { locks, request }
    }

    /// Waits until elected.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancellation safety
    /// As [`Mutex::lock`](crate::Mutex::lock).
    pub async fn campaign(&self) -> Result<Leadership> {
        self.request.acquire(Mode::Exclusive).await.map(Leadership)
    }

    /// Becomes the leader if there is none; returns `None` if there is one.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub async fn try_campaign(&self) -> Result<Option<Leadership>> {
        Ok(self.request.try_acquire(Mode::Exclusive).await?.map(Leadership))
    }

    /// The current leader.
    ///
    /// # Errors
    /// `Unsupported` if the engine has no inspection, or an error from the engine.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        Ok(leader(self.locks.inspect(self.request.name()?).await?))
    }

    /// Observes the leader from now on.
    ///
    /// # Errors
    /// `InvalidName`; `Unsupported` if the engine has no inspection.
    pub fn observe(&self) -> Result<Observer> {
        self.locks.shared.require(self.locks.capabilities().inspection, "inspection")?;
        Ok(Observer { locks: self.locks.clone(), name: self.request.name()?, seen: None })
    }
}

fn leader(view: LockView) -> Option<Leader> {
    let first = view.holders.into_iter().next()?;
    Some(Leader { holder: first.holder, token: first.token? })
}

/// Observes the leader of an election.
#[derive(Debug)]
pub struct Observer {
    locks: Locks,
    name: LockName,
    seen: Option<Option<Leader>>,
}

impl Observer {
    /// Waits for a change and returns the leader: at once on the first call, then after each
    /// change. `None`: there is no leader. Changes in quick succession may be reported as one.
    ///
    /// # Errors
    /// An error from the engine; call again to continue.
    ///
    /// # Cancellation safety
    /// May be dropped and called again; no change is missed.
    pub async fn next(&mut self) -> Result<Option<Leader>> {
        if self.seen.is_none() {
            // The first call returns without waiting for a change.
            let now = leader(self.locks.inspect(&self.name).await?);
            self.seen = Some(now.clone());
            return Ok(now);
        }
        loop {
            let engine = &self.locks.shared.manager.engine;
            let poll_timeout = rules::heartbeat_interval(self.locks.shared.ttl);
            // Watch first, then inspect, so that no change is missed in between.
            let changed = std::sync::Arc::clone(engine).watch(self.name.clone(), poll_timeout).await?;
            let view = self.locks.inspect(&self.name).await?;
            let ends = view.holders.iter().map(|holder| holder.remaining).min();
            let now = leader(view);
            if self.seen.as_ref() != Some(&now) {
                self.seen = Some(now.clone());
                return Ok(now);
            }
            let bound = self.locks.clock().now().saturating_add(ends.unwrap_or(poll_timeout).min(poll_timeout));
            tokio::select! {
                changed = changed => changed?,
                () = self.locks.clock().sleep_until(bound) => {}
            }
        }
    }
}

/// A won election: a guard of the leadership. Dropping it resigns.
#[must_use = "dropping it resigns"]
#[derive(Debug)]
pub struct Leadership(Guard);

impl Leadership {
    /// The term: it rises with every leader, and fences what the leader writes.
    pub fn token(&self) -> Token {
        self.0.token()
    }

    /// Whether this process leads right now, as [`Guard::is_held`].
    pub fn is_leader(&self) -> bool {
        self.0.is_held()
    }

    /// Waits until the leadership is lost.
    pub async fn lost(&self) -> LostReason {
        self.0.lost().await
    }

    /// Waits until an operator requests that this leader steps down, as
    /// [`Guard::release_requested`].
    pub async fn release_requested(&self) {
        self.0.release_requested().await;
    }

    /// Steps down.
    ///
    /// # Errors
    /// As [`Guard::release`].
    pub async fn resign(self) -> Result<ReleaseOutcome> {
        self.0.release().await
    }

    /// The guard of the underlying lock.
    pub fn guard(&self) -> &Guard {
        &self.0
    }
}
