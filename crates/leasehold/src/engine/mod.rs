//! Engines: the stores that keep the locks. An engine implements one trait, takes one bounded step
//! per call, and declares as data what it can do.
//!
//! ADDING_AN_ENGINE.md explains how to write one; read [`memory`] first.

mod capabilities;
mod claim;
mod lease;
mod loss_events;
mod secrets;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "zookeeper"))]
mod stranger;
mod url;

#[cfg(feature = "file")]
pub mod file;
#[cfg(feature = "memory")]
pub mod memory;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "redis")]
pub mod redlock;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub mod sql;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

pub use self::capabilities::{Capabilities, Expiry, Fairness, Fencing, Reach};
pub use self::claim::{Claim, LockOptions};
pub use self::lease::LostReason;
pub use self::loss_events::{LossBroadcaster, LossEvent, LossEvents};
pub use self::secrets::is_exposed;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "zookeeper"))]
pub(crate) use self::stranger::Product;
pub use self::url::EngineUrl;
#[cfg(test)]
pub(crate) use self::url::SCHEMES;

#[cfg(any(feature = "memory", feature = "file"))]
use crate::clock::Clock;
#[cfg(any(feature = "memory", feature = "file"))]
use crate::logic::table::{Contender, Verdict};
use crate::logic::table::{Refusal, ReleaseEffect};
use crate::types::{ClaimId, Error, Holder, Instant, LockName, Mode, Token};

/// One step of an engine. The caller may drop it at any time, and then cleans up with
/// [`Engine::release`].
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold::engine::Step;
///
/// assert_eq!(Step::ready(Ok(7)).await?, 7);
/// assert_eq!(Step::new(async { Ok(7) }).await?, 7);
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[must_use = "a step does nothing until it is awaited"]
pub struct Step<T>(StepState<T>);

enum StepState<T> {
    Ready(Option<Result<T, Error>>),
    Pending(Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>),
}

impl<T> Step<T> {
    /// A step that waits for something.
    pub fn new(future: impl Future<Output = Result<T, Error>> + Send + 'static) -> Self {
        Self(StepState::Pending(Box::pin(future)))
    }

    /// A step that is complete already; it needs no allocation.
    pub fn ready(result: Result<T, Error>) -> Self {
        Self(StepState::Ready(Some(result)))
    }
}

impl<T> Step<T> {
    /// The result of a step that was complete from the start.
    pub(crate) fn take_ready(&mut self) -> Option<Result<T, Error>> {
        match &mut self.0 {
            StepState::Ready(result) => result.take(),
            StepState::Pending(_) => None,
        }
    }
}

impl<T> Unpin for Step<T> {}

impl<T> Future for Step<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            StepState::Ready(result) => result.take().map_or(Poll::Pending, Poll::Ready),
            StepState::Pending(future) => future.as_mut().poll(cx),
        }
    }
}

impl<T> fmt::Debug for Step<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Step")
    }
}

/// A grant of a lock.
///
/// ```
/// use std::time::Duration;
/// use leasehold::{Token, clock::Clock, engine::Grant};
///
/// let (sent, ttl) = (Clock::system().now(), Duration::from_secs(30));
/// let grant = Grant::for_ttl(Token(7), sent, ttl);
/// assert_eq!(grant.expires_at.duration_since(sent), ttl);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Higher than any token granted before for this name, or the same token for an owner that
    /// re-enters.
    pub token: Token,
    /// When the lease began: the lock has been reserved for the claim since then. The next renewal
    /// is due a third of the TTL later.
    pub reserved_at: Instant,
    /// When the grant ends, on our own clock, before any clock drift is subtracted. An engine with
    /// a clock of its own counts from before it sent the request.
    pub expires_at: Instant,
}

impl Grant {
    /// A grant for a TTL, to a request that was sent at `sent`.
    pub fn for_ttl(token: Token, sent: Instant, ttl: Duration) -> Self {
        Self { token, reserved_at: sent, expires_at: sent.saturating_add(ttl) }
    }

    /// A grant until a known time, renewed or handed off with this TTL.
    pub fn until(token: Token, expires_at: Instant, ttl: Duration) -> Self {
        Self { token, reserved_at: expires_at.saturating_sub(ttl), expires_at }
    }
}

/// The answer to a claim.
///
/// ```
/// use leasehold::engine::AcquireReply;
///
/// fn is_granted(reply: &AcquireReply) -> bool {
///     matches!(reply, AcquireReply::Granted(_))
/// }
/// assert!(!is_granted(&AcquireReply::Busy { recheck_after: None }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcquireReply {
    /// The claim holds the lock.
    Granted(Grant),
    /// The claim is in the queue.
    Queued {
        /// The number of waiters ahead of it; an engine may stop counting at 100.
        ahead: usize,
        /// After this time the lock may become free without a notification (a holder's lease ends):
        /// check again then.
        recheck_after: Option<Duration>,
        /// No holder is known, but the lock cools down for this time: servers restarted and may
        /// have lost the lease of a holder.
        cool_down: Option<Duration>,
    },
    /// The lock is not free and the claim is not in a queue: the caller did not ask to queue, the
    /// engine has no queue, or the claim lost its position. Retry.
    Busy {
        /// After this time the lock may become free without a notification.
        recheck_after: Option<Duration>,
    },
    /// The engine cools down and makes no new grants: servers restarted, and leases that they lost
    /// may still be held. Retry.
    CoolingDown {
        /// The time left, at least.
        left: Duration,
    },
    /// The claim can never be granted beside the present holders.
    Refused(Refusal),
    /// An operator evicted the claim while it waited, or after its grant but before its client
    /// learned of the grant. [`wait`](Engine::wait) returns this. An attempt returns it if the
    /// claim attempted before and its client may not have learned of the eviction; otherwise an
    /// attempt starts over.
    ForceReleased,
}

#[cfg(any(feature = "memory", feature = "file"))]
impl AcquireReply {
    /// Turns a table's verdict into an answer, for an engine that reads this process's clock.
    /// `expiry` is when the next lease ends.
    pub(crate) fn from_verdict(verdict: Verdict, ttl: Duration, expiry: Option<Instant>, clock: &Clock) -> Self {
        let recheck = || expiry.map(|at| at.duration_since(clock.now()));
        match verdict {
            Verdict::Granted(token, until) => Self::Granted(Grant::until(token, until, ttl)),
            Verdict::Queued(ahead) => Self::Queued { ahead, recheck_after: recheck(), cool_down: None },
            Verdict::Busy => Self::Busy { recheck_after: recheck() },
            Verdict::Refused(refusal) => Self::Refused(refusal),
        }
    }
}

/// The answer to a renewal.
///
/// ```
/// use leasehold::engine::RenewReply;
///
/// fn may_still_hold(reply: RenewReply) -> bool {
///     reply != RenewReply::Lost
/// }
/// assert!(may_still_hold(RenewReply::Unknown));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewReply {
    /// Renewed: the lease now lasts until then, on our own clock; see [`Grant::expires_at`].
    Renewed(Instant),
    /// This claim still holds the lock, but its lease was not extended.
    Held,
    /// This claim does not hold the lock any more.
    Lost,
    /// The engine could not find out. The keeper retries until the lease ends.
    Unknown,
}

/// The answer to a release.
///
/// ```
/// use leasehold::engine::ReleaseReply;
///
/// fn held(reply: ReleaseReply) -> bool {
///     reply == ReleaseReply::Released
/// }
/// assert!(!held(ReleaseReply::Absent));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseReply {
    /// The claim held the lock and released it.
    Released,
    /// The claim waited and left the queue.
    LeftQueue,
    /// The claim neither held nor waited: it was released before, expired, was evicted, or is
    /// unknown.
    Absent,
}

impl From<ReleaseEffect> for ReleaseReply {
    fn from(effect: ReleaseEffect) -> Self {
        match effect {
            ReleaseEffect::Released => Self::Released,
            ReleaseEffect::LeftQueue => Self::LeftQueue,
            ReleaseEffect::Absent => Self::Absent,
        }
    }
}

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
    /// The mode that it holds or waits for.
    pub mode: Mode,
    /// The grant's token; `None` for a waiter.
    pub token: Option<Token>,
    /// The process, and its description.
    pub holder: Holder,
    /// How long it has held or waited.
    pub age: Duration,
    /// The time until it expires unless renewed.
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
    /// The highest token granted, if the engine stores it.
    pub last_token: Option<Token>,
    /// No holder is known, but the engine makes no grants for this time (`strict`): servers
    /// restarted and may have lost the lease of a holder.
    pub cool_down: Option<Duration>,
    /// If the stored data of the lock is damaged: a description of the damage. The other fields are
    /// empty then.
    pub damage: Option<String>,
}

impl ContenderView {
    /// A holder or a waiter, for an engine to show. `token` is `None` for a waiter.
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

    /// A contender of a table that has held or waited since `since`.
    #[cfg(any(feature = "memory", feature = "file"))]
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
    /// A lock without holders and waiters.
    pub fn free(name: LockName) -> Self {
        Self { name, holders: Vec::new(), waiters: Vec::new(), last_token: None, cool_down: None, damage: None }
    }
}

/// The result of an eviction.
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
    /// The claim that was evicted; `None` if it had ended already; then nothing changed.
    pub contender: Option<ContenderView>,
    /// The token to write to the resource. It is higher than the evicted holder's token, and lower
    /// than the token of every other holder, present or future. The resource then refuses the
    /// evicted holder and no other.
    ///
    /// `None` if there is no token to refuse, because the claim had ended or was a waiter. Also
    /// `None` if no such number exists: a remaining holder, or in ZooKeeper the next waiter, has a
    /// lower token or the very next one.
    ///
    /// In a lease table, a client may have assigned a lower token to a waiter of its own before the
    /// eviction. That client then reports the lock as lost.
    pub fence_token: Option<Token>,
}

impl ForceReleaseOutcome {
    /// The result of an eviction, for an engine to return.
    pub fn new(contender: Option<ContenderView>, token: Option<Token>) -> Self {
        Self { contender, fence_token: token }
    }
}

/// A small text that the engine stores under a name, beside the locks and independent of them.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let locks = leasehold::Locks::open("memory:").await?;
/// let records = locks.records()?;
/// assert_eq!(records.get("last-run").await?.version, 0, "it does not exist");
/// let record = records.compare_and_set("last-run", 0, "12:00").await?.expect("written");
/// assert_eq!(record.value, "12:00");
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Changes with every write and never repeats; zero: the record does not exist.
    pub version: u64,
    /// Empty if the record does not exist.
    pub value: String,
    /// The engine's clock at the read or write: time since 1970, UTC. Never a client's clock.
    pub engine_time: Duration,
}

impl Record {
    /// The result of reading a record that does not exist.
    pub fn absent(now: Duration) -> Self {
        Self { version: 0, value: String::new(), engine_time: now }
    }
}

/// A run of an engine's servers: from a start, a promotion or a flush until the next one. A run
/// keeps the data that it acknowledged, but may have lost data from before it began.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let locks = leasehold::Locks::open("memory:").await?;
/// let records = locks.records()?;
/// let (_record, run) = records.get_in_run(&leasehold::LockName::new("last-run")?).await?;
/// assert!(run.is_none(), "this engine reports no runs");
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerRun {
    /// Its id. No two runs have the same id, except across a flush, which leaves no trace.
    pub id: String,
    /// The engine's clock when a client first saw this run. Everything acknowledged in an earlier
    /// run was acknowledged before.
    pub began_at: Duration,
}

/// An engine's answer to a call that it does not support.
fn unsupported<T>(capabilities: &Capabilities, capability: &str) -> Step<T> {
    Step::ready(Err(capabilities.unsupported(capability)))
}

/// An engine that keeps locks.
///
/// Every method takes *one bounded step*. A step may wait for its server, but it never sleeps,
/// retries or decides by a clock other than its server's. The caller handles timeouts, back-off,
/// cancellation and clean-up, once for all engines.
///
/// Every call must be safe to repeat, because a reply may be lost after the server took the step.
/// Errors state whether the effect is known ([`Error::effect`]) and whether a retry may help
/// ([`Error::is_retryable`]).
///
/// An engine implements [`capabilities`](Self::capabilities), [`url`](Self::url),
/// [`attempt`](Self::attempt), [`renew`](Self::renew), [`release`](Self::release) and
/// [`shutdown`](Self::shutdown), and [`wait`](Self::wait) if it has a queue. Every other method
/// refuses, or does the least that is right. An engine overrides those that it offers, and declares
/// them in its [`Capabilities`], which callers check before any call.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold::{Locks, clock::Clock, engine::Engine, registry};
///
/// let engine = registry::open("memory:", &Clock::system()).await?;
/// assert_eq!((engine.capabilities().engine, engine.url().as_str()), ("memory", "memory:"));
/// let locks = Locks::builder().open_engine(engine);
/// # drop(locks);
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
pub trait Engine: fmt::Debug + Send + Sync + 'static {
    /// What this engine can do, and its limits.
    fn capabilities(&self) -> &Capabilities;

    /// The engine's URL without secrets.
    fn url(&self) -> String;

    /// Acquires the lock if it is free; otherwise queues if `queue` is set and the engine has a
    /// queue. Follows rules 1 to 6 of [`LockTable`](crate::logic::table::LockTable). Repeating the
    /// call with the same claim gives the same answer and a later end.
    fn attempt(self: Arc<Self>, claim: Arc<Claim>, queue: bool) -> Step<AcquireReply>;

    /// Acquires several locks at once if all of them are free: one grant per claim, in order.
    /// `None` if one of them is not free, or if the engine cannot do it in one step. It then
    /// acquired none, and the caller acquires them one by one.
    fn attempt_all(self: Arc<Self>, claims: Vec<Arc<Claim>>) -> Step<Option<Vec<Grant>>> {
        drop(claims);
        Step::ready(Ok(None))
    }

    /// Waits for a change of a queued claim, no longer than `timeout`, and returns its state. The
    /// caller repeats it while it waits, at least every third of a TTL: each call is the waiter's
    /// heartbeat. Dropping the step leaves the claim in the queue.
    fn wait(self: Arc<Self>, claim: Arc<Claim>, timeout: Duration) -> Step<AcquireReply> {
        let _ = (claim, timeout);
        unsupported(self.capabilities(), "queue")
    }

    /// Identifies the server that keeps a lock, among servers that can fail independently. The
    /// keeper renews leases on different servers in separate calls, so a hanging server delays only
    /// its own leases.
    fn server_id(&self, _name: &LockName) -> u64 {
        0
    }

    /// Renews the leases of claims that hold, each for its TTL from now. Returns one answer per
    /// claim, in order.
    fn renew(self: Arc<Self>, claims: Vec<Arc<Claim>>) -> Step<Vec<RenewReply>>;

    /// Ends the claim, whether it holds, waits or is unknown. Never affects another claim.
    fn release(self: Arc<Self>, claim: Arc<Claim>) -> Step<ReleaseReply>;

    /// From this call on, the stream of losses that the engine detects without a renewal (eviction,
    /// end of a session). An engine that detects losses only by renewals returns
    /// [`LossEvents::none`].
    fn loss_events(&self) -> LossEvents {
        LossEvents::none()
    }

    /// Starts to watch the holders of `name`, and completes once the watch is in place, so that an
    /// inspection after it misses no change. The returned step waits until the holders may have
    /// changed since, no longer than `timeout`; it may wake spuriously.
    fn watch(self: Arc<Self>, name: LockName, timeout: Duration) -> Step<Step<()>> {
        let _ = (name, timeout);
        unsupported(self.capabilities(), "inspection")
    }

    /// The holders and the waiters of `name`. Needs [`Capabilities::inspection`].
    fn inspect(self: Arc<Self>, name: LockName) -> Step<LockView> {
        let _ = name;
        unsupported(self.capabilities(), "inspection")
    }

    /// All locks that have a holder or a waiter and whose name starts with `prefix`, sorted by
    /// name, and those whose data is damaged. Needs [`Capabilities::inspection`].
    fn list(self: Arc<Self>, prefix: String) -> Step<Vec<LockView>> {
        drop(prefix);
        unsupported(self.capabilities(), "inspection")
    }

    /// Evicts a claim, whether it holds or waits.
    /// [`fence::force_release_token`](crate::logic::fence::force_release_token) decides which token
    /// the engine raises and which it advises. If the claim has ended, the engine raises none.
    ///
    /// The holder or waiter learns of it within a round trip if the engine pushes notifications,
    /// and within 500 ms if it polls. The next waiter acquires the lock within the same time. The
    /// engine records `reason` if it keeps such a record. Needs [`Capabilities::force_release`].
    fn force_release(self: Arc<Self>, name: LockName, claim: ClaimId, reason: String) -> Step<ForceReleaseOutcome> {
        let _ = (name, claim, reason);
        unsupported(self.capabilities(), "force release")
    }

    /// Requests that the holder of a claim releases it. Its client receives
    /// [`LossEvent::ReleaseRequested`], as fast as the notification of an eviction, and stops
    /// renewing the lease. The lock becomes free when the holder releases it, or when its lease
    /// ends.
    ///
    /// Returns the holder, or `None` if the claim does not hold the lock. A request may be lost
    /// with a connection; repeating it is harmless. Needs [`Capabilities::force_release`].
    fn request_release(self: Arc<Self>, name: LockName, claim: ClaimId, reason: String) -> Step<Option<ContenderView>> {
        let _ = (name, claim, reason);
        unsupported(self.capabilities(), "force release")
    }

    /// Whether a claim that ended after a release request has released the lock. `Some(false)`: no
    /// release is known. `None`: the engine stores no note, and the caller decides by time
    /// ([`ContenderView::remaining`]): a claim that ended before its lease could expire has
    /// released.
    ///
    /// Only an engine that does not know when a lease ends overrides this. The first `Some(true)`
    /// may be the last: the note is then deleted.
    fn was_released(self: Arc<Self>, claim: ClaimId) -> Step<Option<bool>> {
        let _ = claim;
        Step::ready(Ok(None))
    }

    /// The records of this engine. Needs [`Capabilities::records`].
    fn records(self: Arc<Self>) -> Option<Arc<dyn RecordStore>> {
        None
    }

    /// Shuts down the engine's connections and sessions when no lease is held; no call follows. An
    /// engine may leave alone what expires soon anyway.
    fn shutdown(self: Arc<Self>) -> Step<()>;

    /// A file descriptor whose last close releases this client's locks, if the kernel tracks them.
    /// The caller passes it to a child process that must exit before the locks are free.
    #[cfg(unix)]
    fn liveness_fd(&self) -> Option<std::os::fd::OwnedFd> {
        None
    }
}

/// Small texts beside the locks, each with a version that a writer must have read.
///
/// As those of [`Engine`], every method takes one bounded step that is safe to repeat.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold::{LockName, clock::Clock, engine::{Engine, RecordStore}, registry};
///
/// let store = registry::open("memory:", &Clock::system()).await?.records().expect("records");
/// assert_eq!(store.get(LockName::new("last-run")?).await?.version, 0);
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
pub trait RecordStore: Send + Sync + 'static {
    /// Reads a record and the engine's clock.
    fn get(self: Arc<Self>, name: LockName) -> Step<Record>;

    /// As [`get`](Self::get), and returns in the same step the run of the servers that
    /// answered. `None`: the engine never loses what it acknowledged, or cannot detect it.
    ///
    /// Only an engine that may lose data *and* can detect it overrides this and
    /// [`compare_and_set_in_run`](Self::compare_and_set_in_run).
    fn get_in_run(self: Arc<Self>, name: LockName) -> Step<(Record, Option<ServerRun>)> {
        let read = self.get(name);
        Step::new(async move { Ok((read.await?, None)) })
    }

    /// Writes a record if its version is still `expected_version`, the version that was read (zero:
    /// the record must not exist). `None`: it has another version, and was not written. An empty
    /// value removes the record.
    ///
    /// The versions of a name rise over everything ever written to it, removals included
    /// ([`record_version`](crate::logic::record_version) has the rule). So a late writer that read
    /// an old version never succeeds.
    fn compare_and_set(self: Arc<Self>, name: LockName, expected_version: u64, value: String) -> Step<Option<Record>>;

    /// As [`compare_and_set`](Self::compare_and_set), but only while the servers are still in the
    /// run in which the record was read. In another run it does not write, as if the record had
    /// another version: after a loss of data, a version could repeat.
    fn compare_and_set_in_run(
        self: Arc<Self>,
        name: LockName,
        expected_version: u64,
        value: String,
        run: ServerRun,
    ) -> Step<Option<Record>> {
        drop(run);
        self.compare_and_set(name, expected_version, value)
    }

    /// The names of all records that start with `prefix`, in order.
    fn list(self: Arc<Self>, prefix: String) -> Step<Vec<LockName>>;
}
