//! What one node of several keeps of one lock, and every step on it: the specification of the scripts that the `redlock:`
//! engine runs on each of its servers.
//!
//! A node lets in one owner at a time, by its own clock, and stores tokens that only rise, one at a time for all claims of an
//! owner. It knows nothing of the others.

use std::collections::BTreeMap;

use crate::claim::{ClaimId, Owner, Token};
use crate::logic::quorum::{Vote, Written};

/// A claim as it asks a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ask {
    /// Who asks.
    pub claim: ClaimId,
    /// Which attempt of the claim this is: what an earlier one withdraws late does not touch a later one.
    pub attempt: u64,
    /// Whose claims may hold beside it.
    pub owner: Option<Owner>,
    /// How long it lasts, in the node's time.
    pub ttl: u64,
}

/// What a node keeps of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Record {
    attempt: u64,
    owner: Option<Owner>,
    /// Zero until one is stored.
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
    /// The highest token of all claims that are not here any more.
    last: Token,
    /// The highest token that was given back: what still asks for it comes late.
    released: Token,
    /// The last claim that gave it back; others of its owner may hold with it.
    gone: Option<ClaimId>,
    records: BTreeMap<ClaimId, Record>,
    /// Until when the node says nothing.
    abstains_until: u64,
}

/// What a node did about a claim that is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// Whether the claim was there.
    pub there: bool,
    /// Whether the token was stored, and is above all before.
    pub stored: bool,
    /// Whether other claims stay.
    pub others: bool,
}

/// What a node sees when it looks at a lock for somebody.
struct Sight {
    /// The highest token that is known, and a new one must be above.
    last: Token,
    /// The highest token that was stored here and is remembered.
    stored: Token,
    mine: Option<Record>,
    /// The token of the live claims of the same owner.
    same: Token,
    /// Whether somebody else is there.
    taken: bool,
}

impl Ballots {
    /// A node that has restarted empty, and abstains until then. No token that it stores later is lower than this: what it
    /// has forgotten was not higher, if its clock is right.
    pub fn abstaining(until: u64) -> Self {
        Self { abstains_until: until, ..Self::default() }
    }

    /// The highest token that the node knows, or must take for granted.
    pub fn last(&self) -> Token {
        self.stored().max(Token(self.abstains_until))
    }

    /// The highest token that was stored here.
    fn stored(&self) -> Token {
        self.records.values().map(|record| record.token).fold(self.last, Token::max)
    }

    /// Until when the claim lasts here.
    pub fn ends(&self, claim: ClaimId) -> Option<u64> {
        self.records.get(&claim).map(Record::ends)
    }

    /// Whether nobody is here, nor was.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty() && self.last == Token::default()
    }

    fn see(&mut self, now: u64, claim: ClaimId, owner: Option<Owner>) -> Sight {
        let (last, stored) = (self.last(), self.stored());
        // The clock was set back: a time to come counts as now.
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

    /// Takes the lock here, if nobody else has it, with this token if no higher one is known; zero is no token.
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

    /// Stores a token under a claim that is here, whose time begins anew.
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

    /// Extends a claim that holds with this token, and takes the lock for it where the node has forgotten it, unless it was
    /// given back or a higher one stored meanwhile. After a yes the token is stored here. `None`: the node abstains.
    pub fn renew(&mut self, now: u64, ask: Ask, token: Token) -> Option<bool> {
        let sight = self.see(now, ask.claim, ask.owner);
        if now < self.abstains_until {
            return None;
        }
        let here = sight.mine.is_some_and(|mine| mine.token == token);
        let fits = sight.same == token || sight.same == Token::default() && token >= sight.stored;
        // Another claim of its owner may have given the same token back.
        let given_back = token < self.released || token == self.released && self.gone == Some(ask.claim);
        let late = sight.mine.is_none() && given_back;
        if !here && (sight.taken || !fits || late) {
            return Some(false);
        }
        let attempt = sight.mine.map_or(ask.attempt, |mine| mine.attempt.max(ask.attempt));
        self.records.insert(ask.claim, Record { attempt, owner: ask.owner, token, since: now, ttl: ask.ttl });
        Some(true)
    }

    /// Ends what this attempt of a claim, or an earlier one, has left here. Says whether there was something.
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

    /// The same for an attempt that failed: its token was never granted, and is forgotten.
    pub fn withdraw(&mut self, claim: ClaimId, attempt: u64) -> bool {
        if self.records.get(&claim).is_none_or(|record| record.attempt > attempt) {
            return false;
        }
        self.records.remove(&claim).is_some()
    }

    /// Evicts a claim, and stores a token above all that were granted, if it is; `always`: also where the claim is not.
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
