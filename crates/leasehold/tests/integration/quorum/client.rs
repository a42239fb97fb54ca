//! A claim as the engine drives it, step by step: its messages, and its reactions to the answers.

use std::time::Duration;

use leasehold::clock::Instant;
use leasehold::internals::logic::acceptor::{AcceptorState, ClaimRequest};
use leasehold::internals::logic::lease::Drift;
use leasehold::internals::logic::quorum::{
    AttemptAction, Quorum, QuorumAttempt, QuorumOutcome, QuorumTally, Vote, WriteReply, validity,
};
use leasehold::{ClaimId, Owner, Token};

/// A request to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum NodeCommand {
    Acquire(Token),
    Write(Token),
    Renew(Token),
    Release,
    Withdraw,
}

/// A message to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Request {
    pub(crate) claim_request: ClaimRequest,
    pub(crate) command: NodeCommand,
}

/// A node's answer. Releases and withdrawals have none, because no client waits for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    Vote(Vote),
    WriteReply(Token, WriteReply),
    Renewed(Option<bool>),
}

/// Lets a node handle a message.
pub(crate) fn handle_request(node: &mut AcceptorState, now: u64, request: &Request) -> Option<Answer> {
    let claim_request = request.claim_request;
    match request.command {
        NodeCommand::Acquire(guess) => Some(Answer::Vote(node.acquire(now, claim_request, guess))),
        NodeCommand::Write(token) => Some(Answer::WriteReply(token, node.write_token(now, claim_request, token))),
        NodeCommand::Renew(token) => Some(Answer::Renewed(node.renew(now, claim_request, token))),
        NodeCommand::Release => {
            node.release(claim_request.claim, u64::MAX);
            None
        }
        NodeCommand::Withdraw => {
            node.withdraw(claim_request.claim, claim_request.attempt);
            None
        }
    }
}

/// The outcome of a step for a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ClaimOutcome {
    Granted(Token),
    Extended,
    Failed,
    Lost,
}

/// The effects of a client's step.
#[derive(Clone, Debug, Default)]
pub(crate) struct Effects {
    pub(crate) requests: Vec<(usize, Request)>,
    pub(crate) event: Option<ClaimOutcome>,
}

/// A renewal in progress.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Renewal {
    attempt: u64,
    sent: Instant,
    tally: QuorumTally,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ClaimPhase {
    Idle,
    Acquiring { attempt: u64, sent: Instant, taking: QuorumAttempt, asked: Vec<Option<Token>> },
    Held { token: Token, until: Instant, renewal: Option<Renewal> },
}

/// One claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    pub(crate) claim: ClaimId,
    pub(crate) owner: Option<Owner>,
    pub(crate) quorum: Quorum,
    pub(crate) phase: ClaimPhase,
    /// For each node, the request that it has not answered yet.
    pub(crate) unanswered: Vec<Option<NodeCommand>>,
}

/// The duration of leases; one node's tick is this many nanoseconds of the client's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseTimes {
    pub(crate) ttl: Duration,
    pub(crate) node_ttl: u64,
    pub(crate) drift: Drift,
}

impl Client {
    pub(crate) fn new(claim: u128, owner: Option<u128>, nodes: usize) -> Self {
        let (claim, owner) = (ClaimId::from_bits(claim), owner.map(Owner::from_bits));
        Self {
            claim,
            owner,
            quorum: Quorum::from_node_count(nodes),
            phase: ClaimPhase::Idle,
            unanswered: vec![None; nodes],
        }
    }

    /// The token of the held lock, and until when it is held, on the client's own clock.
    pub(crate) fn held_lease(&self) -> Option<(Token, Instant)> {
        match &self.phase {
            ClaimPhase::Held { token, until, .. } => Some((*token, *until)),
            _ => None,
        }
    }

    fn requests_to_all(&self, options: &LeaseTimes, attempt: u64, command: NodeCommand) -> Vec<(usize, Request)> {
        (0..self.quorum.node_count).map(|node| (node, self.request(options, attempt, command))).collect()
    }

    fn request(&self, options: &LeaseTimes, attempt: u64, command: NodeCommand) -> Request {
        Request {
            claim_request: ClaimRequest { claim: self.claim, attempt, owner: self.owner, ttl: options.node_ttl },
            command,
        }
    }

    /// Sends requests, and records which answers are open.
    fn send(&mut self, sends: Vec<(usize, Request)>, event: Option<ClaimOutcome>) -> Effects {
        for (node, request) in &sends {
            self.unanswered[*node] = Some(request.command)
                .filter(|command| !matches!(command, NodeCommand::Release | NodeCommand::Withdraw));
        }
        Effects { requests: sends, event }
    }

    /// Whether the client waits for this answer.
    pub(crate) fn is_waiting_for(&self, node: usize, attempt: u64, answer: Answer) -> bool {
        self.pending_attempt() == Some(attempt)
            && match (self.unanswered[node], answer) {
                (Some(NodeCommand::Acquire(_)), Answer::Vote(_))
                | (Some(NodeCommand::Renew(_)), Answer::Renewed(_)) => true,
                (Some(NodeCommand::Write(token)), Answer::WriteReply(other, _)) => token == other,
                _ => false,
            }
    }

    /// Begins an attempt.
    pub(crate) fn start(&mut self, options: &LeaseTimes, now: Instant, attempt: u64, guess: Token) -> Effects {
        let guess = if self.owner.is_some() { Token::default() } else { guess };
        let (taking, asked) = (QuorumAttempt::new(self.quorum), vec![None; self.quorum.node_count]);
        self.phase = ClaimPhase::Acquiring { attempt, sent: now, taking, asked };
        self.send(self.requests_to_all(options, attempt, NodeCommand::Acquire(guess)), None)
    }

    /// Begins a renewal.
    pub(crate) fn renew(&mut self, options: &LeaseTimes, now: Instant, attempt: u64) -> Effects {
        let ClaimPhase::Held { token, renewal, .. } = &mut self.phase else { return Effects::default() };
        *renewal = Some(Renewal { attempt, sent: now, tally: QuorumTally::new(self.quorum) });
        let command = NodeCommand::Renew(*token);
        self.send(self.requests_to_all(options, attempt, command), None)
    }

    /// Releases the lock, or withdraws the attempt.
    pub(crate) fn release(&mut self, options: &LeaseTimes) -> Effects {
        self.phase = ClaimPhase::Idle;
        self.send(self.requests_to_all(options, u64::MAX, NodeCommand::Release), None)
    }

    /// Handles the end of the lease.
    pub(crate) fn expire(&mut self, options: &LeaseTimes, now: Instant) -> Effects {
        match self.held_lease() {
            Some((_, until)) if until <= now => Effects { event: Some(ClaimOutcome::Lost), ..self.release(options) },
            _ => Effects::default(),
        }
    }

    /// The attempt or renewal that waits for answers.
    pub(crate) fn pending_attempt(&self) -> Option<u64> {
        match &self.phase {
            ClaimPhase::Acquiring { attempt, .. } => Some(*attempt),
            ClaimPhase::Held { renewal: Some(renewal), .. } => Some(renewal.attempt),
            _ => None,
        }
    }

    /// Handles a node's answer to this attempt or renewal.
    pub(crate) fn handle_answer(
        &mut self,
        options: &LeaseTimes,
        now: Instant,
        node: usize,
        attempt: u64,
        answer: Answer,
    ) -> Effects {
        if !self.is_waiting_for(node, attempt, answer) {
            return Effects::default();
        }
        self.unanswered[node] = None;
        match (&mut self.phase, answer) {
            (ClaimPhase::Acquiring { taking, .. }, Answer::Vote(vote)) => {
                let next = taking.vote(node, vote);
                self.apply_action(options, now, next)
            }
            (ClaimPhase::Acquiring { taking, .. }, Answer::WriteReply(token, written)) => {
                let next = taking.write_reply(node, token, written);
                self.apply_action(options, now, next)
            }
            (ClaimPhase::Held { .. }, Answer::Renewed(answer)) => self.handle_renew_answer(options, now, node, answer),
            _ => Effects::default(),
        }
    }

    fn apply_action(&mut self, options: &LeaseTimes, now: Instant, next: AttemptAction) -> Effects {
        let ClaimPhase::Acquiring { attempt, sent, taking, asked } = &mut self.phase else { return Effects::default() };
        let (attempt, sent) = (*attempt, *sent);
        match next {
            AttemptAction::Wait | AttemptAction::Write(_) => {
                let Some(token) = taking.pending_token() else { return Effects::default() };
                let due =
                    |(node, asked): &(usize, &mut Option<Token>)| taking.has_yes_vote(*node) && **asked != Some(token);
                let nodes: Vec<usize> = asked
                    .iter_mut()
                    .enumerate()
                    .filter(due)
                    .map(|(node, asked)| {
                        *asked = Some(token);
                        node
                    })
                    .collect();
                let request = self.request(options, attempt, NodeCommand::Write(token));
                self.send(nodes.into_iter().map(|node| (node, request)).collect(), None)
            }
            AttemptAction::Held(token) => match validity(sent, now, options.ttl, options.drift) {
                Some(left) => {
                    self.phase = ClaimPhase::Held { token, until: now.saturating_add(left), renewal: None };
                    self.unanswered.fill(None);
                    Effects { requests: Vec::new(), event: Some(ClaimOutcome::Granted(token)) }
                }
                None => self.withdraw(options, attempt),
            },
            AttemptAction::Failed(_) => self.withdraw(options, attempt),
        }
    }

    fn withdraw(&mut self, options: &LeaseTimes, attempt: u64) -> Effects {
        self.phase = ClaimPhase::Idle;
        self.send(self.requests_to_all(options, attempt, NodeCommand::Withdraw), Some(ClaimOutcome::Failed))
    }

    fn handle_renew_answer(
        &mut self,
        options: &LeaseTimes,
        now: Instant,
        node: usize,
        answer: Option<bool>,
    ) -> Effects {
        let ClaimPhase::Held { until, renewal, .. } = &mut self.phase else { return Effects::default() };
        let Some(Renewal { sent, tally, .. }) = renewal else { return Effects::default() };
        match tally.record_answer(node, answer) {
            QuorumOutcome::Pending => Effects::default(),
            QuorumOutcome::Done if now < *until => {
                let left = validity(*sent, now, options.ttl, options.drift);
                *until = left.map_or(*until, |left| now.saturating_add(left).max(*until));
                *renewal = None;
                self.unanswered.fill(None);
                Effects { requests: Vec::new(), event: Some(ClaimOutcome::Extended) }
            }
            QuorumOutcome::Done | QuorumOutcome::Refused => {
                Effects { event: Some(ClaimOutcome::Lost), ..self.release(options) }
            }
            QuorumOutcome::Unknown => {
                *renewal = None;
                Effects::default()
            }
        }
    }
}
