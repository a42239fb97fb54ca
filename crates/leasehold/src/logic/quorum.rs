//! Majorities of independent nodes: when a lock that is kept on several of them is acquired,
//! extended, released or lost, and which token it carries.
//! [`AcceptorState`](crate::logic::acceptor::AcceptorState) is the state of one node.
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

use crate::logic::lease::Drift;
use crate::types::Instant;
use crate::types::Token;

/// How often one attempt replaces a token that turned out too low by a higher one.
const MAX_WRITE_ROUNDS: u32 = 3;

/// The number of nodes, and how many are a majority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quorum {
    /// All nodes.
    pub node_count: usize,
    /// More than half.
    pub majority: usize,
}

impl Quorum {
    /// The majority of this many nodes.
    pub const fn from_node_count(nodes: usize) -> Self {
        Self { node_count: nodes, majority: nodes / 2 + 1 }
    }

    /// How many nodes may fail.
    pub const fn tolerated_failures(self) -> usize {
        self.node_count - self.majority
    }
}

/// Timeout of one node's answer: at most `max`, and at most a tenth of the TTL.
pub fn node_timeout(ttl: Duration, max: Duration) -> Duration {
    max.min(ttl / 10).max(Duration::from_millis(1))
}

/// The rest of a lease whose first request was sent at `sent`: `ttl - elapsed - drift`. `None`: no
/// time is left.
pub fn validity(sent: Instant, now: Instant, ttl: Duration, drift: Drift) -> Option<Duration> {
    let left = ttl.checked_sub(now.duration_since(sent))?.checked_sub(drift.margin_for(ttl))?;
    (!left.is_zero()).then_some(left)
}

/// A node's answer to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Vote {
    /// The claim is stored.
    Yes {
        /// The highest token that the node knows.
        last_token: Token,
        /// The token stored under this claim; zero if there is none.
        own_token: Token,
        /// The token of a live claim of the same owner, which must be shared; zero if there is
        /// none.
        owner_token: Token,
    },
    /// Another owner has the lock on this node.
    No {
        /// The highest token that the node knows.
        last_token: Token,
    },
    /// The node has restarted and is in its cool-down until the longest lease is over.
    CoolingDown,
    /// There was no answer, or none that counts.
    NoResponse,
}

/// A node's answer to the second round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteReply {
    /// The token is stored under this claim.
    Stored,
    /// The node knows this token, which is not lower.
    TokenTooLow(Token),
    /// A live claim of the same owner has this token, which must be shared.
    OwnerToken(Token),
    /// The claim is no longer there.
    ClaimMissing,
    /// There was no answer, or none that counts.
    NoResponse,
}

/// Why an attempt to acquire a lock failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// Others hold it, or each of several contenders has some of the nodes.
    Busy,
    /// Too few nodes answered.
    Unreachable,
    /// Too many nodes have restarted and are in their cool-down.
    CoolingDown,
}

/// What to do next about a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttemptAction {
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
pub struct QuorumAttempt {
    quorum: Quorum,
    /// The vote of each node, updated by its later answers.
    votes: Vec<Option<Vote>>,
    /// The nodes' answers to the token that is being written.
    write_replies: Vec<Option<WriteReply>>,
    /// The token of the second round, and how many such rounds there were before.
    token: Option<(Token, u32)>,
    /// The highest token or clock that any node reported.
    highest: Token,
}

impl QuorumAttempt {
    /// No node has answered yet.
    pub fn new(quorum: Quorum) -> Self {
        Self {
            quorum,
            votes: vec![None; quorum.node_count],
            write_replies: vec![None; quorum.node_count],
            token: None,
            highest: Token::default(),
        }
    }

    /// A chosen token must be higher than this node clock: the clock has moved on even where a
    /// token was lost.
    pub fn observe_clock(&mut self, clock: Token) {
        self.highest = self.highest.max(clock);
    }

    /// The token that is being written, if there is a second round.
    pub fn pending_token(&self) -> Option<Token> {
        self.token.map(|(token, _)| token)
    }

    /// Whether a node answered yes.
    pub fn has_yes_vote(&self, node: usize) -> bool {
        matches!(self.votes.get(node), Some(Some(Vote::Yes { .. })))
    }

    /// The highest token or clock that any node reported.
    pub fn highest(&self) -> Token {
        self.highest
    }

    /// Records a node's answer to the claim. Only the first answer of a node counts.
    pub fn vote(&mut self, node: usize, vote: Vote) -> AttemptAction {
        if let Some(slot @ None) = self.votes.get_mut(node) {
            *slot = Some(vote);
            self.highest = match vote {
                Vote::Yes { last_token: last, own_token: own, owner_token: bound } => {
                    self.highest.max(last).max(own).max(bound)
                }
                Vote::No { last_token: last } => self.highest.max(last),
                Vote::CoolingDown | Vote::NoResponse => self.highest,
            };
        }
        self.next_action()
    }

    /// Records a node's answer to the second round for `token`. Answers to an earlier round do not
    /// count.
    pub fn write_reply(&mut self, node: usize, token: Token, written: WriteReply) -> AttemptAction {
        if self.pending_token() != Some(token) {
            return AttemptAction::Wait;
        }
        if let (Some(slot @ None), Some(Some(vote))) = (self.write_replies.get_mut(node), self.votes.get_mut(node)) {
            *slot = Some(written);
            if let Vote::Yes { last_token: last, own_token: own, owner_token: bound } = vote {
                match written {
                    WriteReply::Stored => *own = token,
                    WriteReply::TokenTooLow(known) => *last = known,
                    WriteReply::OwnerToken(known) => *bound = known,
                    WriteReply::ClaimMissing => *vote = Vote::No { last_token: *last },
                    WriteReply::NoResponse => {}
                }
            }
            if let WriteReply::TokenTooLow(known) | WriteReply::OwnerToken(known) = written {
                self.highest = self.highest.max(known);
            }
        }
        self.next_action()
    }

    fn count(&self, which: impl Fn(usize, Vote) -> bool) -> usize {
        self.votes.iter().enumerate().filter(|(node, vote)| vote.is_some_and(|vote| which(*node, vote))).count()
    }

    fn next_action(&mut self) -> AttemptAction {
        let needed = self.quorum.majority;
        if let Some(token) = self.stored_by_majority() {
            return AttemptAction::Held(token);
        }
        let open = self.votes.iter().filter(|vote| vote.is_none()).count();
        let yes_votes = self.count(|_, vote| matches!(vote, Vote::Yes { .. }));
        if yes_votes + open < needed {
            // The remaining nodes may show whether the lock is held or too few nodes are left.
            return if open == 0 || self.is_failure_known() {
                AttemptAction::Failed(self.failure_reason())
            } else {
                AttemptAction::Wait
            };
        }
        match self.token {
            _ if yes_votes < needed => AttemptAction::Wait,
            None => self.start_write(open, 0),
            Some((token, before)) => {
                let may_store = |node: usize, vote| match vote {
                    Vote::Yes { own_token: own, .. } => {
                        own == token || matches!(self.write_replies.get(node), Some(None))
                    }
                    _ => false,
                };
                match self.count(may_store) + open >= needed {
                    true => AttemptAction::Wait,
                    false => self.start_write(open, before + 1),
                }
            }
        }
    }

    /// A token that a majority has stored under this claim. While a token is being written, only
    /// that one counts, because it replaces any other.
    fn stored_by_majority(&self) -> Option<Token> {
        let counts = |token: Token| {
            token > Token::default()
                && self.pending_token().is_none_or(|written| written == token)
                && self.count(|_, vote| matches!(vote, Vote::Yes { own_token: own, .. } if own == token))
                    >= self.quorum.majority
        };
        self.votes.iter().find_map(|vote| match vote {
            Some(Vote::Yes { own_token: own, .. }) if counts(*own) => Some(*own),
            _ => None,
        })
    }

    /// How many nodes could store a token, as far as is known.
    fn possible_stores(&self, token: Token) -> usize {
        self.count(|node, vote| {
            let Vote::Yes { last_token: last, own_token: own, owner_token: bound } = vote else { return false };
            let lost = matches!(self.write_replies.get(node), Some(Some(WriteReply::NoResponse)));
            own == token || !lost && (bound == token || bound == Token::default() && last < token)
        })
    }

    /// The token of the same owner's other claims, if a majority could have it; otherwise one above
    /// all others.
    fn choose_token(&self, open: usize) -> Token {
        let bounds = self.votes.iter().filter_map(|vote| match vote {
            Some(Vote::Yes { owner_token: bound, .. }) if *bound > Token::default() => Some(*bound),
            _ => None,
        });
        let shared = bounds.max_by_key(|token| (self.possible_stores(*token), *token));
        shared
            .filter(|token| self.possible_stores(*token) + open >= self.quorum.majority)
            .unwrap_or(Token(self.highest.0.saturating_add(1)))
    }

    /// Begins a second round, or another one. A lower token than before needs another attempt: late
    /// messages of this one would replace it.
    fn start_write(&mut self, open: usize, before: u32) -> AttemptAction {
        let token = self.choose_token(open);
        let possible = self.possible_stores(token);
        if before >= MAX_WRITE_ROUNDS
            || possible + open < self.quorum.majority
            || self.pending_token().is_some_and(|old| token <= old)
        {
            return AttemptAction::Failed(self.failure_reason());
        }
        if possible < self.quorum.majority {
            return AttemptAction::Wait;
        }
        self.token = Some((token, before));
        self.write_replies.fill(None);
        AttemptAction::Write(token)
    }

    /// Whether the reason for the missing majority is known, for any answers of the other nodes.
    fn is_failure_known(&self) -> bool {
        let tolerated = self.quorum.tolerated_failures();
        let refused = self.count(|_, vote| matches!(vote, Vote::No { .. }));
        refused > tolerated || self.count(|_, vote| vote == Vote::NoResponse) > tolerated
    }

    fn failure_reason(&self) -> Failure {
        let lost = |node: usize| matches!(self.write_replies.get(node), Some(Some(WriteReply::NoResponse)));
        let unresponsive = self.count(|node, vote| vote == Vote::NoResponse || lost(node));
        let abstaining = self.count(|_, vote| vote == Vote::CoolingDown);
        match (
            unresponsive > self.quorum.tolerated_failures(),
            unresponsive + abstaining > self.quorum.tolerated_failures(),
        ) {
            (true, _) => Failure::Unreachable,
            (_, true) => Failure::CoolingDown,
            _ => Failure::Busy,
        }
    }
}

/// The result of a request to all nodes: each may have done it, refused it, or not answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QuorumTally {
    quorum: Quorum,
    answers: Vec<Option<Option<bool>>>,
}

/// The decision of a majority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QuorumOutcome {
    /// Not known yet.
    Pending,
    /// A majority did it.
    Done,
    /// Too many nodes refused: a majority is no longer possible.
    Refused,
    /// All nodes have answered or will not, and there is no majority for either.
    Unknown,
}

impl QuorumTally {
    /// No node has answered yet.
    pub fn new(quorum: Quorum) -> Self {
        Self { quorum, answers: vec![None; quorum.node_count] }
    }

    /// Records that a node did it, refused, or did not answer. Only the first answer of a node
    /// counts.
    pub fn record_answer(&mut self, node: usize, answer: Option<bool>) -> QuorumOutcome {
        if let Some(slot @ None) = self.answers.get_mut(node) {
            *slot = Some(answer);
        }
        self.outcome()
    }

    /// The decision so far.
    pub fn outcome(&self) -> QuorumOutcome {
        let count = |wanted: Option<Option<bool>>| self.answers.iter().filter(|answer| **answer == wanted).count();
        if count(Some(Some(true))) >= self.quorum.majority {
            QuorumOutcome::Done
        } else if count(Some(Some(false))) > self.quorum.tolerated_failures() {
            QuorumOutcome::Refused
        } else if count(None) == 0 {
            QuorumOutcome::Unknown
        } else {
            QuorumOutcome::Pending
        }
    }

    /// How many nodes have answered.
    pub fn answer_count(&self) -> usize {
        self.answers.iter().filter(|answer| matches!(answer, Some(Some(_)))).count()
    }
}

#[cfg(test)]
#[path = "quorum_tests.rs"]
mod tests;
