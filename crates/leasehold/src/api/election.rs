//! Elections: one leader at a time, visible to all clients.

use crate::api::locks::Locks;
use crate::api::request::{Request, options};
use crate::core::guard::{Guard, ReleaseOutcome};
use crate::engine::LockView;
use crate::engine::LostReason;
use crate::logic::lease as rules;
use crate::types::{Holder, LockName, Mode, Result, Token};

/// An election: a mutex whose holder is the leader. Made by [`Locks::election`].
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let locks = leasehold::Locks::open("memory:").await?;
/// let election = locks.election("scheduler").describe("10.0.0.1:8080");
/// let leadership = election.campaign().await?;                 // waits until elected
/// let leader = election.leader().await?.expect("a leader");    // any client can ask
/// assert_eq!((&*leader.holder.description, leader.token), ("10.0.0.1:8080", leadership.token()));
/// leadership.resign().await?;
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Election {
    locks: Locks,
    request: Request,
}

/// The leader of an election, as [`Election::leader`] and [`Observer::next`] report it.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let locks = leasehold::Locks::open("memory:").await?;
/// if let Some(leader) = locks.election("scheduler").leader().await? {
///     println!("{} leads, term {}", leader.holder.host, leader.token);
/// }
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The leading process, with the text that the leader passed to `describe`: an address, for
    /// example.
    pub holder: Holder,
    /// The term, which is the grant's fencing token: it rises with every leader.
    pub token: Token,
}

impl Election {
    options!();

    pub(crate) fn new(locks: Locks, request: Request) -> Self {
        Self { locks, request }
    }

    /// Waits until this process is elected. The [options](Self::timeout) limit the wait.
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

    /// The current leader; `None` if there is none.
    ///
    /// # Errors
    /// `Unsupported` if the engine has no inspection, or an error from the engine.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        leader(self.locks.inspect(self.request.name()?).await?)
    }

    /// An observer, which waits for changes of the leader.
    ///
    /// # Errors
    /// `InvalidName`; `Unsupported` if the engine has no inspection.
    pub fn observe(&self) -> Result<Observer> {
        self.locks.shared.require(self.locks.capabilities().inspection, "inspection")?;
        Ok(Observer { locks: self.locks.clone(), name: self.request.name()?, last_reported: None })
    }
}

/// The lock's first holder, as the leader; `None` if the lock has no holder.
fn leader(view: LockView) -> Result<Option<Leader>> {
    view.check_intact()?;
    let first = view.holders.into_iter().next();
    Ok(first.and_then(|first| Some(Leader { holder: first.holder, token: first.token? })))
}

/// Observes the leader of an election. Made by [`Election::observe`].
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let locks = leasehold::Locks::open("memory:").await?;
/// let election = locks.election("scheduler");
/// let mut observer = election.observe()?;
/// assert!(observer.next().await?.is_none());                   // no leader yet
/// let leadership = election.campaign().await?;
/// assert_eq!(observer.next().await?.map(|leader| leader.token), Some(leadership.token()));
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
pub struct Observer {
    locks: Locks,
    name: LockName,
    /// What [`next`](Self::next) returned last; `None`: it has not returned yet.
    last_reported: Option<Option<Leader>>,
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
        if self.last_reported.is_none() {
            // The first call returns without waiting for a change.
            let current = leader(self.locks.inspect(&self.name).await?)?;
            self.last_reported = Some(current.clone());
            return Ok(current);
        }
        loop {
            let engine = &self.locks.shared.manager.engine;
            let poll_timeout = rules::heartbeat_interval(self.locks.shared.ttl);
            // Watch first, then inspect, so that no change is missed in between.
            let changed = std::sync::Arc::clone(engine).watch(self.name.clone(), poll_timeout).await?;
            let view = self.locks.inspect(&self.name).await?;
            let lease_end = view.holders.iter().map(|holder| holder.remaining).min();
            let current = leader(view)?;
            if self.last_reported.as_ref() != Some(&current) {
                self.last_reported = Some(current.clone());
                return Ok(current);
            }
            // A lease may end without a notification.
            let recheck_at =
                self.locks.clock().now().saturating_add(lease_end.unwrap_or(poll_timeout).min(poll_timeout));
            tokio::select! {
                changed = changed => changed?,
                () = self.locks.clock().sleep_until(recheck_at) => {}
            }
        }
    }
}

/// A won election: the guard of the leadership. Dropping it resigns.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let locks = leasehold::Locks::open("memory:").await?;
/// let leadership = locks.election("scheduler").campaign().await?;
/// let answer = leadership.guard().protect(async { 42 }).await?;   // dropped if the leadership is lost
/// assert!(leadership.is_leader() && answer == 42);
/// leadership.resign().await?;
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[must_use = "dropping it resigns"]
#[derive(Debug)]
pub struct Leadership(Guard);

impl Leadership {
    /// The term: it rises with every leader, and fences what the leader writes.
    pub fn token(&self) -> Token {
        self.0.token()
    }

    /// Whether this process leads right now. Reads the clock on each call, as [`Guard::is_held`].
    pub fn is_leader(&self) -> bool {
        self.0.is_held()
    }

    /// Waits until the leadership is lost, and returns the reason. Does not complete while this
    /// process leads.
    pub async fn lost(&self) -> LostReason {
        self.0.lost().await
    }

    /// Waits until an operator requests that this leader steps down, as
    /// [`Guard::release_requested`].
    pub async fn release_requested(&self) {
        self.0.release_requested().await;
    }

    /// Gives up the leadership, and returns whether this process led until now.
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
