//! The properties that must always hold, judged by true time, which no participant of the
//! simulation knows.

use std::fmt;

use leasehold::internals::logic::fence::{FenceState, admits};
use leasehold::{Owner, Token};

/// A grant of the lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub(super) actor: usize,
    pub(super) owner: u128,
    pub(super) token: Token,
    /// When its attempt started, and when it was granted.
    pub(super) attempt_started: u64,
    pub(super) granted_at: u64,
    /// Until when it is valid, unless it is released.
    pub(super) valid_until: u64,
    pub(super) is_unreleased: bool,
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { actor, owner, token, attempt_started: began, granted_at: at, valid_until: until, .. } = self;
        write!(f, "{actor} (owner {owner}) with token {token}, begun {began}, granted {at}, until {until} µs")
    }
}

/// A violated property.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Violation {
    TwoHolders,
    TokenOrder,
    SharedToken,
    Fence,
    Stuck,
    LeftOver,
}

#[derive(Debug, Default)]
pub(super) struct InvariantChecker {
    /// The clocks of the nodes keep to the drift. Otherwise the judge checks only what needs no
    /// clock.
    clocks_within_drift: bool,
    pub(super) grants: Vec<Grant>,
    fence_state: FenceState,
    /// The grants whose writes the resource accepted.
    accepted: Vec<usize>,
    pub(super) shared_tokens: usize,
    pub(super) refused_writes: usize,
    pub(super) violations: Vec<(Violation, String)>,
}

impl InvariantChecker {
    pub(super) fn new(clocks_hold: bool) -> Self {
        Self { clocks_within_drift: clocks_hold, ..Self::default() }
    }

    fn report_violation(&mut self, breach: Violation, description: String) {
        self.violations.push((breach, description));
    }

    /// An actor acquired the lock. Returns the index of the grant.
    pub(super) fn record_grant(&mut self, grant: Grant) -> usize {
        let mut blames = Vec::new();
        for other in &self.grants {
            let beside = other.is_unreleased && other.valid_until > grant.granted_at;
            if other.owner == grant.owner {
                if beside && self.clocks_within_drift && other.token != grant.token {
                    blames.push((Violation::SharedToken, format!("{grant}; beside {other}")));
                }
                self.shared_tokens += usize::from(beside && other.token == grant.token);
                continue;
            }
            if beside && self.clocks_within_drift {
                blames.push((Violation::TwoHolders, format!("{grant}; beside {other}")));
            }
            // If clocks jump, two overlapping attempts may have any order; their tokens differ all
            // the same.
            let later = self.clocks_within_drift || grant.attempt_started > other.granted_at;
            if grant.token == other.token || later && grant.token < other.token {
                blames.push((Violation::TokenOrder, format!("{grant}; after {other}")));
            }
        }
        self.violations.extend(blames);
        self.grants.push(grant);
        self.grants.len() - 1
    }

    pub(super) fn record_extension(&mut self, grant: usize, until: u64) {
        self.grants[grant].valid_until = until;
    }

    pub(super) fn record_end(&mut self, grant: usize) {
        self.grants[grant].is_unreleased = false;
    }

    /// An actor writes to the resource, perhaps long after its grant ended.
    pub(super) fn check_write(&mut self, grant: usize) -> bool {
        let Grant { token, owner, .. } = self.grants[grant];
        let owner = Some(Owner::from_bits(owner));
        if !admits(self.fence_state, token, owner) {
            self.refused_writes += 1;
            return false;
        }
        self.fence_state = FenceState { token, owner };
        let newer = |earlier: &&usize| {
            let (earlier, now) = (self.grants[**earlier], self.grants[grant]);
            earlier.owner != now.owner && earlier.attempt_started > now.granted_at
        };
        if let Some(earlier) = self.accepted.iter().find(newer) {
            let description = format!("accepted: {}; after {}", self.grants[grant], self.grants[*earlier]);
            self.report_violation(Violation::Fence, description);
        }
        self.accepted.push(grant);
        true
    }

    pub(super) fn report_stuck(&mut self, description: &str) {
        self.report_violation(Violation::Stuck, description.into());
    }

    pub(super) fn report_left_over(&mut self, description: String) {
        self.report_violation(Violation::LeftOver, description);
    }
}
