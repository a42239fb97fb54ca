//! The queue of a lock, computed by every client from the same list: which claims hold, which wait,
//! and which claim each waiter watches.
//!
//! For engines that keep one ordered list of claims and nothing else. Every client that reads the
//! list reaches the same result:
//! 1. The longest prefix of compatible claims holds. New claims join at the end, and departures
//!    only shorten the list, so a holder stays a holder.
//! 2. A re-entrant claim shares the position of its owner's first claim, as a *rider*, whatever
//!    waits behind that claim.
//! 3. A waiter watches one claim ahead of it. When that claim leaves, the waiter knows without a
//!    request whether it is next: the list ahead of it can only have become shorter.

use super::admission::{covers, fits_owned, other_limit};
use super::table::Refusal;
use crate::claim::{ClaimId, Mode};

/// One claim in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stand {
    /// The claim's id.
    pub claim: ClaimId,
    /// The mode it holds, or requests.
    pub mode: Mode,
    /// The owner that may re-enter, as a number unique to that owner.
    pub owner: Option<u64>,
    /// The first claim of its owner, if this one re-entered.
    pub ride: Option<Ride>,
    /// The order of arrival; wraps around.
    pub seq: i32,
}

/// The position of a re-entrant claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ride {
    /// The position of the owner's first claim.
    pub under: i32,
    /// The owner's token.
    pub token: u64,
}

/// Identifies a node: a claim and its sequence number. Neither is unique: a claim may have two
/// nodes for a while, and many nodes share a number once a server has used up its numbers.
pub type Id = (ClaimId, i32);

impl Stand {
    /// The node's id.
    pub fn id(&self) -> Id {
        (self.claim, self.seq)
    }

    /// Its position: its own, or that of the claim it rides on.
    pub fn place(&self) -> i32 {
        self.ride.map_or(self.seq, |ride| ride.under)
    }
}

/// The state of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It holds.
    Holds,
    /// Its owner holds through this claim: the new one may ride on it.
    MayRide(Id),
    /// It waits behind this many other waiters.
    Waits {
        /// The number of waiters ahead.
        ahead: usize,
        /// The claim that it watches.
        watch: Watch,
    },
    /// It can never be granted beside the claims in the list.
    Refused(Refusal),
    /// It is not in the list.
    Absent,
}

/// What a waiter watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// One claim.
    One(Id),
    /// All holders: any of them may free permits for the first waiter for permits.
    All,
}

/// The list, in order. A claim may appear twice while a session that its client has given up is not
/// over yet. The first of the two then no longer belongs to the client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line(Vec<Stand>);

impl Line {
    /// Sorts claims. Their positions must lie less than half of the number range apart, so that the
    /// order holds across the wrap-around.
    pub fn new(mut stands: Vec<Stand>) -> Self {
        let base = stands.first().map_or(0, Stand::place);
        let after = |place: i32| place.wrapping_sub(base);
        stands.sort_by_key(|stand| (after(stand.place()), stand.ride.is_some(), after(stand.seq)));
        Self(stands)
    }

    /// Takes claims that are already in order.
    pub fn in_order(stands: Vec<Stand>) -> Self {
        Self(stands)
    }

    /// All claims, in order.
    pub fn stands(&self) -> &[Stand] {
        &self.0
    }

    /// One claim.
    pub fn find(&self, id: Id) -> Option<&Stand> {
        self.0.iter().find(|stand| stand.id() == id)
    }

    /// Removes a claim that left.
    pub fn remove(&mut self, id: Id) {
        self.0.retain(|stand| stand.id() != id);
    }

    /// Whether there is a claim behind this one.
    pub fn has_behind(&self, id: Id) -> bool {
        self.0.last().is_some_and(|last| last.id() != id)
    }

    /// How many claims hold, counted from the first.
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

    /// Whether a claim holds as soon as the claim that it watches has left.
    pub fn is_next_after(&self, id: Id, watch: Watch) -> bool {
        let Watch::One(other) = watch else { return false };
        let mut without = self.clone();
        without.remove(other);
        without.standing(id, false) == Standing::Holds
    }

    /// The state of a claim; `new` if it has just joined.
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
            // The first claim defines the limit: a claim with another limit is about to be refused,
            // too.
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

/// What a claim in this mode watches, given the claims ahead of it, the first `holders` of which
/// hold.
fn watch(mode: Mode, ahead: &[Stand], holders: usize) -> Watch {
    let last = |stands: &[Stand]| stands.last().map_or(Watch::All, |stand| Watch::One(stand.id()));
    let kin = |stand: &&Stand| match mode {
        Mode::Exclusive => false,
        Mode::Shared => stand.mode == Mode::Shared,
        Mode::Permits { .. } => matches!(stand.mode, Mode::Permits { .. }),
    };
    match ahead.iter().rev().find(|stand| !kin(stand)) {
        Some(stranger) => Watch::One(stranger.id()),
        // Permits only: wait for the grant of the waiter just ahead, or, as the first waiter, for
        // any holder.
        None if ahead.len() > holders => last(ahead),
        None => Watch::All,
    }
}

#[cfg(test)]
#[path = "line_tests.rs"]
mod tests;
