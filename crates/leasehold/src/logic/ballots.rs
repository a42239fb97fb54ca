//! The state of one lock on one of several nodes, and every operation on it. This is the
//! specification of the scripts that the `redlock:` engine runs on each of its servers.
//!
//! A node admits one owner at a time, by its own clock. It stores tokens that only rise, one at a
//! time for all claims of an owner. It knows nothing of the other nodes.

use std::collections::BTreeMap;

use crate::claim::{ClaimId, Owner, Token};
use crate::logic::quorum::{Vote, Written};

/// A claim's request to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ask {
    /// The claim.
    pub claim: ClaimId,
    /// The attempt number of the claim: a late withdrawal of an earlier attempt does not affect a
    /// later one.
    pub attempt: u64,
    /// The owner; its claims may hold together.
    pub owner: Option<Owner>,
    /// The TTL, on the node's clock.
    pub ttl: u64,
}

/// What a node stores for a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Record {
    attempt: u64,
    owner: Option<Owner>,
    /// Zero until a token is stored.
    token: Token,
    since: u64,
    ttl: u64,
}

impl Record {
    fn ends(&self) -> u64 {
        self.since.saturating_add(self.ttl)
    }
}

/// One lock on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ballots {
    /// The highest token of all claims that are gone.
    last: Token,
    /// The highest token that was released: a request that still carries it is late.
    released: Token,
    /// The last claim that released it; other claims of its owner may still hold with it.
    gone: Option<ClaimId>,
    records: BTreeMap<ClaimId, Record>,
    /// The end of the node's cool-down.
    abstains_until: u64,
}

/// The result of a force release on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// Whether the claim was there.
    pub there: bool,
    /// Whether the token was stored and is above all earlier ones.
    pub stored: bool,
    /// Whether other claims remain.
    pub others: bool,
}

/// The lock from the point of view of one claim.
struct Sight {
    /// The highest token known; a new token must be above it.
    last: Token,
    /// The highest token that was stored here and is still known.
    stored: Token,
    mine: Option<Record>,
    /// The token of the other live claims of the same owner.
    same: Token,
    /// Whether a claim of another owner is here.
    taken: bool,
}

impl Ballots {
    /// A node that restarted empty and is in its cool-down until then. It stores no token below
    /// this time. If its clock is right, the tokens that it lost were not higher.
    pub fn abstaining(until: u64) -> Self {
        Self { abstains_until: until, ..Self::default() }
    }

    /// The highest token that the node knows, or must assume.
    pub fn last(&self) -> Token {
        self.stored().max(Token(self.abstains_until))
    }

    /// The highest token that was stored here.
    fn stored(&self) -> Token {
        self.records.values().map(|record| record.token).fold(self.last, Token::max)
    }

    /// When the claim expires on this node.
    pub fn ends(&self, claim: ClaimId) -> Option<u64> {
        self.records.get(&claim).map(Record::ends)
    }

    /// Whether there is no claim here, and never was.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty() && self.last == Token::default()
    }

    fn see(&mut self, now: u64, claim: ClaimId, owner: Option<Owner>) -> Sight {
        let (last, stored) = (self.last(), self.stored());
        // The clock was set back: treat a time in the future as now.
        for record in self.records.values_mut() {
            record.since = record.since.min(now);
        }
        if self.records.values().any(|record| record.ends() <= now) {
            self.last = stored;
            self.records.retain(|_, record| record.ends() > now);
        }
        let mut sight = Sight { last, stored, mine: None, same: Token::default(), taken: false };
        for (id, record) in &self.records {
            if *id == claim {
                sight.mine = Some(*record);
            } else if owner.is_some() && record.owner == owner {
                sight.same = sight.same.max(record.token);
            } else {
                sight.taken = true;
            }
        }
        sight
    }

    /// Takes the lock on this node, if no other owner has it. Stores the token `guess` if no higher
    /// one is known; zero means no token.
    pub fn take(&mut self, now: u64, ask: Ask, guess: Token) -> Vote {
        let sight = self.see(now, ask.claim, ask.owner);
        let late = guess > Token::default() && guess == self.released && self.gone == Some(ask.claim);
        if sight.taken || late {
            return Vote::No { last: sight.last };
        }
        if now < self.abstains_until {
            return Vote::Abstains;
        }
        let mut own = sight.mine.map_or(Token::default(), |mine| mine.token);
        if own == Token::default() {
            own = if sight.same > Token::default() {
                sight.same
            } else if guess > sight.last {
                guess
            } else {
                own
            };
        }
        let attempt = sight.mine.map_or(ask.attempt, |mine| mine.attempt.max(ask.attempt));
        self.records.insert(ask.claim, Record { attempt, owner: ask.owner, token: own, since: now, ttl: ask.ttl });
        Vote::Yes { last: sight.last.max(own), own, bound: sight.same }
    }

    /// Stores a token under a claim that is here. A new token restarts the claim's TTL.
    pub fn write(&mut self, now: u64, ask: Ask, token: Token) -> Written {
        let sight = self.see(now, ask.claim, ask.owner);
        if now < self.abstains_until {
            return Written::Silent;
        }
        match self.records.get_mut(&ask.claim).filter(|record| record.attempt == ask.attempt) {
            None => Written::Gone,
            Some(record) if record.token == token => Written::Stored,
            Some(_) if sight.same > Token::default() && sight.same != token => Written::Bound(sight.same),
            Some(record) if token > sight.last || token == sight.same => {
                (record.token, record.since) = (token, now);
                Written::Stored
            }
            Some(_) => Written::Behind(sight.last),
        }
    }

    /// Extends a claim that holds with this token. If the node has lost the claim, it is stored
    /// again, unless the token was released or a higher one was stored meanwhile. After
    /// `Some(true)` the token is stored here. `None`: the node is in its cool-down.
    pub fn renew(&mut self, now: u64, ask: Ask, token: Token) -> Option<bool> {
        let sight = self.see(now, ask.claim, ask.owner);
        if now < self.abstains_until {
            return None;
        }
        let here = sight.mine.is_some_and(|mine| mine.token == token);
        let fits = sight.same == token || sight.same == Token::default() && token >= sight.stored;
        // Another claim of its owner may have released the same token.
        let given_back = token < self.released || token == self.released && self.gone == Some(ask.claim);
        let late = sight.mine.is_none() && given_back;
        if !here && (sight.taken || !fits || late) {
            return Some(false);
        }
        let attempt = sight.mine.map_or(ask.attempt, |mine| mine.attempt.max(ask.attempt));
        self.records.insert(ask.claim, Record { attempt, owner: ask.owner, token, since: now, ttl: ask.ttl });
        Some(true)
    }

    /// Removes a claim that this attempt or an earlier one left here. Returns whether there was
    /// one.
    pub fn release(&mut self, claim: ClaimId, attempt: u64) -> bool {
        let token = self.records.get(&claim).map_or(Token::default(), |record| record.token);
        let there = self.withdraw(claim, attempt);
        if there {
            self.last = self.last.max(token);
            if token >= self.released {
                (self.released, self.gone) = (token, Some(claim));
            }
        }
        there
    }

    /// The same for an attempt that failed: its token was never granted, so the node need not keep
    /// it.
    pub fn withdraw(&mut self, claim: ClaimId, attempt: u64) -> bool {
        if self.records.get(&claim).is_none_or(|record| record.attempt > attempt) {
            return false;
        }
        self.records.remove(&claim).is_some()
    }

    /// Force-releases a claim and stores a token above all that were granted. With `always`, it
    /// stores the token even where the claim is absent.
    pub fn evict(&mut self, now: u64, claim: ClaimId, token: Token, always: bool) -> Evicted {
        let sight = self.see(now, claim, None);
        let there = sight.mine.is_some();
        if !there && !always {
            return Evicted { there, stored: false, others: sight.taken };
        }
        // As if it had given its token back: a renewal does not put it here again beside another claim of its owner, which has the same token.
        let held = self.records.remove(&claim).map_or(Token::default(), |record| record.token);
        if held > Token::default() && held >= self.released {
            (self.released, self.gone) = (held, Some(claim));
        }
        self.last = sight.stored.max(token);
        Evicted { there, stored: token > sight.last, others: sight.taken }
    }
}

#[cfg(test)]
#[path = "ballots_tests.rs"]
mod tests;
