//! What keeps the locks. An engine is written against one trait, takes one bounded step per call, and states in data what
//! it can do.
//!
//! ADDING_AN_ENGINE.md walks through a new one; [`memory`] is the one to read first.

mod capabilities;
mod losses;
mod registry;
mod secrets;
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
pub use self::losses::{Loss, LossBoard, Losses};
pub(crate) use self::registry::unknown;
pub use self::registry::{Entry, Technique, entries, open};
pub use self::url::EngineUrl;

use crate::claim::{Claim, ClaimId, Holder, Mode, Token};
#[cfg(any(feature = "memory", feature = "file"))]
use crate::clock::{Clock, Moment};
use crate::error::Error;
use crate::logic::lease::Validity;
use crate::logic::table::{Departure, Refusal};
#[cfg(any(feature = "memory", feature = "file"))]
use crate::logic::table::{Party, Verdict};
use crate::name::LockName;

/// One step of an engine. It may be dropped at any time; the loop that dropped it cleans up with [`Engine::release`].
#[must_use = "a step does nothing until it is awaited"]
pub struct Step<T>(Kind<T>);

enum Kind<T> {
    Ready(Option<Result<T, Error>>),
    Later(Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>),
}

impl<T> Step<T> {
    /// A step that has to wait for something.
    pub fn new(future: impl Future<Output = Result<T, Error>> + Send + 'static) -> Self {
        Self(Kind::Later(Box::pin(future)))
    }

    /// A step that is done already; it costs no allocation.
    pub fn ready(result: Result<T, Error>) -> Self {
        Self(Kind::Ready(Some(result)))
    }
}

impl<T> Step<T> {
    /// The result of a step that was done from the start.
    pub(crate) fn take_ready(&mut self) -> Option<Result<T, Error>> {
        match &mut self.0 {
            Kind::Ready(result) => result.take(),
            Kind::Later(_) => None,
        }
    }
}

impl<T> Unpin for Step<T> {}

impl<T> Future for Step<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Kind::Ready(result) => result.take().map_or(Poll::Pending, Poll::Ready),
            Kind::Later(future) => future.as_mut().poll(cx),
        }
    }
}

impl<T> fmt::Debug for Step<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Step")
    }
}

/// The engine's yes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Higher than any token granted before for this name, or the same one for an owner that re-enters.
    pub token: Token,
    /// How long it lasts.
    pub validity: Validity,
}

/// The answer to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The lock is held by this claim.
    Granted(Grant),
    /// The claim is in the queue.
    Queued {
        /// How many wait ahead of it; an engine may stop counting at 100.
        ahead: usize,
        /// When the lock may become free without a message (a holder's lease ends): look again then.
        recheck: Option<Duration>,
        /// No holder is known: the lock cools down for so long, because servers restarted and may have forgotten one.
        cooling: Option<Duration>,
    },
    /// Not free, and the claim is not in a queue: because none was asked for, because the engine has none, or because the
    /// claim's place lapsed. Ask again.
    Busy {
        /// When the lock may become free without a message.
        recheck: Option<Duration>,
    },
    /// Nobody new is let in for so long: servers have restarted, and leases that they forgot may still be held. Ask again.
    Abstains {
        /// How long at least.
        left: Duration,
    },
    /// It can never be granted beside what is there.
    Refused(Refusal),
    /// The claim was evicted while it waited, or when it was granted and its caller had not heard of that. Only
    /// [`wait`](Engine::wait) says so; an attempt begins anew.
    Evicted,
}

#[cfg(any(feature = "memory", feature = "file"))]
impl Answer {
    /// A table's verdict, as an engine that reads our own clock says it. `expiry` is when the next lease ends.
    pub(crate) fn new(verdict: Verdict, expiry: Option<Moment>, clock: &Clock) -> Self {
        let recheck = || expiry.map(|at| at.since(clock.now()));
        match verdict {
            Verdict::Granted(token, until) => Self::Granted(Grant { token, validity: Validity::Until(until) }),
            Verdict::Queued(ahead) => Self::Queued { ahead, recheck: recheck(), cooling: None },
            Verdict::Busy => Self::Busy { recheck: recheck() },
            Verdict::Refused(refusal) => Self::Refused(refusal),
        }
    }
}

/// The answer to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// Extended: it now lasts so long.
    Renewed(Validity),
    /// Still held by this claim, but not extended.
    Held,
    /// It is not this claim's any more.
    Lost,
    /// The engine could not tell; the lease runs down while it is asked again.
    Unknown,
}

/// The answer to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// It was held, and is given back.
    Released,
    /// It waited, and has left the queue.
    LeftQueue,
    /// It was neither held nor waiting: released before, expired, evicted, or never seen.
    Absent,
}

impl From<Departure> for Released {
    fn from(departure: Departure) -> Self {
        match departure {
            Departure::Released => Self::Released,
            Departure::LeftQueue => Self::LeftQueue,
            Departure::Absent => Self::Absent,
        }
    }
}

/// One who holds, or waits for, a lock, as others may see it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartyView {
    /// Which claim; shown in part only.
    pub claim: ClaimId,
    /// How it holds, or wants to.
    pub mode: Mode,
    /// The grant's token; `None` while waiting.
    pub token: Option<Token>,
    /// Who.
    pub holder: Holder,
    /// How long it has held, or waited.
    pub age: Duration,
    /// How long it lasts unless renewed.
    pub left: Duration,
}

/// A lock, as others may see it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockView {
    /// Which lock.
    pub name: LockName,
    /// Who holds it, first granted first; an owner's further claims may stand with its first.
    pub holders: Vec<PartyView>,
    /// Who waits, next in line first.
    pub waiters: Vec<PartyView>,
    /// The highest token granted, where the engine keeps it.
    pub last_token: Option<Token>,
    /// Why nothing else can be said of it: what the engine has stored of it is damaged.
    pub trouble: Option<String>,
}

impl PartyView {
    /// One who holds or waits, for an engine to show. `token` is `None` while waiting.
    pub fn new(
        claim: ClaimId,
        mode: Mode,
        token: Option<Token>,
        holder: Holder,
        age: Duration,
        left: Duration,
    ) -> Self {
        Self { claim, mode, token, holder, age, left }
    }

    /// A party of a table that has been there `since`.
    #[cfg(any(feature = "memory", feature = "file"))]
    pub(crate) fn of<N>(party: &Party<N>, holder: Holder, since: Moment, now: Moment) -> Self {
        let token = (party.token > Token::default()).then_some(party.token);
        Self::new(party.claim, party.mode, token, holder, now.since(since), party.until.since(now))
    }
}

impl LockView {
    /// A lock that nobody holds or waits for.
    pub fn free(name: LockName) -> Self {
        Self { name, holders: Vec::new(), waiters: Vec::new(), last_token: None, trouble: None }
    }
}

/// What an eviction did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Evicted {
    /// The claim that was evicted; `None` if it was not there any more: then nothing was changed.
    pub party: Option<PartyView>,
    /// What to write to the resource: above the evicted holder's token, and below that of every other holder, now and later. So the evicted
    /// holder is refused there, and no other. `None`: there is nothing to refuse (the claim was not there, or waited), or no such number: a holder that
    /// stays, or in ZooKeeper the next waiter, has a token that is lower or the very next one.
    ///
    /// On a lease table, a waiter of that moment may have been promised a lower token by its own client: that client reports the lock as
    /// lost then.
    pub token: Option<Token>,
}

impl Evicted {
    /// What an eviction did, for an engine to say.
    pub fn new(party: Option<PartyView>, token: Option<Token>) -> Self {
        Self { party, token }
    }
}

/// A small text that the engine keeps under a name, beside the locks and independent of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Changes with every write and never comes back; zero: there is no such record.
    pub version: u64,
    /// Empty if there is none.
    pub value: String,
    /// What the engine's clock showed when it was read or written: since 1970, UTC. Never a client's clock.
    pub now: Duration,
}

impl Record {
    /// What is read where there is no record.
    pub fn absent(now: Duration) -> Self {
        Self { version: 0, value: String::new(), now }
    }
}

/// A run of an engine's servers: from a start, a promotion or a flush until the next. What was answered before it began may be forgotten in it; what was
/// answered in it is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerRun {
    /// Its name: two runs never have the same, but for a flush, which leaves no record behind.
    pub id: String,
    /// What the engine's clock showed when a client first saw this run: whatever was answered in an earlier one was answered before.
    pub began: Duration,
}

/// The answer of an engine that keeps no records; they are not asked for, but the trait has no default.
#[cfg(feature = "redis")]
pub(crate) fn no_records<T>(engine: &'static str) -> Step<T> {
    Step::ready(Err(Error::new(crate::error::ErrorKind::Unsupported, "has no records").at_engine(engine)))
}

/// What keeps the locks.
///
/// Every method takes *one bounded step*: it may wait for its server, but it never sleeps, retries or decides by a clock that
/// is not its server's. Timeouts, back-off, cancellation and clean-up are the caller's, once for all engines.
///
/// Whatever is asked, the answer must be safe to ask for again: a reply may be lost after the step was taken. Errors say
/// whether the effect is known ([`Error::effect`]) and whether trying again may help ([`Error::is_retryable`]).
///
/// There are no default bodies (but for servers that forget, and for where a lock is): what an engine cannot do, its author writes down as unsupported, knowingly, and says so in
/// [`Capabilities`], which are checked before any call.
pub trait Engine: fmt::Debug + Send + Sync + 'static {
    /// What this engine can do, and under which limits.
    fn capabilities(&self) -> &Capabilities;

    /// The engine's URL without secrets.
    fn url(&self) -> String;

    /// Takes the lock if it is free; otherwise joins the queue if `queue` is set and the engine has one. Rules 1 to 6 of
    /// [`Table`](crate::logic::table::Table). The same claim again gets the same answer, and a later end.
    fn attempt(self: Arc<Self>, claim: Arc<Claim>, queue: bool) -> Step<Answer>;

    /// Takes several locks at once if all of them are free: one grant per claim, in order. `None`: one of them is not, or the engine
    /// cannot do it at once; then none was taken, and the caller takes them one after the other.
    fn attempt_all(self: Arc<Self>, claims: Vec<Arc<Claim>>) -> Step<Option<Vec<Grant>>>;

    /// Waits for a change of a queued claim, no longer than `patience`, and says how it stands. Called again and again
    /// while the caller waits, at least every third of a TTL: each call shows that the waiter is alive. Dropping it leaves
    /// the claim in the queue.
    fn wait(self: Arc<Self>, claim: Arc<Claim>, patience: Duration) -> Step<Answer>;

    /// Where a lock is, of several servers that may fail one by one. What is in different places is renewed by different calls, so that a
    /// server that hangs costs only its own leases.
    fn place(&self, _name: &LockName) -> u64 {
        0
    }

    /// Extends the leases of claims that hold, each for its TTL from now; one answer per claim, in order.
    fn renew(self: Arc<Self>, claims: Vec<Arc<Claim>>) -> Step<Vec<Renewal>>;

    /// Ends the claim, whether it holds, waits or is unknown. Never touches another claim.
    fn release(self: Arc<Self>, claim: Arc<Claim>) -> Step<Released>;

    /// Where the engine tells of claims that it knows by itself to be lost (evicted, session ended), from this call on. An engine
    /// that is only ever told by a renewal gives [`Losses::never`].
    fn losses(&self) -> Losses;

    /// Begins to watch the holders of `name`, and is done once it does: an inspection after that misses no change. The step that it gives waits until
    /// they may have changed since, no longer than `patience`; it may wake for nothing.
    fn watch(self: Arc<Self>, name: LockName, patience: Duration) -> Step<Step<()>>;

    /// Who holds `name` and who waits. Needs [`Capabilities::inspection`].
    fn inspect(self: Arc<Self>, name: LockName) -> Step<LockView>;

    /// All locks whose names start with `prefix` that somebody holds or waits for, by name, and those that are damaged. Needs
    /// [`Capabilities::inspection`].
    fn list(self: Arc<Self>, prefix: String) -> Step<Vec<LockView>>;

    /// Evicts a claim, whether it holds or waits; [`fence::advice`](crate::logic::fence::advice) says which token is raised and advised. A claim that is
    /// not there raises nothing. The holder, or waiter, is told within a round trip where the engine can push, and within 500 ms where it polls; the
    /// next waiter is served in the same time. `reason` goes into the record, where the engine keeps one. Needs [`Capabilities::eviction`].
    fn evict(self: Arc<Self>, name: LockName, claim: ClaimId, reason: String) -> Step<Evicted>;

    /// Asks the holder of a claim to release it: its client hears [`Loss::ReleaseRequested`] within the times of an eviction, and renews it no more.
    /// Nothing else changes: the lock is free when the holder has released it, or when its lease ends. The holder's view, or `None` if the claim does not
    /// hold. A request may be lost with a connection; asking again is harmless. Needs [`Capabilities::eviction`].
    fn request_release(self: Arc<Self>, name: LockName, claim: ClaimId, reason: String) -> Step<Option<PartyView>>;

    /// Reads a record and the engine's clock. Needs [`Capabilities::records`].
    fn recall(self: Arc<Self>, name: LockName) -> Step<Record>;

    /// The same, in one step with the run of the servers that answered; `None`: the engine does not forget what it answered, or cannot tell. This and
    /// [`record_in_run`](Self::record_in_run) are the only defaults in this trait, since only an engine that may forget *and* can tell has something to say.
    fn recall_in_run(self: Arc<Self>, name: LockName) -> Step<(Record, Option<ServerRun>)> {
        let read = self.recall(name);
        Step::new(async move { Ok((read.await?, None)) })
    }

    /// Writes a record over the version that was read (zero: where there is none); `None`: another version is there, and nothing
    /// was written. An empty value removes it. A name's versions rise over all that was ever written to it, also over removals
    /// ([`record`](crate::logic::record) has the rule), so that a late writer which read an old version never succeeds. Needs
    /// [`Capabilities::records`].
    fn record(self: Arc<Self>, name: LockName, over: u64, value: String) -> Step<Option<Record>>;

    /// The same, but only while the servers are in the run in which the record was read. In another one nothing is written, as if another version were there:
    /// a version that comes back with a forgetful server could be the one that was read.
    fn record_in_run(
        self: Arc<Self>,
        name: LockName,
        over: u64,
        value: String,
        run: ServerRun,
    ) -> Step<Option<Record>> {
        drop(run);
        self.record(name, over, value)
    }

    /// The names of all records that start with `prefix`, in order. Needs [`Capabilities::records`].
    fn recorded(self: Arc<Self>, prefix: String) -> Step<Vec<LockName>>;

    /// Takes leave of the servers, when nothing is held any more: nothing is asked after that. What would end by itself a little
    /// later may be left to that.
    fn farewell(self: Arc<Self>) -> Step<()>;

    /// A descriptor whose last close ends this client's holds, if it is the kernel that watches over them. Handed to a
    /// process that must be gone before the locks are free.
    #[cfg(unix)]
    fn lifeline(&self) -> Option<std::os::fd::OwnedFd>;
}
