//! One key of a cache, and every operation on it: the specification of the store.
//!
//! A record has
//! - a **generation**, which rises with each invalidation and each write;
//! - a **value**, and the generation that the value belongs to;
//! - a **lease**, which one reader at a time has to load the value;
//! - a **mark** while a client writes.
//!
//! Every step that raises the generation drops the lease, and a value is accepted only with the
//! lease on record. A value that was read before an invalidation is therefore rejected after it. It
//! is also rejected if the record was lost meanwhile, because its lease was lost, too.
//!
//! All times are microseconds on the store's own clock.

use std::time::Duration;

/// A lease or a mark: its id and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimedId {
    /// Chosen by the client before it sends the request, so that a repeated request is recognized.
    pub id: u128,
    /// When it expires, in microseconds on the store's clock.
    pub until: u64,
}

/// The result of a loader; `None`: the row does not exist.
pub type Data = Option<Vec<u8>>;

/// A value that was accepted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CachedValue {
    /// The value itself.
    pub data: Data,
    /// The generation that it belongs to. The value is stale if the record has another.
    pub generation: u64,
    /// From this time on it is stale in any case, in microseconds on the store's clock.
    pub fresh_until: u64,
    /// How long the load took, in microseconds.
    pub load_cost: u64,
}

/// One key's record; all times are microseconds on the store's clock. The default means that there
/// is no record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CacheEntry {
    /// Rises with each invalidation and write; 0 if there is no record.
    pub generation: u64,
    /// The last value that was accepted, fresh or stale; `None` if there is none.
    pub value: Option<CachedValue>,
    /// The lease of the reader that loads the value; `None` if no reader does.
    pub lease: Option<TimedId>,
    /// The mark of the client that writes; `None` if no client does.
    pub write_mark: Option<TimedId>,
    /// The highest lock token that a writer of this key had; 0 if there was none.
    pub highest_token: u64,
    /// The lowest version of the row that is accepted; 0 accepts any.
    pub min_version: u64,
    /// Until this time, "not found" is not accepted from a loader: a client reported a version of
    /// the row, which a replica may not have yet.
    pub row_expected_until: u64,
    /// From this time on the record may be dropped.
    pub keep_until: u64,
    /// When the record was last written. A time in the future means that the clock was set back, or
    /// that a server with a slower clock took over.
    pub written_at: u64,
}

/// A reader's request; all durations are in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// The id of the lease, if one can be granted.
    pub lease: u128,
    /// How long other readers leave the load to the one that has the lease.
    pub lease_time: u64,
    /// How long after the grant of a lease its value may still be accepted.
    pub keep_for: u64,
    /// How long a stale value may be served; 0 for never.
    pub stale_for: u64,
    /// How early the value may be reloaded: the result of [`early_factor`].
    pub early_factor: u64,
}

/// The reply to a reader's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadReply {
    /// A fresh value.
    Hit(Data),
    /// A fresh value, and the lease with the generation of the new value: the reader reloads the
    /// value before it expires.
    Early(Data, u64),
    /// A stale value, which may be served while another client loads or writes.
    Stale(Data),
    /// The reader has the lease and loads. Contains the generation of the new value, and a stale
    /// value that may be served if the load fails.
    Load(u64, Option<Data>),
    /// Another reader has the lease with this id: wait for its load, at most this many
    /// microseconds.
    Wait(u128, u64),
    /// A client is writing: load; the value will not be accepted.
    WriteInProgress,
}

/// The request of a writer that begins; all durations are in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteRequest {
    /// The id of the mark, chosen by the writer.
    pub mark: u128,
    /// The token of the writer's lock.
    pub token: u64,
    /// How long the mark lasts if the writer does not extend it.
    pub mark_time: u64,
    /// How long the old value may be served; 0 for never.
    pub stale_for: u64,
    /// How long the record is kept after the mark has expired.
    pub keep_for: u64,
}

/// A value to be stored; all durations are in microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedValue {
    /// The lease under which it was loaded.
    pub lease: u128,
    /// The generation that came with the lease.
    pub generation: u64,
    /// The loader's result.
    pub data: Data,
    /// The version of the row, if there is one.
    pub version: Option<u64>,
    /// How long the load took.
    pub load_cost: u64,
    /// How long it is fresh.
    pub fresh_for: u64,
    /// How long it may be served after it is no longer fresh; 0 for never.
    pub stale_for: u64,
}

/// Why a value was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreRefusal {
    /// There was an invalidation or a write since the lease was granted, or the record was lost.
    Invalidated,
    /// The lease expired, and another reader has it. There was no invalidation.
    Overtaken,
    /// The row is older than one that is known.
    Older,
    /// The loader found no row where one was known a short while ago: it may be deleted, or not
    /// replicated yet.
    NoRow,
}

/// One operation on a key; all durations are in microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// [`CacheEntry::read`].
    Read(ReadRequest),
    /// [`CacheEntry::store`].
    Store(LoadedValue),
    /// [`CacheEntry::give_up_lease`]: the id of the lease, and the error of its load, which waiting
    /// readers get; empty if the load did not fail.
    GiveUp(u128, String),
    /// [`CacheEntry::invalidate`]: the lowest version, how long the old value is kept, and how long
    /// the record is kept.
    Invalidate(u64, u64, u64),
    /// [`CacheEntry::begin_write`].
    BeginWrite(WriteRequest),
    /// [`CacheEntry::extend_write`]: the mark, how long it lasts, and how long the record is kept
    /// after that.
    ExtendWrite(u128, u64, u64),
    /// [`CacheEntry::finish_write`]: the mark, the value, and how long the record is kept.
    FinishWrite(u128, Option<LoadedValue>, u64),
}

/// The reply to an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationReply {
    /// To [`Operation::Read`].
    Read(ReadReply),
    /// To [`Operation::Store`]: whether the value was accepted.
    Stored(Result<(), StoreRefusal>),
    /// To [`Operation::GiveUp`] and [`Operation::Invalidate`].
    Done,
    /// To [`Operation::BeginWrite`]: the new generation; as an error, the higher token of an
    /// earlier writer.
    WriteBegun(Result<u64, u64>),
    /// To [`Operation::ExtendWrite`]: whether the mark is still set.
    WriteExtended(bool),
    /// To [`Operation::FinishWrite`]: whether the mark lasted to the end.
    WriteFinished(WriteEnd),
}

/// How a write ended for the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteEnd {
    /// The mark lasted to the end; the new value is in the cache, if there was one.
    MarkHeld,
    /// The mark had expired, or belongs to a newer writer: the cache has neither the written value
    /// nor an older one.
    Overtaken,
}

impl CacheEntry {
    /// Performs one operation at the time `now`.
    pub fn apply(&mut self, now: u64, operation: Operation) -> OperationReply {
        match operation {
            Operation::Read(request) => OperationReply::Read(self.read(now, &request)),
            Operation::Store(load) => OperationReply::Stored(self.store(now, load)),
            Operation::GiveUp(lease, _) => {
                self.give_up_lease(lease);
                OperationReply::Done
            }
            Operation::Invalidate(version, stale_for, keep_for) => {
                self.invalidate(now, version, stale_for, keep_for);
                OperationReply::Done
            }
            Operation::BeginWrite(begin) => OperationReply::WriteBegun(self.begin_write(now, &begin)),
            Operation::ExtendWrite(mark, mark_for, keep_for) => {
                OperationReply::WriteExtended(self.extend_write(now, mark, mark_for, keep_for))
            }
            Operation::FinishWrite(mark, load, keep_for) => {
                OperationReply::WriteFinished(self.finish_write(now, mark, load, keep_for))
            }
        }
    }

    /// Begins a new generation: from now on, a value that was read before is rejected.
    fn raise_generation(&mut self, now: u64) {
        self.generation = now.max(self.generation + 1);
        self.lease = None;
        self.written_at = now;
    }

    /// Corrects times that were written by a clock that was ahead: the time that remained when the
    /// record was written remains now. Generations do not fall.
    fn correct_future_times(&mut self, now: u64) {
        let ahead = self.written_at.saturating_sub(now);
        if ahead == 0 {
            return;
        }
        let ends = self.lease.iter_mut().chain(self.write_mark.iter_mut()).map(|held| &mut held.until);
        let ends = ends.chain(self.value.iter_mut().map(|kept| &mut kept.fresh_until));
        for end in ends.chain([&mut self.row_expected_until, &mut self.keep_until]) {
            *end = end.saturating_sub(ahead);
        }
        self.written_at = now;
    }

    /// Removes an expired mark, and begins a new generation: its writer has died or is suspended,
    /// and its write may have happened.
    fn expire_mark(&mut self, now: u64) {
        self.correct_future_times(now);
        if self.write_mark.is_some_and(|mark| mark.until <= now) {
            self.write_mark = None;
            self.raise_generation(now);
        }
    }

    /// Keeps the record at least until then.
    fn keep_until_at_least(&mut self, now: u64, until: u64) {
        self.written_at = now;
        self.keep_until = self.keep_until.max(until);
    }

    /// The value, if values may be served for `stale_for` after they were last fresh.
    fn servable_stale_value(&self, now: u64, stale_for: u64) -> Option<Data> {
        let usable = |kept: &&CachedValue| stale_for > 0 && now < kept.fresh_until + stale_for;
        self.value.as_ref().filter(usable).map(|kept| kept.data.clone())
    }

    /// Answers a reader's request: with a value, with the lease to load it, or with the lease to
    /// wait for.
    pub fn read(&mut self, now: u64, request: &ReadRequest) -> ReadReply {
        self.expire_mark(now);
        if self.generation == 0 {
            self.raise_generation(now);
        }
        let fresh = self.value.as_ref().filter(|kept| kept.generation == self.generation && now < kept.fresh_until);
        let free = self.lease.is_none_or(|lease| lease.until <= now || lease.id == request.lease);
        if self.write_mark.is_none()
            && let Some(kept) = fresh
        {
            let left = kept.fresh_until - now;
            if !free || kept.load_cost.saturating_mul(request.early_factor) < left.saturating_mul(1000) {
                return ReadReply::Hit(kept.data.clone());
            }
            let data = kept.data.clone();
            self.grant_lease(now, request);
            return ReadReply::Early(data, self.generation);
        }
        let old = self.servable_stale_value(now, request.stale_for);
        match (self.write_mark, self.lease, old) {
            (Some(_), _, Some(old)) => ReadReply::Stale(old),
            (Some(_), _, None) => ReadReply::WriteInProgress,
            (None, Some(_), Some(old)) if !free => ReadReply::Stale(old),
            (None, Some(lease), None) if !free => ReadReply::Wait(lease.id, lease.until - now),
            (None, _, old) => {
                self.grant_lease(now, request);
                ReadReply::Load(self.generation, old)
            }
        }
    }

    /// Gives the reader of this request the permission to load the value.
    fn grant_lease(&mut self, now: u64, request: &ReadRequest) {
        self.lease = Some(TimedId { id: request.lease, until: now + request.lease_time });
        self.keep_until_at_least(now, now + request.keep_for);
    }

    /// Stores a loader's value. The lease on record is accepted even after its time, unless another
    /// reader acquired it.
    ///
    /// # Errors
    /// Why the value was not accepted.
    pub fn store(&mut self, now: u64, load: LoadedValue) -> Result<(), StoreRefusal> {
        self.expire_mark(now);
        if self.lease.is_none_or(|lease| lease.id != load.lease) {
            let known = self.generation == load.generation && self.write_mark.is_none();
            return Err(if known { StoreRefusal::Overtaken } else { StoreRefusal::Invalidated });
        }
        self.lease = None;
        if load.version.is_some_and(|version| version < self.min_version) {
            return Err(StoreRefusal::Older);
        }
        if load.data.is_none() && now < self.row_expected_until {
            return Err(StoreRefusal::NoRow);
        }
        self.min_version = self.min_version.max(load.version.unwrap_or_default());
        self.set_value(now, load.data, load.load_cost, load.fresh_for, load.stale_for);
        Ok(())
    }

    fn set_value(&mut self, now: u64, data: Data, cost: u64, fresh_for: u64, stale_for: u64) {
        self.value =
            Some(CachedValue { data, generation: self.generation, fresh_until: now + fresh_for, load_cost: cost });
        self.keep_until_at_least(now, now + fresh_for + stale_for);
    }

    /// Releases a loader's lease without a value.
    pub fn give_up_lease(&mut self, lease: u128) {
        if self.lease.is_some_and(|held| held.id == lease) {
            self.lease = None;
        }
    }

    /// Records that the row has changed, and has at least this version if it is not 0. Until loads
    /// that began before are over, "not found" is not accepted, because it has no version to
    /// compare. The record stays as a tombstone for `keep_for`; so does the old value, if it may be
    /// served stale.
    pub fn invalidate(&mut self, now: u64, version: u64, stale_for: u64, keep_for: u64) {
        self.expire_mark(now);
        self.raise_generation(now);
        self.min_version = self.min_version.max(version);
        if version > 0 {
            self.row_expected_until = self.row_expected_until.max(now + keep_for);
        }
        self.make_stale_or_drop(now, stale_for);
        self.keep_until_at_least(now, now + keep_for);
    }

    /// Makes the value stale, or drops it if `stale_for` is 0: then it may not be served stale.
    fn make_stale_or_drop(&mut self, now: u64, stale_for: u64) {
        self.make_stale(now);
        if stale_for == 0 {
            self.value = None;
        }
    }

    /// Makes the value stale: the time for which it may still be served counts from now.
    fn make_stale(&mut self, now: u64) {
        if let Some(kept) = &mut self.value {
            kept.fresh_until = kept.fresh_until.min(now);
        }
    }

    /// Announces a write, with the token of the writer's lock. Returns the new generation, which
    /// the value of [`finish_write`](Self::finish_write) must have.
    ///
    /// # Errors
    /// The higher token of an earlier writer: this one must not write.
    pub fn begin_write(&mut self, now: u64, begin: &WriteRequest) -> Result<u64, u64> {
        self.expire_mark(now);
        if begin.token < self.highest_token {
            return Err(self.highest_token);
        }
        self.highest_token = begin.token;
        self.raise_generation(now);
        self.make_stale_or_drop(now, begin.stale_for);
        self.write_mark = Some(TimedId { id: begin.mark, until: now + begin.mark_time });
        self.keep_until_at_least(now, now + begin.mark_time + begin.keep_for);
        Ok(self.generation)
    }

    /// Extends the mark of a writer. Returns whether the mark is still set.
    pub fn extend_write(&mut self, now: u64, mark: u128, mark_for: u64, keep_for: u64) -> bool {
        self.expire_mark(now);
        let is_held = self.write_mark.is_some_and(|held| held.id == mark);
        if is_held {
            self.write_mark = Some(TimedId { id: mark, until: now + mark_for });
            self.keep_until_at_least(now, now + mark_for + keep_for);
        }
        is_held
    }

    /// Ends a write. `load` is the new value, if the writer knows it, with the mark as its lease.
    /// If another client invalidated meanwhile, it is unknown which write came last, so no value is
    /// stored.
    pub fn finish_write(&mut self, now: u64, mark: u128, load: Option<LoadedValue>, keep_for: u64) -> WriteEnd {
        self.expire_mark(now);
        let undisturbed = load.as_ref().is_none_or(|load| load.generation == self.generation);
        self.raise_generation(now);
        self.keep_until_at_least(now, now + keep_for);
        // If the mark had expired, a reader may have stored a value from before the commit.
        self.make_stale(now);
        if self.write_mark.is_none_or(|held| held.id != mark) {
            return WriteEnd::Overtaken;
        }
        self.write_mark = None;
        if !undisturbed {
            return WriteEnd::Overtaken;
        }
        if let Some(load) = load.filter(|load| load.version.is_none_or(|version| version >= self.min_version)) {
            self.min_version = self.min_version.max(load.version.unwrap_or_default());
            // The writer itself reports that it deleted the row.
            if load.data.is_none() {
                self.row_expected_until = 0;
            }
            self.set_value(now, load.data, load.load_cost, load.fresh_for, load.stale_for);
        }
        WriteEnd::MarkHeld
    }
}

/// How early a value is reloaded (XFetch), as a multiple of the duration of its load, in
/// thousandths: `-beta * ln(r)`, where `r` is `random` scaled to 0 to 1. 0, which means never, if
/// `beta` is 0.
pub fn early_factor(beta: f64, random: u32) -> u64 {
    if beta <= 0.0 {
        return 0;
    }
    let random = (f64::from(random) + 1.0) / (f64::from(u32::MAX) + 1.0);
    (-beta * random.ln() * 1000.0).min(1e6) as u64
}

/// `ttl` shortened at random by at most the fraction `jitter` (0 to 1), so that values that were
/// loaded together do not expire together.
pub fn jittered(ttl: Duration, jitter: f64, random: u32) -> Duration {
    ttl.mul_f64(1.0 - jitter.clamp(0.0, 1.0) * f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
#[path = "logic_tests.rs"]
mod tests;
