//! The line before a lock, as every client reads it from the same list: who holds, who waits, and whom each watches.
//!
//! For engines that keep one ordered list of claims and nothing else. Everybody who has the list comes to the same conclusion:
//! 1. The longest start of the list that fits together holds. Whoever comes later stands at the end, and whoever leaves only
//!    shortens it: who holds once goes on holding.
//! 2. An owner that re-enters stands with its first claim, as a *rider*, whoever waits behind that.
//! 3. A waiter watches one party ahead of it. When that one leaves, it knows without asking whether it is next: the list
//!    ahead of it can only have become shorter.

use super::admission::{covers, fits_owned, other_limit};
use super::table::Refusal;
use crate::claim::{ClaimId, Mode};

/// One claim in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stand {
    /// Which claim.
    pub claim: ClaimId,
    /// How it holds, or wants to.
    pub mode: Mode,
    /// Who may re-enter, as a number that only they have.
    pub owner: Option<u64>,
    /// With whom it stands, if it re-entered.
    pub ride: Option<Ride>,
    /// The order of arrival; wraps around.
    pub seq: i32,
}

/// Where a re-entered claim stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ride {
    /// The place of the owner's first claim.
    pub under: i32,
    /// The owner's token.
    pub token: u64,
}

/// Which node: a claim, and its number. Neither alone is enough: a claim may have two nodes for a while, and where a server's numbers
/// are used up, many nodes have the same.
pub type Id = (ClaimId, i32);

impl Stand {
    /// Which node it is.
    pub fn id(&self) -> Id {
        (self.claim, self.seq)
    }

    /// Its place: its own, or that of the claim with which it stands.
    pub fn place(&self) -> i32 {
        self.ride.map_or(self.seq, |ride| ride.under)
    }
}

/// How a claim stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It holds.
    Holds,
    /// Its owner holds by this one: it may stand with it.
    MayRide(Id),
    /// It waits behind so many other waiters.
    Waits {
        /// How many of them.
        ahead: usize,
        /// Whom it watches.
        watch: Watch,
    },
    /// It can never hold beside what is there.
    Refused(Refusal),
    /// It is not in the list.
    Absent,
}

/// Whom a waiter watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// This one.
    One(Id),
    /// All of them: the next in line for permits, who may be freed by any holder.
    All,
}

/// The list, in order. A claim may stand there twice, while a session that its client has given up
/// is not over yet, and the first of the two is not its own any more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line(Vec<Stand>);

impl Line {
    /// Puts claims in order. Their places lie less than half of all numbers apart, so that the order holds where they wrap around.
    pub fn new(mut stands: Vec<Stand>) -> Self {
        let base = stands.first().map_or(0, Stand::place);
        let after = |place: i32| place.wrapping_sub(base);
        stands.sort_by_key(|stand| (after(stand.place()), stand.ride.is_some(), after(stand.seq)));
        Self(stands)
    }

    /// Takes claims that are in order already.
    pub fn in_order(stands: Vec<Stand>) -> Self {
        Self(stands)
    }

    /// Everybody, in order.
    pub fn stands(&self) -> &[Stand] {
        &self.0
    }

    /// One of them.
    pub fn find(&self, id: Id) -> Option<&Stand> {
        self.0.iter().find(|stand| stand.id() == id)
    }

    /// One has left.
    pub fn remove(&mut self, id: Id) {
        self.0.retain(|stand| stand.id() != id);
    }

    /// Whether somebody stands behind this one.
    pub fn has_behind(&self, id: Id) -> bool {
        self.0.last().is_some_and(|last| last.id() != id)
    }

    /// How many of them hold, from the first on.
    pub fn holders(&self) -> usize {
        let mut count = 0;
        for stand in &self.0 {
            let held = &self.0[..count];
            let holds_already = stand.owner.is_some() && held.iter().any(|other| other.owner == stand.owner);
            let enters = stand.ride.is_some()
                || (!holds_already && fits_owned(stand.mode, held.iter().map(|held| (held.owner, held.mode))));
            if !enters {
                break;
            }
            count += 1;
        }
        count
    }

    /// Whether a claim holds as soon as the one that it watches has left.
    pub fn is_next_after(&self, id: Id, watch: Watch) -> bool {
        let Watch::One(other) = watch else { return false };
        let mut without = self.clone();
        without.remove(other);
        without.standing(id, false) == Standing::Holds
    }

    /// How a claim stands; `new` if it has just come.
    pub fn standing(&self, id: Id, new: bool) -> Standing {
        let Some(at) = self.0.iter().position(|stand| stand.id() == id) else { return Standing::Absent };
        let (me, ahead) = (&self.0[at], &self.0[..at]);
        if me.ride.is_some() {
            return Standing::Holds;
        }
        let holders = self.holders();
        let own = || self.0[..holders.min(at)].iter().filter(|held| me.owner.is_some() && held.owner == me.owner);
        let host = own().find(|held| covers(held.mode, me.mode));
        if new {
            // The first says what the limit is: whoever has another is about to be refused, too.
            let first = ahead.iter().find(|other| matches!(other.mode, Mode::Permits { .. }));
            if let Some(limit) = first.and_then(|first| other_limit(me.mode, first.mode)) {
                return Standing::Refused(Refusal::OtherLimit(limit));
            }
            if let (None, Some(held)) = (host, own().next()) {
                return Standing::Refused(Refusal::Upgrade(held.mode));
            }
        }
        if at < holders {
            return Standing::Holds;
        }
        if let Some(host) = host.filter(|_| new || at == holders) {
            return Standing::MayRide(host.id());
        }
        Standing::Waits { ahead: at - holders, watch: watch(me.mode, ahead, holders) }
    }
}

/// Whom one in this mode watches, of those ahead, of whom the first ones hold.
fn watch(mode: Mode, ahead: &[Stand], holders: usize) -> Watch {
    let last = |stands: &[Stand]| stands.last().map_or(Watch::All, |stand| Watch::One(stand.id()));
    let kin = |stand: &&Stand| match mode {
        Mode::Exclusive => false,
        Mode::Shared => stand.mode == Mode::Shared,
        Mode::Permits { .. } => matches!(stand.mode, Mode::Permits { .. }),
    };
    match ahead.iter().rev().find(|stand| !kin(stand)) {
        Some(stranger) => Watch::One(stranger.id()),
        // Permits only: the one just ahead tells when it is let in, or any holder lets the first waiter in.
        None if ahead.len() > holders => last(ahead),
        None => Watch::All,
    }
}

#[cfg(test)]
#[path = "line_tests.rs"]
mod tests;
