//! Majorities of independent nodes: when a lock that is kept on several of them is acquired,
//! extended, released or lost, and which token it carries.
//! [`Ballots`](crate::logic::ballots::Ballots) is the state of one node.
//!
//! # Why the tokens rise
//! A node stores a token only if it is higher than any that it stored before, and only under a live
//! claim. A lock counts as held when a majority has stored *its* token. Two majorities share a
//! node, and that node stored the later token after the earlier one: it is higher. This needs no
//! clock, but it needs nodes that keep what they acknowledged.
//!
//! A node that restarted without data stores no new token below the end of its cool-down, on its
//! own clock. That is above all tokens that it lost, as long as no token was ahead of this clock by
//! more than the longest TTL.
//!
//! # Why the claims of one owner have one token
//! A node stores one token at a time for all claims of an owner, and returns it to each further
//! claim of that owner. Two claims that are held share a node, so their tokens are equal. Within
//! one attempt the tokens only rise, so that a late message of this attempt does not replace the
//! granted token. While one token is written, no other counts.
//!
//! # Rounds
//! The first round carries a guess of the token. If a majority can store the guess, the lock is
//! held after one round. Otherwise a second round stores a token above the highest that was seen.

use std::time::Duration;

use crate::claim::Token;
use crate::clock::Moment;
use crate::logic::lease::Drift;

/// How often one attempt replaces a token that turned out too low by a higher one.
const WRITES: u32 = 3;

/// The number of nodes, and how many are a majority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quorum {
    /// All nodes.
    pub nodes: usize,
    /// More than half.
    pub needed: usize,
}

impl Quorum {
    /// The majority of this many nodes.
    pub const fn of(nodes: usize) -> Self {
        Self { nodes, needed: nodes / 2 + 1 }
    }

    /// How many nodes may fail.
    pub const fn spare(self) -> usize {
        self.nodes - self.needed
    }
}

/// Timeout of one node's answer: at most `most`, and at most a tenth of the TTL.
pub fn node_timeout(ttl: Duration, most: Duration) -> Duration {
    most.min(ttl / 10).max(Duration::from_millis(1))
}

/// The rest of a lease whose first request was sent at `sent`: `ttl - elapsed - drift`. `None`:
/// nothing is left.
pub fn validity(sent: Moment, now: Moment, ttl: Duration, drift: Drift) -> Option<Duration> {
    let left = ttl.checked_sub(now.since(sent))?.checked_sub(drift.of(ttl))?;
    (!left.is_zero()).then_some(left)
}

/// A node's answer to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Vote {
    /// The claim is stored.
    Yes {
        /// The highest token that the node knows.
        last: Token,
        /// The token stored under this claim; zero if there is none.
        own: Token,
        /// The token of a live claim of the same owner, which must be shared; zero if there is
        /// none.
        bound: Token,
    },
    /// Another owner has the lock on this node.
    No {
        /// The highest token that the node knows.
        last: Token,
    },
    /// The node has restarted and is in its cool-down until the longest lease is over.
    Abstains,
    /// There was no answer, or none that counts.
    Silent,
}

/// A node's answer to the second round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Written {
    /// The token is stored under this claim.
    Stored,
    /// The node knows this token, which is not lower.
    Behind(Token),
    /// A live claim of the same owner has this token, which must be shared.
    Bound(Token),
    /// The claim is no longer there.
    Gone,
    /// There was no answer, or none that counts.
    Silent,
}

/// Why an attempt to acquire a lock failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// Others hold it, or each of several contenders has some of the nodes.
    Busy,
    /// Too few nodes answered.
    Unreachable,
    /// Too many nodes have restarted and are in their cool-down.
    Abstaining,
}

/// What to do next about a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Move {
    /// Wait for more answers.
    Wait,
    /// Have every node that answered yes store this token, including those that answer yes later.
    Write(Token),
    /// It is held, if its time is not over.
    Held(Token),
    /// It cannot be acquired now: withdraw the claim from all nodes.
    Failed(Failure),
}

/// One attempt to acquire a lock, answer by answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Taking {
    quorum: Quorum,
    /// What is known of each node: its vote, updated by its later answers.
    votes: Vec<Option<Vote>>,
    /// The nodes' answers to the token that is being written.
    written: Vec<Option<Written>>,
    /// The token of the second round, and how many such rounds there were before.
    token: Option<(Token, u32)>,
    /// The highest token or clock that any node reported.
    highest: Token,
}

impl Taking {
    /// No node has answered yet.
    pub fn new(quorum: Quorum) -> Self {
        Self {
            quorum,
            votes: vec![None; quorum.nodes],
            written: vec![None; quorum.nodes],
            token: None,
            highest: Token::default(),
        }
    }

    /// A chosen token must be higher than this node clock: the clock has moved on even where a
    /// token was lost.
    pub fn at_least(&mut self, clock: Token) {
        self.highest = self.highest.max(clock);
    }

    /// The token that is being written, if there is a second round.
    pub fn writing(&self) -> Option<Token> {
        self.token.map(|(token, _)| token)
    }

    /// Whether a node answered yes.
    pub fn said_yes(&self, node: usize) -> bool {
        matches!(self.votes.get(node), Some(Some(Vote::Yes { .. })))
    }

    /// The highest token or clock that any node reported.
    pub fn highest(&self) -> Token {
        self.highest
    }

    /// Records a node's answer to the claim. Only the first answer of a node counts.
    pub fn vote(&mut self, node: usize, vote: Vote) -> Move {
        if let Some(place @ None) = self.votes.get_mut(node) {
            *place = Some(vote);
            self.highest = match vote {
                Vote::Yes { last, own, bound } => self.highest.max(last).max(own).max(bound),
                Vote::No { last } => self.highest.max(last),
                Vote::Abstains | Vote::Silent => self.highest,
            };
        }
        self.next()
    }

    /// Records a node's answer to the second round for `token`. Answers to an earlier round do not
    /// count.
    pub fn wrote(&mut self, node: usize, token: Token, written: Written) -> Move {
        if self.writing() != Some(token) {
            return Move::Wait;
        }
        if let (Some(place @ None), Some(Some(vote))) = (self.written.get_mut(node), self.votes.get_mut(node)) {
            *place = Some(written);
            if let Vote::Yes { last, own, bound } = vote {
                match written {
                    Written::Stored => *own = token,
                    Written::Behind(known) => *last = known,
                    Written::Bound(known) => *bound = known,
                    Written::Gone => *vote = Vote::No { last: *last },
                    Written::Silent => {}
                }
            }
            if let Written::Behind(known) | Written::Bound(known) = written {
                self.highest = self.highest.max(known);
            }
        }
        self.next()
    }

    fn count(&self, which: impl Fn(usize, Vote) -> bool) -> usize {
        self.votes.iter().enumerate().filter(|(node, vote)| vote.is_some_and(|vote| which(*node, vote))).count()
    }

    fn next(&mut self) -> Move {
        let needed = self.quorum.needed;
        if let Some(token) = self.stored_by_majority() {
            return Move::Held(token);
        }
        let open = self.votes.iter().filter(|vote| vote.is_none()).count();
        let yes = self.count(|_, vote| matches!(vote, Vote::Yes { .. }));
        if yes + open < needed {
            // The remaining nodes may show whether the lock is taken or too few nodes are left.
            return if open == 0 || self.is_plain() { Move::Failed(self.why()) } else { Move::Wait };
        }
        match self.token {
            _ if yes < needed => Move::Wait,
            None => self.write(open, 0),
            Some((token, before)) => {
                let hopeful = |node: usize, vote| match vote {
                    Vote::Yes { own, .. } => own == token || matches!(self.written.get(node), Some(None)),
                    _ => false,
                };
                match self.count(hopeful) + open >= needed {
                    true => Move::Wait,
                    false => self.write(open, before + 1),
                }
            }
        }
    }

    /// A token that a majority has stored under this claim. While a token is being written, only
    /// that one counts, because it replaces any other.
    fn stored_by_majority(&self) -> Option<Token> {
        let counts = |token: Token| {
            token > Token::default()
                && self.writing().is_none_or(|written| written == token)
                && self.count(|_, vote| matches!(vote, Vote::Yes { own, .. } if own == token)) >= self.quorum.needed
        };
        self.votes.iter().find_map(|vote| match vote {
            Some(Vote::Yes { own, .. }) if counts(*own) => Some(*own),
            _ => None,
        })
    }

    /// How many nodes could store a token, as far as is known.
    fn could(&self, token: Token) -> usize {
        self.count(|node, vote| {
            let Vote::Yes { last, own, bound } = vote else { return false };
            let lost = matches!(self.written.get(node), Some(Some(Written::Silent)));
            own == token || !lost && (bound == token || bound == Token::default() && last < token)
        })
    }

    /// The token of the same owner's other claims, if a majority could have it; otherwise one above
    /// all others.
    fn choose(&self, open: usize) -> Token {
        let bounds = self.votes.iter().filter_map(|vote| match vote {
            Some(Vote::Yes { bound, .. }) if *bound > Token::default() => Some(*bound),
            _ => None,
        });
        let shared = bounds.max_by_key(|token| (self.could(*token), *token));
        shared
            .filter(|token| self.could(*token) + open >= self.quorum.needed)
            .unwrap_or(Token(self.highest.0.saturating_add(1)))
    }

    /// Begins a second round, or another one. A lower token than before needs another attempt: late
    /// messages of this one would replace it.
    fn write(&mut self, open: usize, before: u32) -> Move {
        let token = self.choose(open);
        let could = self.could(token);
        if before >= WRITES || could + open < self.quorum.needed || self.writing().is_some_and(|old| token <= old) {
            return Move::Failed(self.why());
        }
        if could < self.quorum.needed {
            return Move::Wait;
        }
        self.token = Some((token, before));
        self.written.fill(None);
        Move::Write(token)
    }

    /// Whether the reason why there is no majority is known, whatever the others answer.
    fn is_plain(&self) -> bool {
        let spare = self.quorum.spare();
        let refused = self.count(|_, vote| matches!(vote, Vote::No { .. }));
        refused > spare || self.count(|_, vote| vote == Vote::Silent) > spare
    }

    fn why(&self) -> Failure {
        let lost = |node: usize| matches!(self.written.get(node), Some(Some(Written::Silent)));
        let silent = self.count(|node, vote| vote == Vote::Silent || lost(node));
        let abstaining = self.count(|_, vote| vote == Vote::Abstains);
        match (silent > self.quorum.spare(), silent + abstaining > self.quorum.spare()) {
            (true, _) => Failure::Unreachable,
            (_, true) => Failure::Abstaining,
            _ => Failure::Busy,
        }
    }
}

/// The result of a request to all nodes: each may have done it, refused it, or not answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tally {
    quorum: Quorum,
    answers: Vec<Option<Option<bool>>>,
}

/// The decision of a majority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Not known yet.
    Open,
    /// A majority did it.
    Done,
    /// Too many nodes refused: a majority is no longer possible.
    Refused,
    /// All nodes have answered or will not, and there is no majority for either.
    Unknown,
}

impl Tally {
    /// No node has answered yet.
    pub fn new(quorum: Quorum) -> Self {
        Self { quorum, answers: vec![None; quorum.nodes] }
    }

    /// Records that a node did it, refused, or did not answer. Only the first answer of a node
    /// counts.
    pub fn hear(&mut self, node: usize, answer: Option<bool>) -> Outcome {
        if let Some(place @ None) = self.answers.get_mut(node) {
            *place = Some(answer);
        }
        self.outcome()
    }

    /// The decision so far.
    pub fn outcome(&self) -> Outcome {
        let count = |wanted: Option<Option<bool>>| self.answers.iter().filter(|answer| **answer == wanted).count();
        if count(Some(Some(true))) >= self.quorum.needed {
            Outcome::Done
        } else if count(Some(Some(false))) > self.quorum.spare() {
            Outcome::Refused
        } else if count(None) == 0 {
            Outcome::Unknown
        } else {
            Outcome::Open
        }
    }

    /// How many nodes have answered.
    pub fn heard(&self) -> usize {
        self.answers.iter().filter(|answer| matches!(answer, Some(Some(_)))).count()
    }
}

#[cfg(test)]
#[path = "quorum_tests.rs"]
mod tests;
