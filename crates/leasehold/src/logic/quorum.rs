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

/// How often one attempt may replace a token that is too low by a higher one.
const MAX_WRITE_ROUNDS: u32 = 3;

/// The number of nodes, and how many are a majority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quorum {
    /// The number of nodes.
    pub node_count: usize,
    /// The smallest number of nodes that is more than half.
    pub majority: usize,
}

impl Quorum {
    /// The quorum of this many nodes.
    pub const fn from_node_count(nodes: usize) -> Self {
        Self { node_count: nodes, majority: nodes / 2 + 1 }
    }

    /// How many nodes may fail while a majority remains.
    pub const fn tolerated_failures(self) -> usize {
        self.node_count - self.majority
    }
}

/// How long a client waits for one node's answer: at most `max` and a tenth of the TTL, but at
/// least 1 ms.
pub fn node_timeout(ttl: Duration, max: Duration) -> Duration {
    max.min(ttl / 10).max(Duration::from_millis(1))
}

/// The time left at `now` of a lease whose first request was sent at `sent`: the TTL less the time
/// since then and the drift. `None`: no time is left.
pub fn validity(sent: Instant, now: Instant, ttl: Duration, drift: Drift) -> Option<Duration> {
    let left = ttl.checked_sub(now.duration_since(sent))?.checked_sub(drift.margin_for(ttl))?;
    (!left.is_zero()).then_some(left)
}

/// A node's answer to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Vote {
    /// The node has stored the claim.
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
    /// The node has restarted and cools down until the longest lease is over.
    CoolingDown,
    /// The node did not answer in time, or answered with an error.
    NoResponse,
}

/// A node's answer in the second round, to the request to store a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteReply {
    /// The node has stored the token under this claim.
    Stored,
    /// Refused: the node knows this token, which is not lower.
    TokenTooLow(Token),
    /// Refused: a live claim of the same owner has this token, which must be shared.
    OwnerToken(Token),
    /// Refused: the node does not have the claim any more.
    ClaimMissing,
    /// The node did not answer in time, or answered with an error.
    NoResponse,
}

/// Why an attempt to acquire a lock failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// Another owner holds the lock, or several contenders have some of the nodes each.
    Busy,
    /// Too few nodes answered.
    Unreachable,
    /// Too many nodes cool down after a restart.
    CoolingDown,
}

/// What the client does next in an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttemptAction {
    /// Wait for more answers.
    Wait,
    /// Have every node that answered yes store this token, including those that answer yes later.
    Write(Token),
    /// A majority has stored this token: the claim holds the lock, if time of its lease is left.
    Held(Token),
    /// The lock cannot be acquired now: withdraw the claim from all nodes.
    Failed(Failure),
}

/// One attempt to acquire a lock, answer by answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QuorumAttempt {
    quorum: Quorum,
    /// The vote of each node, updated by its later answers; `None`: no answer yet.
    votes: Vec<Option<Vote>>,
    /// Each node's answer to the token that is being written; `None`: no answer yet.
    write_replies: Vec<Option<WriteReply>>,
    /// The token that is being written, and how many tokens were written before; `None`: there is
    /// no second round yet.
    token: Option<(Token, u32)>,
    /// The highest token or clock that any node reported.
    highest: Token,
}

impl QuorumAttempt {
    /// An attempt that no node has answered yet.
    pub fn new(quorum: Quorum) -> Self {
        Self {
            quorum,
            votes: vec![None; quorum.node_count],
            write_replies: vec![None; quorum.node_count],
            token: None,
            highest: Token::default(),
        }
    }

    /// Stores that a node's clock shows `clock`, as a token. A token that the attempt chooses is
    /// higher, because a node that lost a token still has its clock.
    pub fn observe_clock(&mut self, clock: Token) {
        self.highest = self.highest.max(clock);
    }

    /// The token that is being written; `None`: there is no second round yet.
    pub fn pending_token(&self) -> Option<Token> {
        self.token.map(|(token, _)| token)
    }

    /// Whether the node with this index answered yes.
    pub fn has_yes_vote(&self, node: usize) -> bool {
        matches!(self.votes.get(node), Some(Some(Vote::Yes { .. })))
    }

    /// The highest token or clock that any node reported.
    pub fn highest(&self) -> Token {
        self.highest
    }

    /// Records a node's answer to the claim, and returns what to do next. Only the first answer of
    /// a node counts.
    pub fn vote(&mut self, node: usize, vote: Vote) -> AttemptAction {
        if let Some(slot @ None) = self.votes.get_mut(node) {
            *slot = Some(vote);
            self.highest = match vote {
                Vote::Yes { last_token, own_token, owner_token } => {
                    self.highest.max(last_token).max(own_token).max(owner_token)
                }
                Vote::No { last_token } => self.highest.max(last_token),
                Vote::CoolingDown | Vote::NoResponse => self.highest,
            };
        }
        self.next_action()
    }

    /// Records a node's answer to the request to store `token`, and returns what to do next.
    /// Answers about an earlier token do not count.
    pub fn write_reply(&mut self, node: usize, token: Token, reply: WriteReply) -> AttemptAction {
        if self.pending_token() != Some(token) {
            return AttemptAction::Wait;
        }
        if let (Some(slot @ None), Some(Some(vote))) = (self.write_replies.get_mut(node), self.votes.get_mut(node)) {
            *slot = Some(reply);
            if let Vote::Yes { last_token, own_token, owner_token } = vote {
                match reply {
                    WriteReply::Stored => *own_token = token,
                    WriteReply::TokenTooLow(known) => *last_token = known,
                    WriteReply::OwnerToken(known) => *owner_token = known,
                    WriteReply::ClaimMissing => *vote = Vote::No { last_token: *last_token },
                    WriteReply::NoResponse => {}
                }
            }
            if let WriteReply::TokenTooLow(known) | WriteReply::OwnerToken(known) = reply {
                self.highest = self.highest.max(known);
            }
        }
        self.next_action()
    }

    /// How many nodes have answered with a vote that matches.
    fn count(&self, matches: impl Fn(usize, Vote) -> bool) -> usize {
        self.votes.iter().enumerate().filter(|(node, vote)| vote.is_some_and(|vote| matches(*node, vote))).count()
    }

    /// What to do next, by the answers so far.
    fn next_action(&mut self) -> AttemptAction {
        let needed = self.quorum.majority;
        if let Some(token) = self.stored_by_majority() {
            return AttemptAction::Held(token);
        }
        let unanswered = self.votes.iter().filter(|vote| vote.is_none()).count();
        let yes_votes = self.count(|_, vote| matches!(vote, Vote::Yes { .. }));
        if yes_votes + unanswered < needed {
            // The other nodes' answers may still change the reason of the failure.
            return if unanswered == 0 || self.is_failure_known() {
                AttemptAction::Failed(self.failure_reason())
            } else {
                AttemptAction::Wait
            };
        }
        match self.token {
            _ if yes_votes < needed => AttemptAction::Wait,
            None => self.start_write(unanswered, 0),
            Some((token, writes_before)) => {
                let may_store = |node: usize, vote| match vote {
                    Vote::Yes { own_token, .. } => {
                        own_token == token || matches!(self.write_replies.get(node), Some(None))
                    }
                    _ => false,
                };
                match self.count(may_store) + unanswered >= needed {
                    true => AttemptAction::Wait,
                    false => self.start_write(unanswered, writes_before + 1),
                }
            }
        }
    }

    /// The token that a majority has stored under this claim, if one has. While a token is being
    /// written, only that one counts, because it replaces any other.
    fn stored_by_majority(&self) -> Option<Token> {
        let counts = |token: Token| {
            token > Token::default()
                && self.pending_token().is_none_or(|written| written == token)
                && self.count(|_, vote| matches!(vote, Vote::Yes { own_token, .. } if own_token == token))
                    >= self.quorum.majority
        };
        self.votes.iter().find_map(|vote| match vote {
            Some(Vote::Yes { own_token, .. }) if counts(*own_token) => Some(*own_token),
            _ => None,
        })
    }

    /// How many of the nodes that answered have stored this token or could store it.
    fn possible_stores(&self, token: Token) -> usize {
        self.count(|node, vote| {
            let Vote::Yes { last_token, own_token, owner_token } = vote else { return false };
            let is_unresponsive = matches!(self.write_replies.get(node), Some(Some(WriteReply::NoResponse)));
            own_token == token
                || !is_unresponsive && (owner_token == token || owner_token == Token::default() && last_token < token)
        })
    }

    /// The token to write: that of the same owner's other claims if a majority could store it, and
    /// otherwise one above all others. `unanswered` nodes have not voted yet.
    fn choose_token(&self, unanswered: usize) -> Token {
        let owner_tokens = self.votes.iter().filter_map(|vote| match vote {
            Some(Vote::Yes { owner_token, .. }) if *owner_token > Token::default() => Some(*owner_token),
            _ => None,
        });
        let shared = owner_tokens.max_by_key(|token| (self.possible_stores(*token), *token));
        shared
            .filter(|token| self.possible_stores(*token) + unanswered >= self.quorum.majority)
            .unwrap_or(Token(self.highest.0.saturating_add(1)))
    }

    /// Begins to write a token, after `writes_before` others. The attempt fails if the token is
    /// lower than an earlier one: late messages of this attempt could replace it.
    fn start_write(&mut self, unanswered: usize, writes_before: u32) -> AttemptAction {
        let token = self.choose_token(unanswered);
        let possible = self.possible_stores(token);
        if writes_before >= MAX_WRITE_ROUNDS
            || possible + unanswered < self.quorum.majority
            || self.pending_token().is_some_and(|old| token <= old)
        {
            return AttemptAction::Failed(self.failure_reason());
        }
        if possible < self.quorum.majority {
            return AttemptAction::Wait;
        }
        self.token = Some((token, writes_before));
        self.write_replies.fill(None);
        AttemptAction::Write(token)
    }

    /// Whether the reason for the missing majority is certain, whatever the other nodes answer.
    fn is_failure_known(&self) -> bool {
        let tolerated = self.quorum.tolerated_failures();
        let refused = self.count(|_, vote| matches!(vote, Vote::No { .. }));
        refused > tolerated || self.count(|_, vote| vote == Vote::NoResponse) > tolerated
    }

    /// Why the attempt failed, by the answers so far.
    fn failure_reason(&self) -> Failure {
        let no_write_reply = |node: usize| matches!(self.write_replies.get(node), Some(Some(WriteReply::NoResponse)));
        let unresponsive = self.count(|node, vote| vote == Vote::NoResponse || no_write_reply(node));
        let cooling_down = self.count(|_, vote| vote == Vote::CoolingDown);
        match (
            unresponsive > self.quorum.tolerated_failures(),
            unresponsive + cooling_down > self.quorum.tolerated_failures(),
        ) {
            (true, _) => Failure::Unreachable,
            (_, true) => Failure::CoolingDown,
            _ => Failure::Busy,
        }
    }
}

/// The answers to a renewal or another request that was sent to all nodes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QuorumTally {
    quorum: Quorum,
    /// For each node: `None` until it answers or its time is over. Then `Some(true)`: it did what
    /// was requested. `Some(false)`: it refused. `None`: it did not answer.
    answers: Vec<Option<Option<bool>>>,
}

/// What the answers of all nodes mean together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QuorumOutcome {
    /// The missing answers decide.
    Pending,
    /// A majority did what was requested.
    Done,
    /// Too many nodes refused: a majority is no longer possible.
    Refused,
    /// No further answer comes, and the answers show neither of the two.
    Unknown,
}

impl QuorumTally {
    /// A tally without answers.
    pub fn new(quorum: Quorum) -> Self {
        Self { quorum, answers: vec![None; quorum.node_count] }
    }

    /// Records that a node did what was requested (`Some(true)`), refused (`Some(false)`), or did
    /// not answer (`None`). Only the first call for a node counts. Returns the outcome so far.
    pub fn record_answer(&mut self, node: usize, answer: Option<bool>) -> QuorumOutcome {
        if let Some(slot @ None) = self.answers.get_mut(node) {
            *slot = Some(answer);
        }
        self.outcome()
    }

    /// The outcome, by the answers so far.
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

    /// How many nodes have answered, whether they did what was requested or refused.
    pub fn answer_count(&self) -> usize {
        self.answers.iter().filter(|answer| matches!(answer, Some(Some(_)))).count()
    }
}

#[cfg(test)]
#[path = "quorum_tests.rs"]
mod tests;
