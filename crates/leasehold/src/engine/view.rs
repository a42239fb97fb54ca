//! What inspection shows of a lock, and what a force release returns.

use std::time::Duration;

#[cfg(any(feature = "memory", all(feature = "file", target_os = "linux")))]
use crate::logic::table::Contender;
#[cfg(any(feature = "memory", all(feature = "file", target_os = "linux")))]
use crate::types::Instant;
use crate::types::{ClaimId, Error, ErrorKind, Holder, LockName, Mode, Result, Token};

/// A holder or a waiter of a lock, as inspection shows it.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let locks = leasehold::Locks::open("memory:").await?;
/// let guard = locks.mutex("stock:42").describe("order 7").lock().await?;
/// let holder = &locks.inspect("stock:42").await?.holders[0];
/// assert_eq!((holder.claim, holder.token), (guard.claim_id(), Some(guard.token())));
/// assert_eq!(&*holder.holder.description, "order 7");
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContenderView {
    /// The claim's id; `Debug` shows only a part of it.
    pub claim: ClaimId,
    /// The mode in which it holds the lock, or wants to.
    pub mode: Mode,
    /// The grant's token; `None` for a waiter.
    pub token: Option<Token>,
    /// Host, pid and program of its process, and the description that the program gave.
    pub holder: Holder,
    /// How long it has held, or a waiter has waited.
    pub age: Duration,
    /// The time until its lease, or a waiter's queue position, expires unless renewed.
    pub remaining: Duration,
}

/// A lock, as inspection shows it.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let locks = leasehold::Locks::open("memory:").await?;
/// let guard = locks.mutex("stock:42").lock().await?;
/// let view = locks.inspect("stock:42").await?;
/// assert_eq!((view.holders.len(), view.waiters.len()), (1, 0));
/// assert_eq!(view.last_token, Some(guard.token()));
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockView {
    /// The name of the lock.
    pub name: LockName,
    /// The holders, in the order of their grants. An owner's further claims may be listed next to
    /// its first one.
    pub holders: Vec<ContenderView>,
    /// The waiters, in the order of the queue.
    pub waiters: Vec<ContenderView>,
    /// The highest token granted for this lock so far; `None` if the engine does not store it.
    pub last_token: Option<Token>,
    /// `Some`: no holder is known, but the engine grants this lock only after this time (`strict`),
    /// because servers restarted and may have lost the lease of a holder. `None`: no cool-down.
    pub cool_down: Option<Duration>,
    /// What is wrong with the stored data of the lock, and then the other fields are empty; `None`
    /// if it is intact.
    pub damage: Option<String>,
}

impl ContenderView {
    /// The view of a holder, or of a waiter if `token` is `None`. It has held or waited for `age`,
    /// and expires after `left` unless renewed.
    pub fn new(
        claim: ClaimId,
        mode: Mode,
        token: Option<Token>,
        holder: Holder,
        age: Duration,
        left: Duration,
    ) -> Self {
        Self { claim, mode, token, holder, age, remaining: left }
    }

    /// The view, at `now`, of an entry in a lock table that has held or waited since `since`.
    #[cfg(any(feature = "memory", all(feature = "file", target_os = "linux")))]
    pub(crate) fn from_contender<N>(contender: &Contender<N>, holder: Holder, since: Instant, now: Instant) -> Self {
        let token = (contender.token > Token::default()).then_some(contender.token);
        Self::new(
            contender.claim,
            contender.mode,
            token,
            holder,
            now.duration_since(since),
            contender.expires_at.duration_since(now),
        )
    }
}

impl LockView {
    /// The view of a lock without holders and waiters, for which the engine stores nothing.
    pub fn free(name: LockName) -> Self {
        Self { name, holders: Vec::new(), waiters: Vec::new(), last_token: None, cool_down: None, damage: None }
    }

    /// Checks that the holders in this view are all that there are: they are not if the stored data
    /// cannot be read.
    ///
    /// # Errors
    /// `Corrupt`, with [`damage`](Self::damage).
    pub fn check_intact(&self) -> Result<()> {
        match &self.damage {
            Some(damage) => Err(Error::new(ErrorKind::Corrupt, damage.clone()).about_lock(&self.name)),
            None => Ok(()),
        }
    }
}

/// The result of a force release.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let locks = leasehold::Locks::open("memory:").await?;
/// let guard = locks.mutex("stock:42").lock().await?;
/// let outcome = locks.force_release("stock:42", guard.claim_id()).await?;
/// assert!(outcome.fence_token > Some(guard.token()), "write it to the resource");
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForceReleaseOutcome {
    /// The claim that was force released. `None`: it had ended already, and nothing changed.
    pub contender: Option<ContenderView>,
    /// The token to write to the resource, which then refuses the force-released holder and no
    /// other. It is higher than that holder's token, and lower than the token of every other
    /// holder, present or future.
    ///
    /// `None` if there is no token to refuse, because the claim had ended or was a waiter. Also
    /// `None` if no such number exists: a remaining holder, or in ZooKeeper the next waiter, has a
    /// lower token or the very next one.
    ///
    /// In a lease table, a client may have assigned a lower token to a waiter of its own before the
    /// force release. That client then reports the lock as lost.
    pub fence_token: Option<Token>,
}

impl ForceReleaseOutcome {
    /// The result for an engine to return; see the fields.
    pub fn new(contender: Option<ContenderView>, fence_token: Option<Token>) -> Self {
        Self { contender, fence_token }
    }
}
