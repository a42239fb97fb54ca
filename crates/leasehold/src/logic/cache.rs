//! One key of a cache, and every step on it: the specification of the store.
//!
//! A record has a **generation**, which rises with each invalidation and each write; a **value** and the generation that it is
//! of; a **lease**, which one reader at a time has to load the value; and a **mark** while somebody writes. Whatever raises the
//! generation drops the lease, and a value is only let in with the lease that is on record: so a value that was read before an
//! invalidation is refused after it, and also if the record was lost meanwhile, since its lease was lost with it.
//!
//! All times are microseconds on the store's own clock.

use std::time::Duration;

/// A lease or a mark: whose it is, and until when others respect it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Held {
    /// Made by whoever asks, before it asks: a repeated request is the same one.
    pub id: u128,
    /// The end, on the store's clock.
    pub until: u64,
}

/// What a loader found; `None`: that there is nothing.
pub type Data = Option<Vec<u8>>;

/// A value that was let in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kept {
    /// What it is.
    pub data: Data,
    /// The generation that it is of. It is stale if the record has another.
    pub of: u64,
    /// From when on it is stale in any case.
    pub fresh_until: u64,
    /// How long the load took.
    pub cost: u64,
}

/// One key's record. The default is that there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Rises with each invalidation and write; 0 if there is no record.
    pub generation: u64,
    /// The value, fresh or stale.
    pub value: Option<Kept>,
    /// Who loads.
    pub lease: Option<Held>,
    /// Who writes.
    pub mark: Option<Held>,
    /// The highest token that a writer had.
    pub token: u64,
    /// The lowest version of the row that may be let in.
    pub version: u64,
    /// Until when it is not believed that there is nothing: somebody said that there is a row of a version, which a replica may not have yet.
    pub row_until: u64,
    /// When the record may be forgotten.
    pub keep_until: u64,
    /// When it was last written. If that is to come, the clock was set back, or a server took over whose clock is behind.
    pub written: u64,
}

/// A reader's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The id of the lease, should there be one to get.
    pub lease: u128,
    /// How long others leave the load to whoever has the lease.
    pub lease_for: u64,
    /// How long after a lease was given its value may still be let in.
    pub keep_for: u64,
    /// How long a stale value may be served; 0 for never.
    pub stale_for: u64,
    /// What [`early_factor`] said.
    pub early: u64,
}

/// What a reader found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A fresh value.
    Hit(Data),
    /// A fresh value, and the lease: load it anew before it ends.
    Early(Data, u64),
    /// A stale value, which may be served while another loads or writes.
    Stale(Data),
    /// The lease: load, with the generation that the value will be of, and what may be served if the load fails.
    Load(u64, Option<Data>),
    /// Another has the lease: wait for it, at most so long.
    Wait(u128, u64),
    /// It is being written: load; nothing will be let in.
    Written,
}

/// A writer's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begin {
    /// The id of the mark.
    pub mark: u128,
    /// The token of the writer's lock.
    pub token: u64,
    /// How long the mark stands if the writer is not heard of again.
    pub mark_for: u64,
    /// How long the old value may be served; 0 for never.
    pub stale_for: u64,
    /// How long the record is kept after that.
    pub keep_for: u64,
}

/// What is to be let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// The lease that it was loaded under.
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

/// Why a value was not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There was an invalidation or a write since the lease was given, or the record was lost.
    Invalidated,
    /// The lease ended, and another has it: nothing was invalidated.
    Overtaken,
    /// The row is older than one that is known.
    Older,
    /// There is said to be nothing where a row is known to have been a short while ago: it may be deleted, or not there yet.
    Absent,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// [`Entry::ask`].
    Ask(Ask),
    /// [`Entry::set`].
    Set(Load),
    /// [`Entry::give_up`] of a lease; those who wait are told why, if there is something to tell.
    GiveUp(u128, String),
    /// [`Entry::invalidate`]: the least version, for how long the old value and for how long the record is kept.
    Invalidate(u64, u64, u64),
    /// [`Entry::begin`].
    Begin(Begin),
    /// [`Entry::extend`]: the mark, and for how long it and then the record is kept.
    Extend(u128, u64, u64),
    /// [`Entry::finish`]: the mark, the value, and for how long the record is kept.
    Finish(u128, Option<Load>, u64),
}

/// The answer to a step.
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
    /// The mark was there to the end; the new value is in the cache, if there was one to put there.
    Kept,
    /// The mark had ended, or is a newer writer's: what was written is not in the cache, and nothing older is.
    Overtaken,
}

impl Entry {
    /// Takes one step.
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

    /// Everything that was read before this moment is refused from now on.
    fn bump(&mut self, now: u64) {
        self.generation = now.max(self.generation + 1);
        self.lease = None;
        self.written = now;
    }

    /// Times that a clock wrote which was ahead count from now on: what was left when the record was written is left now. Generations do not fall.
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

    /// A writer that has not been heard of is gone; nobody knows what it has done.
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

    /// The value, if it may be served `stale_for` after its end.
    fn old(&self, now: u64, stale_for: u64) -> Option<Data> {
        let usable = |kept: &&Kept| stale_for > 0 && now < kept.fresh_until + stale_for;
        self.value.as_ref().filter(usable).map(|kept| kept.data.clone())
    }

    /// A reader comes.
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

    /// A loader brings a value. Whoever has the lease on record may, also after its time, as long as nobody else took it.
    ///
    /// # Errors
    /// Why it was not let in.
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

    /// A loader goes without a value.
    pub fn give_up(&mut self, lease: u128) {
        if self.lease.is_some_and(|held| held.id == lease) {
            self.lease = None;
        }
    }

    /// The row has changed, and has at least this version, if it is not 0. Until loads that began before are over, nobody is believed that there
    /// is none: "nothing" has no version that could be compared. The tombstone that this leaves is kept for `keep_for`; the old value is, too, if it may be
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

    /// The value is old from now on, or gone.
    fn age(&mut self, now: u64, stale_for: u64) {
        self.outdate(now);
        if stale_for == 0 {
            self.value = None;
        }
    }

    /// The value is old from now on: what it may be served for is counted from here.
    fn outdate(&mut self, now: u64) {
        if let Some(kept) = &mut self.value {
            kept.fresh_until = kept.fresh_until.min(now);
        }
    }

    /// A writer is about to write, with the token of its lock. The generation comes back with the load of [`finish`](Self::finish).
    ///
    /// # Errors
    /// The token of a newer writer that was here: this one must not write.
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

    /// A writer is still at it. Whether its mark still stands.
    pub fn extend(&mut self, now: u64, mark: u128, mark_for: u64, keep_for: u64) -> bool {
        self.settle(now);
        let ours = self.mark.is_some_and(|held| held.id == mark);
        if ours {
            self.mark = Some(Held { id: mark, until: now + mark_for });
            self.keep(now, now + mark_for + keep_for);
        }
        ours
    }

    /// A writer is done, and says what there is now, if it knows. `load` has its mark for a lease. If others have invalidated
    /// meanwhile, nobody knows who wrote last: nothing is put into the cache.
    pub fn finish(&mut self, now: u64, mark: u128, load: Option<Load>, keep_for: u64) -> Finished {
        self.settle(now);
        let undisturbed = load.as_ref().is_none_or(|load| load.generation == self.generation);
        self.bump(now);
        self.keep(now, now + keep_for);
        // If the mark had ended, a reader may have let in what was there before the commit.
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
            // Whoever wrote last knows that it is deleted.
            if load.data.is_none() {
                self.row_until = 0;
            }
            self.fill(now, load.data, load.cost, load.fresh_for, load.stale_for);
        }
        Finished::Kept
    }
}

/// How early a value is loaded anew (XFetch): by `-beta * ln(dice)` times what its load costs, in thousandths. 0 for `beta` is
/// never.
pub fn early_factor(beta: f64, dice: u32) -> u64 {
    if beta <= 0.0 {
        return 0;
    }
    let dice = (f64::from(dice) + 1.0) / (f64::from(u32::MAX) + 1.0);
    (-beta * dice.ln() * 1000.0).min(1e6) as u64
}

/// A TTL of which a random part, at most `jitter` of it, is taken off, so that what was loaded together does not end together.
pub fn jittered(ttl: Duration, jitter: f64, dice: u32) -> Duration {
    ttl.mul_f64(1.0 - jitter.clamp(0.0, 1.0) * f64::from(dice) / f64::from(u32::MAX))
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
