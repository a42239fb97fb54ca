//! Implements the [`Engine`] trait with one [`LockTable`] per lock name, in the memory of this
//! process.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use super::CAPABILITIES;
use super::records::StoredRecords;
use crate::clock::{Clock, Instant, WallTime};
use crate::engine::Claim;
use crate::engine::{
    AcquireReply, Capabilities, ContenderView, Engine, EngineUrl, ForceReleaseOutcome, Grant, LockView,
    LossBroadcaster, LossEvents, Record, RecordStore, ReleaseReply, RenewReply, Step,
};
use crate::logic::table::{self, Contender, Granted, LockTable};
use crate::types::{ClaimId, Error, ErrorKind, LockName, Result, Token};

/// The map of locks is split into this many shards with a mutex each, so that threads seldom
/// contend.
const SHARD_COUNT: usize = 16;

/// The engines of `memory:NAME` URLs, by name. Dropped engines leave a dead entry until the next
/// open.
static NAMED_ENGINES: LazyLock<Mutex<HashMap<String, Weak<MemoryEngine>>>> = LazyLock::new(Mutex::default);

/// What the engine stores about a holder or waiter besides its entry in the table.
#[derive(Clone, Debug)]
struct ContenderDetails {
    claim: Arc<Claim>,
    /// Since when it holds or waits.
    since: Instant,
    /// Notified when a waiter must check its state; `None` until it first waits.
    wakeup: Option<Arc<Notify>>,
}

/// One lock.
#[derive(Debug, Default)]
struct LockState {
    table: LockTable<ContenderDetails>,
    /// Notified when the holders change; `None` until a task first watches them.
    holders_changed: Option<Arc<Notify>>,
}

/// A function that changes a table at the given time, and takes new tokens from the given function.
/// Returns its result, and the claims to which it granted the lock.
trait TableStep<T>: FnOnce(&mut LockTable<ContenderDetails>, Instant, &mut dyn FnMut() -> Token) -> (T, Granted) {}

impl<T, F: FnOnce(&mut LockTable<ContenderDetails>, Instant, &mut dyn FnMut() -> Token) -> (T, Granted)> TableStep<T>
    for F
{
}

impl LockState {
    /// Runs `step` on the table, then notifies the claims that it affects. Keeps `empty_count`, the
    /// number of locks in the shard without holders and waiters, up to date.
    fn step<T>(
        &mut self,
        empty_count: &mut usize,
        now: Instant,
        token: &mut dyn FnMut() -> Token,
        step: impl TableStep<T>,
    ) -> T {
        *empty_count -= usize::from(self.table.is_empty());
        let holders_before = self.holders_changed.is_some().then(|| holders_fingerprint(&self.table));
        let expiry_before = self.table.next_expiry();
        let (result, granted) = step(&mut self.table, now, token);
        if !granted.is_empty() {
            wake_granted(&mut self.table, &granted, now);
        }
        // If the lock was handed off to a shorter lease, the first waiter must check again sooner
        // than its last answer stated.
        if self.table.next_expiry().zip(expiry_before).is_some_and(|(now, before)| now < before)
            && let Some(wakeup) = self.table.waiters.front().and_then(|first| first.details.wakeup.as_ref())
        {
            wakeup.notify_one();
        }
        if let Some(changed) = &self.holders_changed
            && holders_before != Some(holders_fingerprint(&self.table))
        {
            changed.notify_waiters();
        }
        *empty_count += usize::from(self.table.is_empty());
        result
    }

    /// Whether a task waits for a change of the holders.
    fn is_watched(&self) -> bool {
        self.holders_changed.as_ref().is_some_and(|changed| Arc::strong_count(changed) > 1)
    }
}

/// One shard of the locks. It keeps a few empty entries, so that a lock that is acquired repeatedly
/// does not rebuild its entry each time.
#[derive(Debug, Default)]
struct Shard {
    locks: HashMap<LockName, LockState, BuildHasherDefault<NameHasher>>,
    /// The number of locks without holders and waiters.
    empty_count: usize,
    /// The number of empty entries that the last clean-up kept because tasks watch them.
    watched_empty_count: usize,
}

/// How many unwatched empty entries a shard keeps before it removes them.
const MAX_EMPTY_LOCKS: usize = 8;

impl Shard {
    /// Removes the empty entries, except those that tasks watch.
    fn remove_empty(&mut self) {
        self.locks.retain(|_, entry| !entry.table.is_empty() || entry.is_watched());
        self.empty_count = self.locks.values().filter(|entry| entry.table.is_empty()).count();
        self.watched_empty_count = self.empty_count;
    }
}

/// A hasher that uses the hash which a [`LockName`] computed when it was created.
#[derive(Debug, Default)]
struct NameHasher(u64);

impl Hasher for NameHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// The engine that keeps locks in memory.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let locks = leasehold::Locks::open("memory:").await?;
/// assert_eq!(locks.capabilities().engine, "memory");
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
pub struct MemoryEngine {
    clock: Clock,
    url: String,
    shards: [Mutex<Shard>; SHARD_COUNT],
    /// The last token granted for any name. With one counter for all, the tokens of each name rise
    /// even if its empty entry is dropped.
    last_token: AtomicU64,
    loss_events: LossBroadcaster,
    /// Claims that were force released, until they are released or attempt again. A waiter finds
    /// out here that it was force released.
    force_released: Mutex<HashSet<ClaimId>>,
    /// The size of `force_released`, to read without its mutex.
    force_released_count: AtomicUsize,
    records: Mutex<StoredRecords>,
    /// The time of records.
    calendar: WallTime,
}

impl MemoryEngine {
    /// Opens a new engine for `memory:`, or the one that this process shares as `memory:NAME`.
    pub(crate) fn open(url: &EngineUrl, clock: &Clock) -> Result<Arc<Self>> {
        url.refuse_unknown_options(&[])?;
        if !url.hosts.is_empty() || url.user.is_some() {
            return Err(Error::new(ErrorKind::InvalidUrl, "`memory:` has no host; a shared one is `memory:NAME`"));
        }
        if url.path.is_empty() {
            return Ok(Arc::new(Self::new(clock.clone(), url.to_string())));
        }
        let mut named = lock(&NAMED_ENGINES);
        named.retain(|_, engine| engine.strong_count() > 0);
        if let Some(engine) = named.get(&url.path).and_then(Weak::upgrade) {
            return Ok(engine);
        }
        let engine = Arc::new(Self::new(clock.clone(), url.to_string()));
        named.insert(url.path.clone(), Arc::downgrade(&engine));
        Ok(engine)
    }

    /// An engine without locks and records.
    fn new(clock: Clock, url: String) -> Self {
        Self {
            calendar: WallTime::new(&clock),
            clock,
            url,
            shards: Default::default(),
            last_token: AtomicU64::new(0),
            loss_events: LossBroadcaster::default(),
            force_released: Mutex::default(),
            force_released_count: AtomicUsize::new(0),
            records: Mutex::default(),
        }
    }

    /// Locks the shard that has the lock `name`.
    fn shard(&self, name: &LockName) -> MutexGuard<'_, Shard> {
        // The upper half of the hash: the map inside the shard uses the lower bits.
        let hash = BuildHasherDefault::<NameHasher>::default().hash_one(name);
        lock(&self.shards[(hash >> 32) as usize % SHARD_COUNT])
    }

    /// A token above all that this engine has granted.
    fn next_token(&self) -> Token {
        Token(self.last_token.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Runs `step` on the table of the lock `name`, notifies the claims that it affects, and
    /// removes empty entries if there are many.
    fn step<T>(&self, name: &LockName, step: impl TableStep<T>) -> T {
        let now = self.clock.now();
        let mut token = || self.next_token();
        let mut shard = self.shard(name);
        let Shard { locks: entries, empty_count: empty, watched_empty_count: watched } = &mut *shard;
        let result = match entries.get_mut(name) {
            Some(entry) => entry.step(empty, now, &mut token, step),
            None => {
                *empty += 1;
                entries.entry(name.clone()).or_default().step(empty, now, &mut token, step)
            }
        };
        if *empty > *watched + MAX_EMPTY_LOCKS {
            shard.remove_empty();
        }
        result
    }

    /// Whether a claim was marked as force released; also clears that mark.
    fn take_force_released(&self, claim: ClaimId) -> bool {
        if self.force_released_count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut force_released = lock(&self.force_released);
        let found = force_released.remove(&claim);
        self.force_released_count.store(force_released.len(), Ordering::Release);
        found
    }

    /// Notes that a claim was force released.
    fn mark_force_released(&self, claim: ClaimId) {
        let mut force_released = lock(&self.force_released);
        force_released.insert(claim);
        self.force_released_count.store(force_released.len(), Ordering::Release);
    }

    /// Acquires the lock for a claim if it is free; otherwise queues the claim if `queue` is set.
    fn attempt_claim(&self, claim: Arc<Claim>, queue: bool) -> AcquireReply {
        self.take_force_released(claim.id);
        let options = Arc::clone(&claim.options);
        self.step(&options.name, |table, now, mut token| {
            let contender = Contender {
                claim: claim.id,
                owner: options.owner,
                mode: options.mode,
                ttl: options.ttl,
                expires_at: now,
                token: Token::default(),
                order: 0,
                details: ContenderDetails { claim, since: now, wakeup: None },
            };
            let (verdict, granted) = table.attempt(contender, queue, now, &mut token);
            (AcquireReply::from_verdict(verdict, options.ttl, table.next_expiry(), &self.clock), granted)
        })
    }

    /// The notification of a queued claim that makes it check its state; `None` if the claim is not
    /// queued any more.
    fn wakeup(&self, claim: &Claim) -> Option<Arc<Notify>> {
        let mut shard = self.shard(claim.name());
        let table = &mut shard.locks.get_mut(claim.name())?.table;
        let position = table.position(claim.id)?;
        Some(Arc::clone(table.waiters[position].details.wakeup.get_or_insert_default()))
    }

    /// The view of a lock with this table, at `now`.
    fn view(&self, name: &LockName, table: &LockTable<ContenderDetails>, now: Instant) -> LockView {
        let show = |contender: &Contender<ContenderDetails>| contender_view(contender, now);
        LockView {
            holders: table.holders.iter().map(show).collect(),
            waiters: table.waiters.iter().map(show).collect(),
            last_token: Some(Token(self.last_token.load(Ordering::Relaxed))),
            ..LockView::free(name.clone())
        }
    }
}

/// A holder or waiter as inspection shows it, at `now`.
fn contender_view(contender: &Contender<ContenderDetails>, now: Instant) -> ContenderView {
    ContenderView::from_contender(
        contender,
        (*contender.details.claim.options.holder).clone(),
        contender.details.since,
        now,
    )
}

/// Wakes the waiters to which a step granted the lock at `now`.
fn wake_granted(table: &mut LockTable<ContenderDetails>, granted: &Granted, now: Instant) {
    for holder in table.holders.iter_mut().filter(|contender| granted.contains(&contender.claim)) {
        holder.details.since = now;
        if let Some(wakeup) = holder.details.wakeup.take() {
            wakeup.notify_one();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A poisoned mutex can still be used: a panic never leaves a table inconsistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A value that differs after every grant and every departure of a holder. (New holders are
/// appended.)
fn holders_fingerprint<N>(table: &LockTable<N>) -> (usize, Option<ClaimId>) {
    (table.holders.len(), table.holders.last().map(|contender| contender.claim))
}

/// A step that succeeds at once with `value`.
fn ready<T>(value: T) -> Step<T> {
    Step::ready(Ok(value))
}

impl Engine for MemoryEngine {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn url(&self) -> String {
        self.url.clone()
    }

    fn attempt(self: Arc<Self>, claim: Arc<Claim>, queue: bool) -> Step<AcquireReply> {
        ready(self.attempt_claim(claim, queue))
    }

    fn attempt_all(self: Arc<Self>, _claims: Vec<Arc<Claim>>) -> Step<Option<Vec<Grant>>> {
        Step::ready(Ok(None))
    }

    fn wait(self: Arc<Self>, claim: Arc<Claim>, timeout: Duration) -> Step<AcquireReply> {
        Step::new(async move {
            let until = self.clock.now().saturating_add(timeout);
            if let Some(wakeup) = self.wakeup(&claim) {
                tokio::select! {
                    () = wakeup.notified() => {}
                    () = self.clock.sleep_until(until) => {}
                }
            }
            let answer = self.step(claim.name(), |table, now, mut token| {
                let (verdict, granted) = table.refresh(claim.id, now, &mut token);
                (AcquireReply::from_verdict(verdict, claim.options.ttl, table.next_expiry(), &self.clock), granted)
            });
            Ok(if self.take_force_released(claim.id) { AcquireReply::ForceReleased } else { answer })
        })
    }

    fn renew(self: Arc<Self>, claims: Vec<Arc<Claim>>) -> Step<Vec<RenewReply>> {
        let renew = |claim: &Arc<Claim>| {
            let until = self.step(claim.name(), |table, now, mut token| table.renew(claim.id, now, &mut token));
            until.map_or(RenewReply::Lost, RenewReply::Renewed)
        };
        ready(claims.iter().map(renew).collect())
    }

    fn release(self: Arc<Self>, claim: Arc<Claim>) -> Step<ReleaseReply> {
        self.take_force_released(claim.id);
        let effect = self.step(claim.name(), |table, now, mut token| table.release(claim.id, now, &mut token));
        ready(effect.into())
    }

    fn loss_events(&self) -> LossEvents {
        self.loss_events.subscribe()
    }

    fn watch(self: Arc<Self>, name: LockName, timeout: Duration) -> Step<Step<()>> {
        let changed = {
            let mut shard = self.shard(&name);
            let Shard { locks: entries, empty_count: empty, .. } = &mut *shard;
            let entry = entries.entry(name.clone()).or_insert_with(|| {
                *empty += 1;
                LockState::default()
            });
            Arc::clone(entry.holders_changed.get_or_insert_default())
        };
        // Created now and not at the first poll, so that no change in between is missed.
        let notified = Arc::clone(&changed).notified_owned();
        Step::ready(Ok(Step::new(async move {
            let until = self.clock.now().saturating_add(timeout);
            tokio::select! {
                () = notified => {}
                () = self.clock.sleep_until(until) => {}
            }
            drop(changed);
            self.step(&name, |table, now, mut token| ((), table.expire_and_grant(now, &mut token)));
            Ok(())
        })))
    }

    fn inspect(self: Arc<Self>, name: LockName) -> Step<LockView> {
        let view = self.step(&name, |table, now, mut token| {
            let granted = table.expire_and_grant(now, &mut token);
            (self.view(&name, table, now), granted)
        });
        ready(view)
    }

    fn list(self: Arc<Self>, prefix: String) -> Step<Vec<LockView>> {
        let mut names: Vec<LockName> = Vec::new();
        for shard in &self.shards {
            names.extend(lock(shard).locks.keys().filter(|name| name.as_str().starts_with(&prefix)).cloned());
        }
        names.sort();
        let view = |name: &LockName| {
            self.step(name, |table, now, mut token| {
                let granted = table.expire_and_grant(now, &mut token);
                (self.view(name, table, now), granted)
            })
        };
        ready(names.iter().map(view).filter(|view| !view.holders.is_empty() || !view.waiters.is_empty()).collect())
    }

    fn force_release(self: Arc<Self>, name: LockName, claim: ClaimId, _reason: String) -> Step<ForceReleaseOutcome> {
        let (force_released, wakeup) = self.step(&name, |table, now, mut token| {
            let (force_released, granted) = table.force_release(claim, now, &mut token);
            let Some(table::ForceReleased { contender, fence_token }) = force_released else {
                return ((ForceReleaseOutcome::new(None, None), None), granted);
            };
            // While the table is locked, so that the waiter's next check finds the mark.
            self.mark_force_released(claim);
            let view = contender_view(&contender, now);
            ((ForceReleaseOutcome::new(Some(view), fence_token), contender.details.wakeup), granted)
        });
        if let Some(wakeup) = wakeup {
            wakeup.notify_one();
        }
        if force_released.contender.is_some() {
            self.loss_events.report_lost(claim);
        }
        ready(force_released)
    }

    fn request_release(
        self: Arc<Self>,
        name: LockName,
        claim: ClaimId,
        _reason: String,
    ) -> Step<Option<ContenderView>> {
        let held = self.step(&name, |table, now, mut token| {
            let granted = table.expire_and_grant(now, &mut token);
            (table.holder(claim).map(|contender| contender_view(contender, now)), granted)
        });
        if held.is_some() {
            self.loss_events.report_release_request(claim);
        }
        ready(held)
    }

    fn shutdown(self: Arc<Self>) -> Step<()> {
        Step::ready(Ok(()))
    }

    fn records(self: Arc<Self>) -> Option<Arc<dyn RecordStore>> {
        Some(self)
    }
}

impl RecordStore for MemoryEngine {
    fn get(self: Arc<Self>, name: LockName) -> Step<Record> {
        ready(lock(&self.records).read(&name, self.calendar.now(&self.clock)))
    }

    fn compare_and_set(self: Arc<Self>, name: LockName, expected_version: u64, value: String) -> Step<Option<Record>> {
        ready(lock(&self.records).write(name, expected_version, value, self.calendar.now(&self.clock)))
    }

    fn list(self: Arc<Self>, prefix: String) -> Step<Vec<LockName>> {
        ready(lock(&self.records).names(&prefix))
    }
}
