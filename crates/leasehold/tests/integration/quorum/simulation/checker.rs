//! The guarantees, checked by true time, which no node or actor of the simulation knows.

use std::fmt;

use leasehold::internals::logic::fence::{FenceState, admits};
use leasehold::{Owner, Token};

/// A grant of the lock to an actor. Times are true times in µs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub(super) actor: usize,
    /// The owner of the claim; a number of its own if the claim has none.
    pub(super) owner: u128,
    pub(super) token: Token,
    /// When the attempt began that was granted.
    pub(super) attempt_started: u64,
    pub(super) granted_at: u64,
    /// Until when the actor relies on the grant, unless it releases earlier.
    pub(super) valid_until: u64,
    /// Whether the actor has neither released the lock nor learned that it is lost.
    pub(super) is_unreleased: bool,
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { actor, owner, token, attempt_started: began, granted_at: at, valid_until: until, .. } = self;
        write!(f, "{actor} (owner {owner}) with token {token}, begun {began}, granted {at}, until {until} µs")
    }
}

/// A violated guarantee.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Violation {
    /// Two owners held the lock at the same time.
    TwoHolders,
    /// A later grant of another owner did not have a higher token.
    TokenOrder,
    /// Two grants of one owner at the same time had different tokens.
    SharedToken,
    /// The resource accepted a write of a grant after a write of a later grant.
    Fence,
    /// After the faults, no actor acquired the lock, or an actor held it for ever.
    Stuck,
    /// After all releases, a node still had a claim.
    LeftOver,
}

/// Checks the guarantees of a run, event by event.
#[derive(Debug, Default)]
pub(super) struct InvariantChecker {
    /// Whether the nodes' clocks keep to the drift. If not, only the guarantees that need no clock
    /// are checked.
    clocks_within_drift: bool,
    pub(super) grants: Vec<Grant>,
    /// What the resource has seen.
    fence_state: FenceState,
    /// The grants whose writes the resource accepted, by their index in `grants`.
    accepted: Vec<usize>,
    /// How many grants had the token of another live grant of the same owner.
    pub(super) shared_tokens: usize,
    /// How many writes the resource refused.
    pub(super) refused_writes: usize,
    pub(super) violations: Vec<(Violation, String)>,
}

impl InvariantChecker {
    pub(super) fn new(clocks_within_drift: bool) -> Self {
        Self { clocks_within_drift, ..Self::default() }
    }

    fn report_violation(&mut self, violation: Violation, description: String) {
        self.violations.push((violation, description));
    }

    /// Checks a grant against all earlier ones, and stores it. Returns its index.
    pub(super) fn record_grant(&mut self, grant: Grant) -> usize {
        let mut violations = Vec::new();
        for other in &self.grants {
            let is_live = other.is_unreleased && other.valid_until > grant.granted_at;
            if other.owner == grant.owner {
                if is_live && self.clocks_within_drift && other.token != grant.token {
                    violations.push((Violation::SharedToken, format!("{grant}; beside {other}")));
                }
                self.shared_tokens += usize::from(is_live && other.token == grant.token);
                continue;
            }
            if is_live && self.clocks_within_drift {
                violations.push((Violation::TwoHolders, format!("{grant}; beside {other}")));
            }
            // If clocks jump, the tokens of two overlapping attempts may have any order, but must
            // differ.
            let is_later = self.clocks_within_drift || grant.attempt_started > other.granted_at;
            if grant.token == other.token || is_later && grant.token < other.token {
                violations.push((Violation::TokenOrder, format!("{grant}; after {other}")));
            }
        }
        self.violations.extend(violations);
        self.grants.push(grant);
        self.grants.len() - 1
    }

    /// Stores that a grant was extended by a renewal.
    pub(super) fn record_extension(&mut self, grant: usize, until: u64) {
        self.grants[grant].valid_until = until;
    }

    /// Stores that an actor released a grant, or learned that it is lost.
    pub(super) fn record_end(&mut self, grant: usize) {
        self.grants[grant].is_unreleased = false;
    }

    /// Lets the resource accept or refuse a write with the token of a grant, which may have ended
    /// long ago. Returns whether it accepts.
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
