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

/// A lease or a mark: its id, and until when others respect it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Held {
    /// Chosen by the client before it sends the request: a repeated request is the same one.
    pub id: u128,
    /// The end, on the store's clock.
    pub until: u64,
}

/// What a loader found; `None`: the row does not exist.
pub type Data = Option<Vec<u8>>;

/// A value that was accepted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kept {
    /// The value itself.
    pub data: Data,
    /// The generation that it belongs to. The value is stale if the record has another.
    pub of: u64,
    /// From this time on it is stale in any case.
    pub fresh_until: u64,
    /// How long the load took.
    pub cost: u64,
}

/// One key's record. The default means that there is no record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Rises with each invalidation and write; 0 if there is no record.
    pub generation: u64,
    /// The value, fresh or stale.
    pub value: Option<Kept>,
    /// The reader that loads.
    pub lease: Option<Held>,
    /// The client that writes.
    pub mark: Option<Held>,
    /// The highest token that a writer had.
    pub token: u64,
    /// The lowest version of the row that is accepted.
    pub version: u64,
    /// Until this time, "not found" is not accepted: a client reported a version of the row, which
    /// a replica may not have yet.
    pub row_until: u64,
    /// When the record may be dropped.
    pub keep_until: u64,
    /// When it was last written. A time in the future means that the clock was set back, or that a
    /// server with a slower clock took over.
    pub written: u64,
}

/// A reader's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The id of the lease, if one can be granted.
    pub lease: u128,
    /// How long other readers leave the load to the one that has the lease.
    pub lease_for: u64,
    /// How long after the grant of a lease its value may still be accepted.
    pub keep_for: u64,
    /// How long a stale value may be served; 0 for never.
    pub stale_for: u64,
    /// The result of [`early_factor`].
    pub early: u64,
}

/// The answer to a reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A fresh value.
    Hit(Data),
    /// A fresh value, and the lease: reload it before it expires.
    Early(Data, u64),
    /// A stale value, which may be served while another client loads or writes.
    Stale(Data),
    /// The lease: load. With the generation that the value will belong to, and a value that may be
    /// served if the load fails.
    Load(u64, Option<Data>),
    /// Another reader has the lease: wait for it, at most this long.
    Wait(u128, u64),
    /// A client is writing: load; the value will not be accepted.
    Written,
}

/// A writer's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begin {
    /// The id of the mark.
    pub mark: u128,
    /// The token of the writer's lock.
    pub token: u64,
    /// How long the mark lasts if the writer does not extend it.
    pub mark_for: u64,
    /// How long the old value may be served; 0 for never.
    pub stale_for: u64,
    /// How long the record is kept after that.
    pub keep_for: u64,
}

/// A value to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// The lease under which it was loaded.
    pub lease: u128,
    /// The generation that came with the lease.
    pub generation: u64,
    /// What the loader found.
    pub data: Data,
    /// The version of the row, if there is one.
    pub version: Option<u64>,
    /// How long the load took.
    pub cost: u64,
    /// How long it is fresh.
    pub fresh_for: u64,
    /// How long it may be served after that.
    pub stale_for: u64,
}

/// Why a value was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There was an invalidation or a write since the lease was granted, or the record was lost.
    Invalidated,
    /// The lease expired, and another reader has it: nothing was invalidated.
    Overtaken,
    /// The row is older than one that is known.
    Older,
    /// The loader found no row where one was known a short while ago: it may be deleted, or not
    /// replicated yet.
    Absent,
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// [`Entry::ask`].
    Ask(Ask),
    /// [`Entry::set`].
    Set(Load),
    /// [`Entry::give_up`] of a lease; waiting readers get the reason, if there is one.
    GiveUp(u128, String),
    /// [`Entry::invalidate`]: the lowest version, how long the old value is kept, and how long the
    /// record is kept.
    Invalidate(u64, u64, u64),
    /// [`Entry::begin`].
    Begin(Begin),
    /// [`Entry::extend`]: the mark, how long it lasts, and how long the record is kept after that.
    Extend(u128, u64, u64),
    /// [`Entry::finish`]: the mark, the value, and how long the record is kept.
    Finish(u128, Option<Load>, u64),
}

/// The answer to an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// To [`Step::Ask`].
    Found(Found),
    /// To [`Step::Set`].
    Set(Result<(), Refused>),
    /// To [`Step::GiveUp`] and [`Step::Invalidate`].
    Done,
    /// To [`Step::Begin`].
    Begun(Result<u64, u64>),
    /// To [`Step::Extend`].
    Extended(bool),
    /// To [`Step::Finish`].
    Finished(Finished),
}

/// How a write ended for the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finished {
    /// The mark lasted to the end; the new value is in the cache, if there was one.
    Kept,
    /// The mark had expired, or belongs to a newer writer: the cache has neither the written value
    /// nor an older one.
    Overtaken,
}

impl Entry {
    /// Performs one operation.
    pub fn step(&mut self, now: u64, step: Step) -> Said {
        match step {
            Step::Ask(ask) => Said::Found(self.ask(now, &ask)),
            Step::Set(load) => Said::Set(self.set(now, load)),
            Step::GiveUp(lease, _) => {
                self.give_up(lease);
                Said::Done
            }
            Step::Invalidate(version, stale_for, keep_for) => {
                self.invalidate(now, version, stale_for, keep_for);
                Said::Done
            }
            Step::Begin(begin) => Said::Begun(self.begin(now, &begin)),
            Step::Extend(mark, mark_for, keep_for) => Said::Extended(self.extend(now, mark, mark_for, keep_for)),
            Step::Finish(mark, load, keep_for) => Said::Finished(self.finish(now, mark, load, keep_for)),
        }
    }

    /// Rejects every value that was read before now.
    fn bump(&mut self, now: u64) {
        self.generation = now.max(self.generation + 1);
        self.lease = None;
        self.written = now;
    }

    /// Corrects times that were written by a clock that was ahead: the time that remained when the
    /// record was written remains now. Generations do not fall.
    fn rewind(&mut self, now: u64) {
        let ahead = self.written.saturating_sub(now);
        if ahead == 0 {
            return;
        }
        let ends = self.lease.iter_mut().chain(self.mark.iter_mut()).map(|held| &mut held.until);
        let ends = ends.chain(self.value.iter_mut().map(|kept| &mut kept.fresh_until));
        for end in ends.chain([&mut self.row_until, &mut self.keep_until]) {
            *end = end.saturating_sub(ahead);
        }
        self.written = now;
    }

    /// A writer that did not extend its mark is gone; it is unknown what it has written.
    fn settle(&mut self, now: u64) {
        self.rewind(now);
        if self.mark.is_some_and(|mark| mark.until <= now) {
            self.mark = None;
            self.bump(now);
        }
    }

    fn keep(&mut self, now: u64, until: u64) {
        self.written = now;
        self.keep_until = self.keep_until.max(until);
    }

    /// The value, if it may be served for `stale_for` after its end.
    fn old(&self, now: u64, stale_for: u64) -> Option<Data> {
        let usable = |kept: &&Kept| stale_for > 0 && now < kept.fresh_until + stale_for;
        self.value.as_ref().filter(usable).map(|kept| kept.data.clone())
    }

    /// Handles a reader's request.
    pub fn ask(&mut self, now: u64, ask: &Ask) -> Found {
        self.settle(now);
        if self.generation == 0 {
            self.bump(now);
        }
        let fresh = self.value.as_ref().filter(|kept| kept.of == self.generation && now < kept.fresh_until);
        let free = self.lease.is_none_or(|lease| lease.until <= now || lease.id == ask.lease);
        if self.mark.is_none()
            && let Some(kept) = fresh
        {
            let left = kept.fresh_until - now;
            if !free || kept.cost.saturating_mul(ask.early) < left.saturating_mul(1000) {
                return Found::Hit(kept.data.clone());
            }
            let data = kept.data.clone();
            self.lend(now, ask);
            return Found::Early(data, self.generation);
        }
        let old = self.old(now, ask.stale_for);
        match (self.mark, self.lease, old) {
            (Some(_), _, Some(old)) => Found::Stale(old),
            (Some(_), _, None) => Found::Written,
            (None, Some(_), Some(old)) if !free => Found::Stale(old),
            (None, Some(lease), None) if !free => Found::Wait(lease.id, lease.until - now),
            (None, _, old) => {
                self.lend(now, ask);
                Found::Load(self.generation, old)
            }
        }
    }

    fn lend(&mut self, now: u64, ask: &Ask) {
        self.lease = Some(Held { id: ask.lease, until: now + ask.lease_for });
        self.keep(now, now + ask.keep_for);
    }

    /// Stores a loader's value. The lease on record is accepted even after its time, as long as no
    /// other reader took it.
    ///
    /// # Errors
    /// Why the value was not accepted.
    pub fn set(&mut self, now: u64, load: Load) -> Result<(), Refused> {
        self.settle(now);
        if self.lease.is_none_or(|lease| lease.id != load.lease) {
            let known = self.generation == load.generation && self.mark.is_none();
            return Err(if known { Refused::Overtaken } else { Refused::Invalidated });
        }
        self.lease = None;
        if load.version.is_some_and(|version| version < self.version) {
            return Err(Refused::Older);
        }
        if load.data.is_none() && now < self.row_until {
            return Err(Refused::Absent);
        }
        self.version = self.version.max(load.version.unwrap_or_default());
        self.fill(now, load.data, load.cost, load.fresh_for, load.stale_for);
        Ok(())
    }

    fn fill(&mut self, now: u64, data: Data, cost: u64, fresh_for: u64, stale_for: u64) {
        self.value = Some(Kept { data, of: self.generation, fresh_until: now + fresh_for, cost });
        self.keep(now, now + fresh_for + stale_for);
    }

    /// A loader gives up without a value.
    pub fn give_up(&mut self, lease: u128) {
        if self.lease.is_some_and(|held| held.id == lease) {
            self.lease = None;
        }
    }

    /// Records that the row has changed, and has at least this version if it is not 0. Until loads
    /// that began before are over, "not found" is not accepted, because it has no version to
    /// compare. The record stays as a tombstone for `keep_for`; so does the old value, if it may be
    /// served stale.
    pub fn invalidate(&mut self, now: u64, version: u64, stale_for: u64, keep_for: u64) {
        self.settle(now);
        self.bump(now);
        self.version = self.version.max(version);
        if version > 0 {
            self.row_until = self.row_until.max(now + keep_for);
        }
        self.age(now, stale_for);
        self.keep(now, now + keep_for);
    }

    /// Ages the value, or drops it if it may not be served stale.
    fn age(&mut self, now: u64, stale_for: u64) {
        self.outdate(now);
        if stale_for == 0 {
            self.value = None;
        }
    }

    /// Ages the value: the time for which it may be served counts from now.
    fn outdate(&mut self, now: u64) {
        if let Some(kept) = &mut self.value {
            kept.fresh_until = kept.fresh_until.min(now);
        }
    }

    /// Announces a write, with the token of the writer's lock. Returns the generation, which the
    /// load of [`finish`](Self::finish) must carry.
    ///
    /// # Errors
    /// The token of a newer writer: this one must not write.
    pub fn begin(&mut self, now: u64, begin: &Begin) -> Result<u64, u64> {
        self.settle(now);
        if begin.token < self.token {
            return Err(self.token);
        }
        self.token = begin.token;
        self.bump(now);
        self.age(now, begin.stale_for);
        self.mark = Some(Held { id: begin.mark, until: now + begin.mark_for });
        self.keep(now, now + begin.mark_for + begin.keep_for);
        Ok(self.generation)
    }

    /// Extends the mark of a writer. Returns whether the mark is still set.
    pub fn extend(&mut self, now: u64, mark: u128, mark_for: u64, keep_for: u64) -> bool {
        self.settle(now);
        let ours = self.mark.is_some_and(|held| held.id == mark);
        if ours {
            self.mark = Some(Held { id: mark, until: now + mark_for });
            self.keep(now, now + mark_for + keep_for);
        }
        ours
    }

    /// Ends a write. `load` is the new value, if the writer knows it, with the mark as its lease.
    /// If another client invalidated meanwhile, it is unknown which write came last, so no value is
    /// stored.
    pub fn finish(&mut self, now: u64, mark: u128, load: Option<Load>, keep_for: u64) -> Finished {
        self.settle(now);
        let undisturbed = load.as_ref().is_none_or(|load| load.generation == self.generation);
        self.bump(now);
        self.keep(now, now + keep_for);
        // If the mark had expired, a reader may have stored a value from before the commit.
        self.outdate(now);
        if self.mark.is_none_or(|held| held.id != mark) {
            return Finished::Overtaken;
        }
        self.mark = None;
        if !undisturbed {
            return Finished::Overtaken;
        }
        if let Some(load) = load.filter(|load| load.version.is_none_or(|version| version >= self.version)) {
            self.version = self.version.max(load.version.unwrap_or_default());
            // The last writer knows that the row is deleted.
            if load.data.is_none() {
                self.row_until = 0;
            }
            self.fill(now, load.data, load.cost, load.fresh_for, load.stale_for);
        }
        Finished::Kept
    }
}

/// How early a value is reloaded (XFetch): by `-beta * ln(dice)` times the cost of its load, in
/// thousandths. With 0 for `beta` it never is.
pub fn early_factor(beta: f64, dice: u32) -> u64 {
    if beta <= 0.0 {
        return 0;
    }
    let dice = (f64::from(dice) + 1.0) / (f64::from(u32::MAX) + 1.0);
    (-beta * dice.ln() * 1000.0).min(1e6) as u64
}

/// A TTL minus a random part of at most `jitter` of it, so that values that were loaded together do
/// not expire together.
pub fn jittered(ttl: Duration, jitter: f64, dice: u32) -> Duration {
    ttl.mul_f64(1.0 - jitter.clamp(0.0, 1.0) * f64::from(dice) / f64::from(u32::MAX))
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
