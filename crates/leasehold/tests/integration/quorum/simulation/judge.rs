//! The properties that must always hold, judged by true time, which no participant of the
//! simulation knows.

use std::fmt;

use leasehold::logic::fence::{Seen, admits};
use leasehold::{Owner, Token};

/// A grant of the lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub(super) actor: usize,
    pub(super) owner: u128,
    pub(super) token: Token,
    /// When its attempt started, and when it was granted.
    pub(super) began: u64,
    pub(super) at: u64,
    /// Until when it is valid, unless it is released.
    pub(super) until: u64,
    pub(super) open: bool,
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { actor, owner, token, began, at, until, .. } = self;
        write!(f, "{actor} (owner {owner}) with token {token}, begun {began}, granted {at}, until {until} µs")
    }
}

/// A violated property.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Breach {
    TwoHolders,
    TokenOrder,
    SharedToken,
    Fence,
    Stuck,
    LeftOver,
}

#[derive(Debug, Default)]
pub(super) struct Judge {
    /// The clocks of the nodes keep to the drift. Otherwise the judge checks only what needs no
    /// clock.
    clocks_hold: bool,
    pub(super) grants: Vec<Grant>,
    seen: Seen,
    /// The grants whose writes the resource accepted.
    accepted: Vec<usize>,
    pub(super) shared: usize,
    pub(super) fenced_off: usize,
    pub(super) breaches: Vec<(Breach, String)>,
}

impl Judge {
    pub(super) fn new(clocks_hold: bool) -> Self {
        Self { clocks_hold, ..Self::default() }
    }

    fn blame(&mut self, breach: Breach, what: String) {
        self.breaches.push((breach, what));
    }

    /// An actor acquired the lock. Returns the index of the grant.
    pub(super) fn granted(&mut self, grant: Grant) -> usize {
        let mut blames = Vec::new();
        for other in &self.grants {
            let beside = other.open && other.until > grant.at;
            if other.owner == grant.owner {
                if beside && self.clocks_hold && other.token != grant.token {
                    blames.push((Breach::SharedToken, format!("{grant}; beside {other}")));
                }
                self.shared += usize::from(beside && other.token == grant.token);
                continue;
            }
            if beside && self.clocks_hold {
                blames.push((Breach::TwoHolders, format!("{grant}; beside {other}")));
            }
            // If clocks jump, two overlapping attempts may have any order; their tokens differ all
            // the same.
            let later = self.clocks_hold || grant.began > other.at;
            if grant.token == other.token || later && grant.token < other.token {
                blames.push((Breach::TokenOrder, format!("{grant}; after {other}")));
            }
        }
        self.breaches.extend(blames);
        self.grants.push(grant);
        self.grants.len() - 1
    }

    pub(super) fn extended(&mut self, grant: usize, until: u64) {
        self.grants[grant].until = until;
    }

    pub(super) fn ended(&mut self, grant: usize) {
        self.grants[grant].open = false;
    }

    /// An actor writes to the resource, perhaps long after its grant ended.
    pub(super) fn writes(&mut self, grant: usize) -> bool {
        let Grant { token, owner, .. } = self.grants[grant];
        let owner = Some(Owner::from_bits(owner));
        if !admits(self.seen, token, owner) {
            self.fenced_off += 1;
            return false;
        }
        self.seen = Seen { token, owner };
        let newer = |earlier: &&usize| {
            let (earlier, now) = (self.grants[**earlier], self.grants[grant]);
            earlier.owner != now.owner && earlier.began > now.at
        };
        if let Some(earlier) = self.accepted.iter().find(newer) {
            let what = format!("accepted: {}; after {}", self.grants[grant], self.grants[*earlier]);
            self.blame(Breach::Fence, what);
        }
        self.accepted.push(grant);
        true
    }

    pub(super) fn stuck(&mut self, what: &str) {
        self.blame(Breach::Stuck, what.into());
    }

    pub(super) fn left_over(&mut self, what: String) {
        self.blame(Breach::LeftOver, what);
    }
}
