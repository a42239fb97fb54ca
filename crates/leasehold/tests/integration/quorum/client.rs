//! A client with one claim, as the `redlock:` engine runs it: which messages it sends, and how it
//! reacts to the answers.

use std::time::Duration;

use leasehold::clock::Instant;
use leasehold::internals::logic::acceptor::{AcceptorState, ClaimRequest};
use leasehold::internals::logic::lease::Drift;
use leasehold::internals::logic::quorum::{
    AttemptAction, Quorum, QuorumAttempt, QuorumOutcome, QuorumTally, Vote, WriteReply, validity,
};
use leasehold::{ClaimId, Owner, Token};

/// What a client requests from a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum NodeCommand {
    /// Acquire the lock, with this guess of the token; zero: no guess.
    Acquire(Token),
    /// Store this token.
    Write(Token),
    /// Extend the lease with this token.
    Renew(Token),
    /// Release the claim, and keep its token as the highest known.
    Release,
    /// Remove the claim of a failed attempt.
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
    /// The answer to `Acquire`.
    Vote(Vote),
    /// The answer to `Write` of this token.
    WriteReply(Token, WriteReply),
    /// The answer to `Renew`: whether the node extended the lease; `None`: it did not answer.
    Renewed(Option<bool>),
}

/// Lets a node handle a message at `now`, on its own clock. `None`: the message has no answer.
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

/// A change of a claim's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ClaimOutcome {
    /// The claim holds the lock with this token.
    Granted(Token),
    /// The lease of the claim was extended.
    Extended,
    /// The attempt failed.
    Failed,
    /// The claim lost the lock.
    Lost,
}

/// The effects of a client's step.
#[derive(Clone, Debug, Default)]
pub(crate) struct Effects {
    /// The messages to send, each with the index of its node.
    pub(crate) requests: Vec<(usize, Request)>,
    /// The change of the claim's state, if there is one.
    pub(crate) event: Option<ClaimOutcome>,
}

/// A renewal in progress.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Renewal {
    attempt: u64,
    sent: Instant,
    tally: QuorumTally,
}

/// The state of a claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ClaimPhase {
    /// The claim neither holds the lock nor requests it.
    Idle,
    /// An attempt is in progress.
    Acquiring {
        attempt: u64,
        sent: Instant,
        quorum_attempt: QuorumAttempt,
        /// The token that was last sent to each node to store; `None`: none was.
        sent_tokens: Vec<Option<Token>>,
    },
    /// The claim holds the lock until a time on the client's clock.
    Held { token: Token, until: Instant, renewal: Option<Renewal> },
}

/// A client with one claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    pub(crate) claim: ClaimId,
    pub(crate) owner: Option<Owner>,
    pub(crate) quorum: Quorum,
    pub(crate) phase: ClaimPhase,
    /// For each node, the request that it has not answered yet.
    pub(crate) unanswered: Vec<Option<NodeCommand>>,
}

/// How long leases last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseTimes {
    /// The TTL on the client's clock.
    pub(crate) ttl: Duration,
    /// The same TTL, in the unit of the nodes' clocks.
    pub(crate) node_ttl: u64,
    /// The drift that the client deducts from its lease.
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

    /// The token of the held lock, and until when it is held, on the client's own clock. `None`:
    /// the claim does not hold it.
    pub(crate) fn held_lease(&self) -> Option<(Token, Instant)> {
        match &self.phase {
            ClaimPhase::Held { token, until, .. } => Some((*token, *until)),
            _ => None,
        }
    }

    /// The same request to every node.
    fn requests_to_all(&self, times: &LeaseTimes, attempt: u64, command: NodeCommand) -> Vec<(usize, Request)> {
        (0..self.quorum.node_count).map(|node| (node, self.request(times, attempt, command))).collect()
    }

    fn request(&self, times: &LeaseTimes, attempt: u64, command: NodeCommand) -> Request {
        Request {
            claim_request: ClaimRequest { claim: self.claim, attempt, owner: self.owner, ttl: times.node_ttl },
            command,
        }
    }

    /// The effects with these requests and this event. Stores which answers the client waits for.
    fn send(&mut self, requests: Vec<(usize, Request)>, event: Option<ClaimOutcome>) -> Effects {
        for (node, request) in &requests {
            self.unanswered[*node] = Some(request.command)
                .filter(|command| !matches!(command, NodeCommand::Release | NodeCommand::Withdraw));
        }
        Effects { requests, event }
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

    /// Begins an attempt with this number and guess of the token.
    pub(crate) fn start(&mut self, times: &LeaseTimes, now: Instant, attempt: u64, guess: Token) -> Effects {
        let guess = if self.owner.is_some() { Token::default() } else { guess };
        let (quorum_attempt, sent_tokens) = (QuorumAttempt::new(self.quorum), vec![None; self.quorum.node_count]);
        self.phase = ClaimPhase::Acquiring { attempt, sent: now, quorum_attempt, sent_tokens };
        self.send(self.requests_to_all(times, attempt, NodeCommand::Acquire(guess)), None)
    }

    /// Begins a renewal, if the claim holds the lock. `attempt` is above the number of any attempt.
    pub(crate) fn renew(&mut self, times: &LeaseTimes, now: Instant, attempt: u64) -> Effects {
        let ClaimPhase::Held { token, renewal, .. } = &mut self.phase else { return Effects::default() };
        *renewal = Some(Renewal { attempt, sent: now, tally: QuorumTally::new(self.quorum) });
        let command = NodeCommand::Renew(*token);
        self.send(self.requests_to_all(times, attempt, command), None)
    }

    /// Releases the lock, or withdraws the attempt.
    pub(crate) fn release(&mut self, times: &LeaseTimes) -> Effects {
        self.phase = ClaimPhase::Idle;
        self.send(self.requests_to_all(times, u64::MAX, NodeCommand::Release), None)
    }

    /// Ends the lease if its time is over at `now`.
    pub(crate) fn expire(&mut self, times: &LeaseTimes, now: Instant) -> Effects {
        match self.held_lease() {
            Some((_, until)) if until <= now => Effects { event: Some(ClaimOutcome::Lost), ..self.release(times) },
            _ => Effects::default(),
        }
    }

    /// The number of the attempt or renewal that waits for answers; `None`: there is none.
    pub(crate) fn pending_attempt(&self) -> Option<u64> {
        match &self.phase {
            ClaimPhase::Acquiring { attempt, .. } => Some(*attempt),
            ClaimPhase::Held { renewal: Some(renewal), .. } => Some(renewal.attempt),
            _ => None,
        }
    }

    /// Handles a node's answer to the attempt or renewal with this number, if the client waits for
    /// it.
    pub(crate) fn handle_answer(
        &mut self,
        times: &LeaseTimes,
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
            (ClaimPhase::Acquiring { quorum_attempt, .. }, Answer::Vote(vote)) => {
                let next = quorum_attempt.vote(node, vote);
                self.apply_action(times, now, next)
            }
            (ClaimPhase::Acquiring { quorum_attempt, .. }, Answer::WriteReply(token, reply)) => {
                let next = quorum_attempt.write_reply(node, token, reply);
                self.apply_action(times, now, next)
            }
            (ClaimPhase::Held { .. }, Answer::Renewed(answer)) => self.handle_renew_answer(times, now, node, answer),
            _ => Effects::default(),
        }
    }

    /// Does what the attempt requires next.
    fn apply_action(&mut self, times: &LeaseTimes, now: Instant, next: AttemptAction) -> Effects {
        let ClaimPhase::Acquiring { attempt, sent, quorum_attempt, sent_tokens } = &mut self.phase else {
            return Effects::default();
        };
        let (attempt, sent) = (*attempt, *sent);
        match next {
            AttemptAction::Wait | AttemptAction::Write(_) => {
                let Some(token) = quorum_attempt.pending_token() else { return Effects::default() };
                let needs_token = |(node, sent_token): &(usize, &mut Option<Token>)| {
                    quorum_attempt.has_yes_vote(*node) && **sent_token != Some(token)
                };
                let nodes: Vec<usize> = sent_tokens
                    .iter_mut()
                    .enumerate()
                    .filter(needs_token)
                    .map(|(node, sent_token)| {
                        *sent_token = Some(token);
                        node
                    })
                    .collect();
                let request = self.request(times, attempt, NodeCommand::Write(token));
                self.send(nodes.into_iter().map(|node| (node, request)).collect(), None)
            }
            AttemptAction::Held(token) => match validity(sent, now, times.ttl, times.drift) {
                Some(left) => {
                    self.phase = ClaimPhase::Held { token, until: now.saturating_add(left), renewal: None };
                    self.unanswered.fill(None);
                    Effects { requests: Vec::new(), event: Some(ClaimOutcome::Granted(token)) }
                }
                None => self.withdraw(times, attempt),
            },
            AttemptAction::Failed(_) => self.withdraw(times, attempt),
        }
    }

    /// Ends a failed attempt.
    fn withdraw(&mut self, times: &LeaseTimes, attempt: u64) -> Effects {
        self.phase = ClaimPhase::Idle;
        self.send(self.requests_to_all(times, attempt, NodeCommand::Withdraw), Some(ClaimOutcome::Failed))
    }

    /// Handles a node's answer to a renewal; `None`: the node did not answer.
    fn handle_renew_answer(&mut self, times: &LeaseTimes, now: Instant, node: usize, answer: Option<bool>) -> Effects {
        let ClaimPhase::Held { until, renewal, .. } = &mut self.phase else { return Effects::default() };
        let Some(Renewal { sent, tally, .. }) = renewal else { return Effects::default() };
        match tally.record_answer(node, answer) {
            QuorumOutcome::Pending => Effects::default(),
            QuorumOutcome::Done if now < *until => {
                let left = validity(*sent, now, times.ttl, times.drift);
                *until = left.map_or(*until, |left| now.saturating_add(left).max(*until));
                *renewal = None;
                self.unanswered.fill(None);
                Effects { requests: Vec::new(), event: Some(ClaimOutcome::Extended) }
            }
            QuorumOutcome::Done | QuorumOutcome::Refused => {
                Effects { event: Some(ClaimOutcome::Lost), ..self.release(times) }
            }
            QuorumOutcome::Unknown => {
                *renewal = None;
                Effects::default()
            }
        }
    }
}
