//! The state of one lock on one of several nodes, and every operation on it. This is the
//! specification of the scripts that the `redlock:` engine runs on each of its servers.
//!
//! A node admits one owner at a time, by its own clock. It stores tokens that only rise, one at a
//! time for all claims of an owner. It has no contact with the other nodes.

use std::collections::BTreeMap;

use crate::logic::quorum::{Vote, WriteReply};
use crate::types::{ClaimId, Owner, Token};

/// A claim's request to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClaimRequest {
    /// The claim.
    pub claim: ClaimId,
    /// The attempt number of the claim: a late withdrawal of an earlier attempt does not affect a
    /// later one.
    pub attempt: u64,
    /// The owner, whose claims may hold together; `None`: the claim holds alone.
    pub owner: Option<Owner>,
    /// The TTL, in the unit of the node's clock.
    pub ttl: u64,
}

/// What a node stores for a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct StoredClaim {
    attempt: u64,
    owner: Option<Owner>,
    /// Zero until a token is stored.
    token: Token,
    /// When the claim was stored or renewed last, on the node's clock.
    stored_at: u64,
    ttl: u64,
}

impl StoredClaim {
    /// When the claim expires, on the node's clock.
    fn expires_at(&self) -> u64 {
        self.stored_at.saturating_add(self.ttl)
    }
}

/// The state of one lock on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct AcceptorState {
    /// The highest token of all claims that have ended.
    last_token: Token,
    /// The highest token that was released. A request of `last_released_claim` with this token is
    /// late.
    released_token: Token,
    /// The claim that last released `released_token`; other claims of its owner may still hold with
    /// that token.
    last_released_claim: Option<ClaimId>,
    claims: BTreeMap<ClaimId, StoredClaim>,
    /// The end of the node's cool-down; zero: it has none.
    cool_down_until: u64,
}

/// The result of a force release on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForceReleaseReply {
    /// Whether the node had the claim.
    pub was_present: bool,
    /// Whether the node stored the token, and it is above all earlier ones.
    pub is_stored: bool,
    /// Whether the node still has other claims.
    pub others_remain: bool,
}

/// What the state of the lock means for one claim.
struct ClaimView {
    /// The highest token that the node knows, or must assume; a new token must be above it.
    last_token: Token,
    /// The highest token that was stored on the node and is still known.
    stored_token: Token,
    /// The claim as the node stores it; `None`: it does not.
    own_claim: Option<StoredClaim>,
    /// The token of the other live claims of the same owner; zero if there are none.
    owner_token: Token,
    /// Whether the node has a live claim of another owner.
    is_held_by_other: bool,
}

impl AcceptorState {
    /// The state of a node that restarted empty and cools down until this time, on its own clock.
    /// It stores no token below this time. If its clock is right, the tokens that it lost were not
    /// higher.
    pub fn cooling_down(until: u64) -> Self {
        Self { cool_down_until: until, ..Self::default() }
    }

    /// The highest token that the node knows, or must assume: at least the end of its cool-down.
    pub fn last_token(&self) -> Token {
        self.stored_token().max(Token(self.cool_down_until))
    }

    /// The highest token that was stored on this node.
    fn stored_token(&self) -> Token {
        self.claims.values().map(|stored| stored.token).fold(self.last_token, Token::max)
    }

    /// When the claim expires on this node's clock; `None`: the node does not have it.
    pub fn expires_at(&self, claim: ClaimId) -> Option<u64> {
        self.claims.get(&claim).map(StoredClaim::expires_at)
    }

    /// The claim's token; `None`: the node does not have it.
    pub fn token(&self, claim: ClaimId) -> Option<Token> {
        self.claims.get(&claim).map(|stored| stored.token)
    }

    /// Whether the node has no claim and has stored no token.
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.last_token == Token::default()
    }

    /// Removes expired claims, and returns what the rest means for this claim.
    fn view_for(&mut self, now: u64, claim: ClaimId, owner: Option<Owner>) -> ClaimView {
        let (last_token, stored_token) = (self.last_token(), self.stored_token());
        // A time in the future means that the clock was set back: treat it as now.
        for stored in self.claims.values_mut() {
            stored.stored_at = stored.stored_at.min(now);
        }
        if self.claims.values().any(|stored| stored.expires_at() <= now) {
            self.last_token = stored_token;
            self.claims.retain(|_, stored| stored.expires_at() > now);
        }
        let mut view = ClaimView {
            last_token,
            stored_token,
            own_claim: None,
            owner_token: Token::default(),
            is_held_by_other: false,
        };
        for (id, stored) in &self.claims {
            if *id == claim {
                view.own_claim = Some(*stored);
            } else if owner.is_some() && stored.owner == owner {
                view.owner_token = view.owner_token.max(stored.token);
            } else {
                view.is_held_by_other = true;
            }
        }
        view
    }

    /// Acquires the lock on this node, if no other owner has it. Stores the token `guess` if it is
    /// above all that the node knows; zero: the request has no guess.
    pub fn acquire(&mut self, now: u64, request: ClaimRequest, guess: Token) -> Vote {
        let view = self.view_for(now, request.claim, request.owner);
        let is_late =
            guess > Token::default() && guess == self.released_token && self.last_released_claim == Some(request.claim);
        if view.is_held_by_other || is_late {
            return Vote::No { last_token: view.last_token };
        }
        if now < self.cool_down_until {
            return Vote::CoolingDown;
        }
        let mut own = view.own_claim.map_or(Token::default(), |own_claim| own_claim.token);
        if own == Token::default() {
            own = if view.owner_token > Token::default() {
                view.owner_token
            } else if guess > view.last_token {
                guess
            } else {
                own
            };
        }
        let attempt = view.own_claim.map_or(request.attempt, |own_claim| own_claim.attempt.max(request.attempt));
        self.claims.insert(
            request.claim,
            StoredClaim { attempt, owner: request.owner, token: own, stored_at: now, ttl: request.ttl },
        );
        Vote::Yes { last_token: view.last_token.max(own), own_token: own, owner_token: view.owner_token }
    }

    /// Stores a token under a claim that the node has. A new token restarts the claim's TTL.
    pub fn write_token(&mut self, now: u64, request: ClaimRequest, token: Token) -> WriteReply {
        let view = self.view_for(now, request.claim, request.owner);
        if now < self.cool_down_until {
            return WriteReply::NoResponse;
        }
        match self.claims.get_mut(&request.claim).filter(|stored| stored.attempt == request.attempt) {
            None => WriteReply::ClaimMissing,
            Some(stored) if stored.token == token => WriteReply::Stored,
            Some(_) if view.owner_token > Token::default() && view.owner_token != token => {
                WriteReply::OwnerToken(view.owner_token)
            }
            Some(stored) if token > view.last_token || token == view.owner_token => {
                (stored.token, stored.stored_at) = (token, now);
                WriteReply::Stored
            }
            Some(_) => WriteReply::TokenTooLow(view.last_token),
        }
    }

    /// Extends a claim that holds with this token. If the node has lost the claim, it stores it
    /// again, unless the token was released or a higher one was stored since.
    ///
    /// `Some(true)`: the claim is extended, and the node has the token. `Some(false)`: refused.
    /// `None`: the node cools down.
    pub fn renew(&mut self, now: u64, request: ClaimRequest, token: Token) -> Option<bool> {
        let view = self.view_for(now, request.claim, request.owner);
        if now < self.cool_down_until {
            return None;
        }
        let is_present = view.own_claim.is_some_and(|own_claim| own_claim.token == token);
        let fits = view.owner_token == token || view.owner_token == Token::default() && token >= view.stored_token;
        // If another claim of the owner released the same token, this claim may still hold with it.
        let is_released = token < self.released_token
            || token == self.released_token && self.last_released_claim == Some(request.claim);
        let is_late = view.own_claim.is_none() && is_released;
        if !is_present && (view.is_held_by_other || !fits || is_late) {
            return Some(false);
        }
        let attempt = view.own_claim.map_or(request.attempt, |own_claim| own_claim.attempt.max(request.attempt));
        self.claims.insert(
            request.claim,
            StoredClaim { attempt, owner: request.owner, token, stored_at: now, ttl: request.ttl },
        );
        Some(true)
    }

    /// Removes a claim that this attempt or an earlier one stored, and keeps its token as the
    /// highest known. Returns whether the node had such a claim.
    pub fn release(&mut self, claim: ClaimId, attempt: u64) -> bool {
        let token = self.claims.get(&claim).map_or(Token::default(), |stored| stored.token);
        let was_present = self.withdraw(claim, attempt);
        if was_present {
            self.last_token = self.last_token.max(token);
            if token >= self.released_token {
                (self.released_token, self.last_released_claim) = (token, Some(claim));
            }
        }
        was_present
    }

    /// Removes a claim whose attempt failed, if this attempt or an earlier one stored it. Its token
    /// was never granted, so the node does not keep it. Returns whether the node had such a claim.
    pub fn withdraw(&mut self, claim: ClaimId, attempt: u64) -> bool {
        if self.claims.get(&claim).is_none_or(|stored| stored.attempt > attempt) {
            return false;
        }
        self.claims.remove(&claim).is_some()
    }

    /// Force releases a claim, and stores `token`, which the caller chose above all that were
    /// granted. With `store_if_absent`, a node without the claim stores the token, too.
    pub fn force_release(
        &mut self,
        now: u64,
        claim: ClaimId,
        token: Token,
        store_if_absent: bool,
    ) -> ForceReleaseReply {
        let view = self.view_for(now, claim, None);
        let was_present = view.own_claim.is_some();
        if !was_present && !store_if_absent {
            return ForceReleaseReply { was_present, is_stored: false, others_remain: view.is_held_by_other };
        }
        // The claim counts as released, so that its renewal does not store it again beside another
        // claim of its owner, which has the same token.
        let held = self.claims.remove(&claim).map_or(Token::default(), |stored| stored.token);
        if held > Token::default() && held >= self.released_token {
            (self.released_token, self.last_released_claim) = (held, Some(claim));
        }
        self.last_token = view.stored_token.max(token);
        ForceReleaseReply { was_present, is_stored: token > view.last_token, others_remain: view.is_held_by_other }
    }
}

#[cfg(test)]
#[path = "acceptor_tests.rs"]
mod tests;
