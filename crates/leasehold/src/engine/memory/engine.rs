//! The engine trait, on tables in memory.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use super::CAPABILITIES;
use super::records::Shelf;
use crate::claim::{Claim, ClaimId, Token};
use crate::clock::{Calendar, Clock, Moment};
use crate::engine::{
    Answer, Capabilities, Engine, EngineUrl, Evicted, Grant, LockView, LossBoard, Losses, PartyView, Record,
    RecordStore, Released, Renewal, Step,
};
use crate::error::{Error, ErrorKind, Result};
use crate::logic::lease::Validity;
use crate::logic::table::{self, Granted, Party, Table};
use crate::name::LockName;

/// The number of shards that the map of names has, so that cores do not contend for one mutex.
const SHARDS: usize = 16;

/// The engines that were opened by name.
static NAMED: LazyLock<Mutex<HashMap<String, Weak<MemoryEngine>>>> = LazyLock::new(Mutex::default);

/// What the engine stores about a party besides its entry in the table.
#[derive(Clone, Debug)]
struct Note {
    claim: Arc<Claim>,
    since: Moment,
    bell: Option<Arc<Notify>>,
}

#[derive(Debug, Default)]
struct Room {
    table: Table<Note>,
    changed: Option<Arc<Notify>>,
}

/// A step on a table: returns its result and the claims that it granted.
trait Act<T>: FnOnce(&mut Table<Note>, Moment, &mut dyn FnMut() -> Token) -> (T, Granted) {}

impl<T, F: FnOnce(&mut Table<Note>, Moment, &mut dyn FnMut() -> Token) -> (T, Granted)> Act<T> for F {}

impl Room {
    /// Takes a step and notifies the claims that it affects. `empty` counts the rooms without
    /// holders and waiters.
    fn step<T>(&mut self, empty: &mut usize, now: Moment, token: &mut dyn FnMut() -> Token, act: impl Act<T>) -> T {
        *empty -= usize::from(self.table.is_empty());
        let before = self.changed.is_some().then(|| who_holds(&self.table));
        let end = self.table.next_expiry();
        let (result, granted) = act(&mut self.table, now, token);
        if !granted.is_empty() {
            ring(&mut self.table, &granted, now);
        }
        // After a hand-off to a shorter lease, the first waiter must check again sooner than its
        // last recheck time.
        if self.table.next_expiry().zip(end).is_some_and(|(now, before)| now < before)
            && let Some(bell) = self.table.waiters.front().and_then(|first| first.note.bell.as_ref())
        {
            bell.notify_one();
        }
        if let Some(changed) = &self.changed
            && before != Some(who_holds(&self.table))
        {
            changed.notify_waiters();
        }
        *empty += usize::from(self.table.is_empty());
        result
    }

    /// Whether a task waits for a change.
    fn is_watched(&self) -> bool {
        self.changed.as_ref().is_some_and(|changed| Arc::strong_count(changed) > 1)
    }
}

/// One shard of the rooms. It keeps a few empty rooms, so that a lock that is acquired repeatedly
/// does not rebuild its room each time.
#[derive(Debug, Default)]
struct Shard {
    rooms: HashMap<LockName, Room, BuildHasherDefault<Hashed>>,
    empty: usize,
    /// The number of empty rooms that the last clean-up kept because tasks watch them.
    watched: usize,
}

/// How many empty rooms a shard keeps.
const SPARE: usize = 8;

impl Shard {
    /// Removes the empty rooms, except those that tasks watch.
    fn tidy(&mut self) {
        self.rooms.retain(|_, room| !room.table.is_empty() || room.is_watched());
        self.empty = self.rooms.values().filter(|room| room.table.is_empty()).count();
        self.watched = self.empty;
    }
}

/// Takes the hash from the name, which stores its own.
#[derive(Debug, Default)]
struct Hashed(u64);

impl Hasher for Hashed {
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
#[derive(Debug)]
pub struct MemoryEngine {
    clock: Clock,
    url: String,
    shards: [Mutex<Shard>; SHARDS],
    /// One counter for all names: the tokens of each name rise, and empty rooms can be dropped.
    last_token: AtomicU64,
    evicted: LossBoard,
    /// Evicted claims, until they are released or requested again. A waiter reads its eviction from
    /// here.
    put_out: Mutex<HashSet<ClaimId>>,
    /// The size of `put_out`.
    any_put_out: AtomicUsize,
    records: Mutex<Shelf>,
    calendar: Calendar,
}

impl MemoryEngine {
    /// Opens `memory:` or `memory:NAME`.
    pub(crate) fn open(url: &EngineUrl, clock: &Clock) -> Result<Arc<Self>> {
        url.only_options(&[])?;
        if !url.hosts.is_empty() || url.user.is_some() {
            return Err(Error::new(ErrorKind::InvalidUrl, "`memory:` has no host; a shared one is `memory:NAME`"));
        }
        if url.path.is_empty() {
            return Ok(Arc::new(Self::new(clock.clone(), url.to_string())));
        }
        let mut named = lock(&NAMED);
        named.retain(|_, engine| engine.strong_count() > 0);
        if let Some(engine) = named.get(&url.path).and_then(Weak::upgrade) {
            return Ok(engine);
        }
        let engine = Arc::new(Self::new(clock.clone(), url.to_string()));
        named.insert(url.path.clone(), Arc::downgrade(&engine));
        Ok(engine)
    }

    fn new(clock: Clock, url: String) -> Self {
        Self {
            calendar: Calendar::new(&clock),
            clock,
            url,
            shards: Default::default(),
            last_token: AtomicU64::new(0),
            evicted: LossBoard::default(),
            put_out: Mutex::default(),
            any_put_out: AtomicUsize::new(0),
            records: Mutex::default(),
        }
    }

    fn shard(&self, name: &LockName) -> MutexGuard<'_, Shard> {
        // The map inside the shard uses other bits of the same hash.
        let hash = BuildHasherDefault::<Hashed>::default().hash_one(name);
        lock(&self.shards[(hash >> 32) as usize % SHARDS])
    }

    fn next_token(&self) -> Token {
        Token(self.last_token.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Takes one step on a lock's table, notifies the claims that it granted, and drops empty rooms
    /// from time to time.
    fn step<T>(&self, name: &LockName, act: impl Act<T>) -> T {
        let now = self.clock.now();
        let mut token = || self.next_token();
        let mut shard = self.shard(name);
        let Shard { rooms, empty, watched } = &mut *shard;
        let result = match rooms.get_mut(name) {
            Some(room) => room.step(empty, now, &mut token, act),
            None => {
                *empty += 1;
                rooms.entry(name.clone()).or_default().step(empty, now, &mut token, act)
            }
        };
        if *empty > *watched + SPARE {
            shard.tidy();
        }
        result
    }

    /// Whether a claim was evicted; also clears that mark.
    fn take_put_out(&self, claim: ClaimId) -> bool {
        if self.any_put_out.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut put_out = lock(&self.put_out);
        let found = put_out.remove(&claim);
        self.any_put_out.store(put_out.len(), Ordering::Release);
        found
    }

    fn note_put_out(&self, claim: ClaimId) {
        let mut put_out = lock(&self.put_out);
        put_out.insert(claim);
        self.any_put_out.store(put_out.len(), Ordering::Release);
    }

    fn ask(&self, claim: Arc<Claim>, queue: bool) -> Answer {
        self.take_put_out(claim.id);
        let terms = Arc::clone(&claim.terms);
        self.step(&terms.name, |table, now, mut token| {
            let party = Party {
                claim: claim.id,
                owner: terms.owner,
                mode: terms.mode,
                ttl: terms.ttl,
                until: now,
                token: Token::default(),
                place: 0,
                note: Note { claim, since: now, bell: None },
            };
            let (verdict, granted) = table.attempt(party, queue, now, &mut token);
            (Answer::new(verdict, table.next_expiry(), &self.clock), granted)
        })
    }

    /// The wakeup of a queued claim; `None` if it does not wait any more.
    fn bell(&self, claim: &Claim) -> Option<Arc<Notify>> {
        let mut shard = self.shard(claim.name());
        let table = &mut shard.rooms.get_mut(claim.name())?.table;
        let place = table.position(claim.id)?;
        Some(Arc::clone(table.waiters[place].note.bell.get_or_insert_default()))
    }

    fn view(&self, name: &LockName, table: &Table<Note>, now: Moment) -> LockView {
        let show = |party: &Party<Note>| show(party, now);
        LockView {
            name: name.clone(),
            holders: table.holders.iter().map(show).collect(),
            waiters: table.waiters.iter().map(show).collect(),
            last_token: Some(Token(self.last_token.load(Ordering::Relaxed))),
            trouble: None,
        }
    }
}

/// A party, for inspection.
fn show(party: &Party<Note>, now: Moment) -> PartyView {
    PartyView::of(party, (*party.note.claim.terms.holder).clone(), party.note.since, now)
}

/// Wakes the claims that were granted.
fn ring(table: &mut Table<Note>, granted: &Granted, now: Moment) {
    for holder in table.holders.iter_mut().filter(|party| granted.contains(&party.claim)) {
        holder.note.since = now;
        if let Some(bell) = holder.note.bell.take() {
            bell.notify_one();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while a table is changed leaves it in one of its consistent states.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Changes with every grant, because a grant is appended, and with every departure.
fn who_holds<N>(table: &Table<N>) -> (usize, Option<ClaimId>) {
    (table.holders.len(), table.holders.last().map(|party| party.claim))
}

fn done<T>(value: T) -> Step<T> {
    Step::ready(Ok(value))
}

impl Engine for MemoryEngine {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn url(&self) -> String {
        self.url.clone()
    }

    fn attempt(self: Arc<Self>, claim: Arc<Claim>, queue: bool) -> Step<Answer> {
        done(self.ask(claim, queue))
    }

    fn attempt_all(self: Arc<Self>, _claims: Vec<Arc<Claim>>) -> Step<Option<Vec<Grant>>> {
        Step::ready(Ok(None))
    }

    fn wait(self: Arc<Self>, claim: Arc<Claim>, patience: Duration) -> Step<Answer> {
        Step::new(async move {
            let until = self.clock.now().after(patience);
            if let Some(bell) = self.bell(&claim) {
                tokio::select! {
                    () = bell.notified() => {}
                    () = self.clock.sleep_until(until) => {}
                }
            }
            let answer = self.step(claim.name(), |table, now, mut token| {
                let (verdict, granted) = table.look(claim.id, now, &mut token);
                (Answer::new(verdict, table.next_expiry(), &self.clock), granted)
            });
            Ok(if self.take_put_out(claim.id) { Answer::Evicted } else { answer })
        })
    }

    fn renew(self: Arc<Self>, claims: Vec<Arc<Claim>>) -> Step<Vec<Renewal>> {
        let renew = |claim: &Arc<Claim>| {
            let until = self.step(claim.name(), |table, now, mut token| table.renew(claim.id, now, &mut token));
            until.map_or(Renewal::Lost, |until| Renewal::Renewed(Validity::Until(until)))
        };
        done(claims.iter().map(renew).collect())
    }

    fn release(self: Arc<Self>, claim: Arc<Claim>) -> Step<Released> {
        self.take_put_out(claim.id);
        let departure = self.step(claim.name(), |table, now, mut token| table.depart(claim.id, now, &mut token));
        done(departure.into())
    }

    fn losses(&self) -> Losses {
        self.evicted.listen()
    }

    fn watch(self: Arc<Self>, name: LockName, patience: Duration) -> Step<Step<()>> {
        let changed = {
            let mut shard = self.shard(&name);
            let Shard { rooms, empty, .. } = &mut *shard;
            let room = rooms.entry(name.clone()).or_insert_with(|| {
                *empty += 1;
                Room::default()
            });
            Arc::clone(room.changed.get_or_insert_default())
        };
        // Starts to listen now, not at the first poll.
        let heard = Arc::clone(&changed).notified_owned();
        Step::ready(Ok(Step::new(async move {
            let until = self.clock.now().after(patience);
            tokio::select! {
                () = heard => {}
                () = self.clock.sleep_until(until) => {}
            }
            drop(changed);
            self.step(&name, |table, now, mut token| ((), table.settle(now, &mut token)));
            Ok(())
        })))
    }

    fn inspect(self: Arc<Self>, name: LockName) -> Step<LockView> {
        let view = self.step(&name, |table, now, mut token| {
            let granted = table.settle(now, &mut token);
            (self.view(&name, table, now), granted)
        });
        done(view)
    }

    fn list(self: Arc<Self>, prefix: String) -> Step<Vec<LockView>> {
        let mut names: Vec<LockName> = Vec::new();
        for shard in &self.shards {
            names.extend(lock(shard).rooms.keys().filter(|name| name.as_str().starts_with(&prefix)).cloned());
        }
        names.sort();
        let view = |name: &LockName| {
            self.step(name, |table, now, mut token| {
                let granted = table.settle(now, &mut token);
                (self.view(name, table, now), granted)
            })
        };
        done(names.iter().map(view).filter(|view| !view.holders.is_empty() || !view.waiters.is_empty()).collect())
    }

    fn evict(self: Arc<Self>, name: LockName, claim: ClaimId, _reason: String) -> Step<Evicted> {
        let (evicted, bell) = self.step(&name, |table, now, mut token| {
            let (evicted, granted) = table.evict(claim, now, &mut token);
            let Some(table::Evicted { party, advice }) = evicted else {
                return ((Evicted::new(None, None), None), granted);
            };
            // Before the table is unlocked, so that every later check finds it.
            self.note_put_out(claim);
            let view = show(&party, now);
            ((Evicted::new(Some(view), advice), party.note.bell), granted)
        });
        if let Some(bell) = bell {
            bell.notify_one();
        }
        if evicted.party.is_some() {
            self.evicted.post(claim);
        }
        done(evicted)
    }

    fn request_release(self: Arc<Self>, name: LockName, claim: ClaimId, _reason: String) -> Step<Option<PartyView>> {
        let held = self.step(&name, |table, now, mut token| {
            let granted = table.settle(now, &mut token);
            (table.holder(claim).map(|party| show(party, now)), granted)
        });
        if held.is_some() {
            self.evicted.request_release(claim);
        }
        done(held)
    }

    fn farewell(self: Arc<Self>) -> Step<()> {
        Step::ready(Ok(()))
    }

    fn records(self: Arc<Self>) -> Option<Arc<dyn RecordStore>> {
        Some(self)
    }
}

impl RecordStore for MemoryEngine {
    fn get(self: Arc<Self>, name: LockName) -> Step<Record> {
        done(lock(&self.records).read(&name, self.calendar.now(&self.clock)))
    }

    fn compare_and_set(self: Arc<Self>, name: LockName, over: u64, value: String) -> Step<Option<Record>> {
        done(lock(&self.records).write(name, over, value, self.calendar.now(&self.clock)))
    }

    fn list(self: Arc<Self>, prefix: String) -> Step<Vec<LockName>> {
        done(lock(&self.records).names(&prefix))
    }
}
