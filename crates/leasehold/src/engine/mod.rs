//! Engines: the stores that keep the locks. An engine implements one trait, takes one bounded step
//! per call, and declares as data what it can do.
//!
//! ADDING_AN_ENGINE.md explains how to write one; read [`memory`] first.

mod capabilities;
mod claim;
mod lease;
mod loss_events;
mod record;
mod secrets;
pub(crate) mod url;
mod view;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "zookeeper"))]
mod wrong_service;

#[cfg(all(feature = "file", target_os = "linux"))]
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
pub use self::record::{Record, RecordStore, ServerRun};
pub use self::secrets::is_exposed;
pub use self::url::EngineUrl;
#[cfg(test)]
pub(crate) use self::url::SCHEMES;
pub use self::view::{ContenderView, ForceReleaseOutcome, LockView};
#[cfg(any(feature = "mysql", feature = "postgres", feature = "zookeeper"))]
pub(crate) use self::wrong_service::Product;

#[cfg(any(feature = "memory", all(feature = "file", target_os = "linux")))]
use crate::clock::Clock;
pub use crate::logic::fence::force_release_token;
pub use crate::logic::lease::Drift;
pub use crate::logic::table::Refusal;
use crate::logic::table::ReleaseEffect;
#[cfg(any(feature = "memory", all(feature = "file", target_os = "linux")))]
use crate::logic::table::Verdict;
use crate::types::{ClaimId, Error, Instant, LockName, Token};

/// One call to an engine: a future that is complete after one bounded step. The caller may drop it
/// at any time. The step may have taken effect all the same, so the caller then calls
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

/// How a step gets its result.
enum StepState<T> {
    /// The result was known from the start; `None` once it was taken.
    Ready(Option<Result<T, Error>>),
    /// The future computes it.
    Pending(Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>),
}

impl<T> Step<T> {
    /// A step that runs `future` when it is awaited.
    pub fn new(future: impl Future<Output = Result<T, Error>> + Send + 'static) -> Self {
        Self(StepState::Pending(Box::pin(future)))
    }

    /// A step whose result is known already. It completes at the first poll and allocates nothing.
    pub fn ready(result: Result<T, Error>) -> Self {
        Self(StepState::Ready(Some(result)))
    }
}

impl<T> Step<T> {
    /// Takes the result of a step that [`ready`](Self::ready) made; `None` if it must be awaited.
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
    /// When the lease began, on this process's clock. The lock has been reserved for the claim
    /// since then, and the next renewal is due a third of the TTL later.
    pub reserved_at: Instant,
    /// When the lease ends unless renewed, on this process's clock, before any clock drift is
    /// subtracted. An engine whose server has a clock of its own counts from before it sent the
    /// request.
    pub expires_at: Instant,
}

impl Grant {
    /// A grant whose lease lasts `ttl` from `sent_at`, when its request was sent.
    pub fn for_ttl(token: Token, sent_at: Instant, ttl: Duration) -> Self {
        Self { token, reserved_at: sent_at, expires_at: sent_at.saturating_add(ttl) }
    }

    /// A grant whose lease ends at `expires_at`, and so began `ttl` before that.
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
        /// Check again after this time: a holder's lease ends then, and the lock may become free
        /// without a notification. `None`: the engine knows no such time.
        recheck_after: Option<Duration>,
        /// `Some`: no holder is known, but the engine grants the lock only after this time, because
        /// servers restarted and may have lost the lease of a holder. `None`: no cool-down.
        cool_down: Option<Duration>,
    },
    /// The lock is not free and the claim is not in a queue: the caller did not ask to queue, the
    /// engine has no queue, or the claim lost its position. Retry.
    Busy {
        /// Retry after this time: a holder's lease ends then, and the lock may become free without
        /// a notification. `None`: the engine knows no such time.
        recheck_after: Option<Duration>,
    },
    /// The engine makes no new grants during a cool-down: servers restarted, and holders may still
    /// rely on leases that those servers lost. Retry.
    CoolingDown {
        /// The cool-down lasts at least this much longer.
        left: Duration,
    },
    /// Waiting cannot help, and the claim does not queue: its mode conflicts with the claims that
    /// hold or wait, for the given reason.
    Refused(Refusal),
    /// An operator force released the claim while it waited, or after its grant but before its
    /// client learned of the grant. [`wait`](Engine::wait) returns this. An attempt returns it if
    /// the claim attempted before and its client may not have learned of the force release;
    /// otherwise an attempt starts over.
    ForceReleased,
}

#[cfg(any(feature = "memory", all(feature = "file", target_os = "linux")))]
impl AcquireReply {
    /// Converts the verdict of a [`LockTable`](crate::logic::table::LockTable) whose times are this
    /// process's. `expiry` is when the table's next lease ends, if it has one.
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
    /// The lease now lasts until then, on this process's clock; see [`Grant::expires_at`].
    Renewed(Instant),
    /// This claim still holds the lock until its former deadline, but its lease was not extended.
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
    /// The claim neither held nor waited: it was released before, expired, was force released, or
    /// is unknown.
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

/// A step that fails with `Unsupported`; the error names the capability that the engine lacks.
fn unsupported_step<T>(capabilities: &Capabilities, capability: &str) -> Step<T> {
    Step::ready(Err(capabilities.unsupported_error(capability)))
}

/// An engine that keeps locks.
///
/// Every method takes *one bounded step*. A step may wait for its server, but it never sleeps,
/// retries or decides by a clock other than its server's. The caller handles timeouts, back-off,
/// cancellation and clean-up, once for all engines.
///
/// Every call must be safe to repeat, because a reply may be lost after the server has executed the
/// request. Errors state whether the effect is known ([`Error::effect`]) and whether a retry may
/// help ([`Error::is_retryable`]).
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

    /// The engine's URL without passwords, to display.
    fn url(&self) -> String;

    /// Acquires the lock if it is free; otherwise queues if `queue` is set and the engine has a
    /// queue. Repeating the call with the same claim gives the same answer, and a granted lease then
    /// ends later. The rules, in the order in which a call applies them:
    /// 1. Remove the holders whose lease has expired, then serve the queue.
    /// 2. Serve the queue strictly in order: the first waiter that does not fit blocks those behind
    ///    it. So consecutive readers are granted together, and readers behind a waiting writer wait.
    /// 3. Skip a waiter that sent no heartbeat for its TTL.
    /// 4. A repeated claim is the same request.
    /// 5. An owner whose hold already covers the request enters at once with the same token, ahead of
    ///    all waiters.
    /// 6. Every other grant has a higher token than all before.
    fn attempt(self: Arc<Self>, claim: Arc<Claim>, queue: bool) -> Step<AcquireReply>;

    /// Acquires several locks at once if all of them are free: one grant per claim, in order.
    /// `None` if one of them is not free, or if the engine cannot do it in one step. It then
    /// acquired none, and the caller acquires them one by one.
    fn attempt_all(self: Arc<Self>, claims: Vec<Arc<Claim>>) -> Step<Option<Vec<Grant>>> {
        drop(claims);
        Step::ready(Ok(None))
    }

    /// Waits until the state of a queued claim changes, or until `timeout` has passed, and returns
    /// that state. The caller repeats the call while it waits, at least every third of a TTL: each
    /// call is the waiter's heartbeat. Dropping the step leaves the claim in the queue.
    fn wait(self: Arc<Self>, claim: Arc<Claim>, timeout: Duration) -> Step<AcquireReply> {
        let _ = (claim, timeout);
        unsupported_step(self.capabilities(), "queue")
    }

    /// A number for the server that keeps this lock, if the engine has servers that can fail
    /// independently; 0 otherwise. The keeper renews leases on different servers in separate calls,
    /// so a hanging server delays only its own leases.
    fn server_id(&self, _name: &LockName) -> u64 {
        0
    }

    /// Renews the leases of claims that hold, each for its TTL from now. Returns one answer per
    /// claim, in order.
    fn renew(self: Arc<Self>, claims: Vec<Arc<Claim>>) -> Step<Vec<RenewReply>>;

    /// Ends the claim, whether it holds, waits or is unknown. Never affects another claim.
    fn release(self: Arc<Self>, claim: Arc<Claim>) -> Step<ReleaseReply>;

    /// Subscribes to the losses that the engine detects without a renewal: a force release, the end
    /// of a session. An engine that detects losses only by renewals returns [`LossEvents::none`].
    fn loss_events(&self) -> LossEvents {
        LossEvents::none()
    }

    /// Starts to watch the holders of `name`. The outer step completes once the watch is in place,
    /// so that an inspection after it misses no change. The inner step, its result, completes when
    /// the holders may have changed since, or after `timeout`; it may wake spuriously.
    fn watch(self: Arc<Self>, name: LockName, timeout: Duration) -> Step<Step<()>> {
        let _ = (name, timeout);
        unsupported_step(self.capabilities(), "inspection")
    }

    /// The holders and the waiters of `name`. Needs [`Capabilities::inspection`].
    fn inspect(self: Arc<Self>, name: LockName) -> Step<LockView> {
        let _ = name;
        unsupported_step(self.capabilities(), "inspection")
    }

    /// All locks that have a holder or a waiter and whose name starts with `prefix`, sorted by
    /// name, and those whose data is damaged. Needs [`Capabilities::inspection`].
    fn list(self: Arc<Self>, prefix: String) -> Step<Vec<LockView>> {
        drop(prefix);
        unsupported_step(self.capabilities(), "inspection")
    }

    /// Ends another client's claim, whether it holds or waits. [`force_release_token`] gives
    /// [`ForceReleaseOutcome::fence_token`]. If the claim has ended already, nothing changes.
    ///
    /// The holder or waiter learns of it within a round trip if the engine pushes notifications,
    /// and within 500 ms if it polls. The next waiter acquires the lock within the same time. The
    /// operator's `reason` is logged or stored if the engine can. Needs
    /// [`Capabilities::force_release`].
    fn force_release(self: Arc<Self>, name: LockName, claim: ClaimId, reason: String) -> Step<ForceReleaseOutcome> {
        let _ = (name, claim, reason);
        unsupported_step(self.capabilities(), "force release")
    }

    /// Requests that the holder of a claim releases it. Its client receives
    /// [`LossEvent::ReleaseRequested`], as fast as the notification of a force release, and stops
    /// renewing the lease. The lock becomes free when the holder releases it, or when its lease
    /// ends.
    ///
    /// Returns the holder, or `None` if the claim does not hold the lock. A request may be lost
    /// with a connection; repeating it is harmless. Needs [`Capabilities::force_release`].
    fn request_release(self: Arc<Self>, name: LockName, claim: ClaimId, reason: String) -> Step<Option<ContenderView>> {
        let _ = (name, claim, reason);
        unsupported_step(self.capabilities(), "force release")
    }

    /// After a release request: whether the holder released the claim, or its lease expired.
    /// `Some(false)`: no release is known. `None`: the engine does not store that. The caller then
    /// decides by [`ContenderView::remaining`]: a claim that ended before its lease could expire was
    /// released.
    ///
    /// Only an engine that does not know when a lease ends overrides this. It may return
    /// `Some(true)` only once, because it may delete what it stored about the release.
    fn was_released(self: Arc<Self>, claim: ClaimId) -> Step<Option<bool>> {
        let _ = claim;
        Step::ready(Ok(None))
    }

    /// The records of this engine; `None` if it has none ([`Capabilities::records`]).
    fn records(self: Arc<Self>) -> Option<Arc<dyn RecordStore>> {
        None
    }

    /// Closes the engine's connections and sessions. The caller holds no lease any more, and makes
    /// no further call. Server-side state that expires soon may stay.
    fn shutdown(self: Arc<Self>) -> Step<()>;

    /// A file descriptor whose last close releases all locks of this client; `None` if the kernel
    /// does not track the engine's locks. The caller passes it to a child process, so that the
    /// locks stay held until the child has exited, too.
    #[cfg(unix)]
    fn liveness_fd(&self) -> Option<std::os::fd::OwnedFd> {
        None
    }
}
