//! A claim as the engine drives it, step by step: its messages, and its reactions to the answers.

use std::time::Duration;

use leasehold::clock::Moment;
use leasehold::logic::ballots::{Ask, Ballots};
use leasehold::logic::lease::Drift;
use leasehold::logic::quorum::{Move, Outcome, Quorum, Taking, Tally, Vote, Written, validity};
use leasehold::{ClaimId, Owner, Token};

/// A request to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Order {
    Take(Token),
    Write(Token),
    Renew(Token),
    Release,
    Withdraw,
}

/// A message to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Request {
    pub(crate) ask: Ask,
    pub(crate) order: Order,
}

/// A node's answer. Releases and withdrawals have none, because no client waits for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    Vote(Vote),
    Wrote(Token, Written),
    Renewed(Option<bool>),
}

/// Lets a node handle a message.
pub(crate) fn serve(node: &mut Ballots, now: u64, request: &Request) -> Option<Answer> {
    let ask = request.ask;
    match request.order {
        Order::Take(guess) => Some(Answer::Vote(node.take(now, ask, guess))),
        Order::Write(token) => Some(Answer::Wrote(token, node.write(now, ask, token))),
        Order::Renew(token) => Some(Answer::Renewed(node.renew(now, ask, token))),
        Order::Release => {
            node.release(ask.claim, u64::MAX);
            None
        }
        Order::Withdraw => {
            node.withdraw(ask.claim, ask.attempt);
            None
        }
    }
}

/// The outcome of a step for a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Event {
    Granted(Token),
    Extended,
    Failed,
    Lost,
}

/// The effects of a client's step.
#[derive(Clone, Debug, Default)]
pub(crate) struct Effects {
    pub(crate) sends: Vec<(usize, Request)>,
    pub(crate) event: Option<Event>,
}

/// A renewal in progress.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Renewal {
    attempt: u64,
    sent: Moment,
    tally: Tally,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Idle,
    Taking { attempt: u64, sent: Moment, taking: Taking, asked: Vec<Option<Token>> },
    Held { token: Token, until: Moment, renewal: Option<Renewal> },
}

/// One claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    pub(crate) claim: ClaimId,
    pub(crate) owner: Option<Owner>,
    pub(crate) quorum: Quorum,
    pub(crate) phase: Phase,
    /// For each node, the request that it has not answered yet.
    pub(crate) open: Vec<Option<Order>>,
}

/// The duration of leases; one node's tick is this many nanoseconds of the client's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) ttl: Duration,
    pub(crate) node_ttl: u64,
    pub(crate) drift: Drift,
}

impl Client {
    pub(crate) fn new(claim: u128, owner: Option<u128>, nodes: usize) -> Self {
        let (claim, owner) = (ClaimId::from_bits(claim), owner.map(Owner::from_bits));
        Self { claim, owner, quorum: Quorum::of(nodes), phase: Phase::Idle, open: vec![None; nodes] }
    }

    /// The token of the held lock, and until when it is held, on the client's own clock.
    pub(crate) fn held(&self) -> Option<(Token, Moment)> {
        match &self.phase {
            Phase::Held { token, until, .. } => Some((*token, *until)),
            _ => None,
        }
    }

    fn to_all(&self, terms: &Terms, attempt: u64, order: Order) -> Vec<(usize, Request)> {
        (0..self.quorum.nodes).map(|node| (node, self.request(terms, attempt, order))).collect()
    }

    fn request(&self, terms: &Terms, attempt: u64, order: Order) -> Request {
        Request { ask: Ask { claim: self.claim, attempt, owner: self.owner, ttl: terms.node_ttl }, order }
    }

    /// Sends requests, and records which answers are open.
    fn sends(&mut self, sends: Vec<(usize, Request)>, event: Option<Event>) -> Effects {
        for (node, request) in &sends {
            self.open[*node] = Some(request.order).filter(|order| !matches!(order, Order::Release | Order::Withdraw));
        }
        Effects { sends, event }
    }

    /// Whether the client waits for this answer.
    pub(crate) fn expects(&self, node: usize, attempt: u64, answer: Answer) -> bool {
        self.waiting() == Some(attempt)
            && match (self.open[node], answer) {
                (Some(Order::Take(_)), Answer::Vote(_)) | (Some(Order::Renew(_)), Answer::Renewed(_)) => true,
                (Some(Order::Write(token)), Answer::Wrote(other, _)) => token == other,
                _ => false,
            }
    }

    /// Begins an attempt.
    pub(crate) fn start(&mut self, terms: &Terms, now: Moment, attempt: u64, guess: Token) -> Effects {
        let guess = if self.owner.is_some() { Token::default() } else { guess };
        let (taking, asked) = (Taking::new(self.quorum), vec![None; self.quorum.nodes]);
        self.phase = Phase::Taking { attempt, sent: now, taking, asked };
        self.sends(self.to_all(terms, attempt, Order::Take(guess)), None)
    }

    /// Begins a renewal.
    pub(crate) fn renew(&mut self, terms: &Terms, now: Moment, attempt: u64) -> Effects {
        let Phase::Held { token, renewal, .. } = &mut self.phase else { return Effects::default() };
        *renewal = Some(Renewal { attempt, sent: now, tally: Tally::new(self.quorum) });
        let order = Order::Renew(*token);
        self.sends(self.to_all(terms, attempt, order), None)
    }

    /// Releases the lock, or gives up the attempt.
    pub(crate) fn release(&mut self, terms: &Terms) -> Effects {
        self.phase = Phase::Idle;
        self.sends(self.to_all(terms, u64::MAX, Order::Release), None)
    }

    /// Handles the end of the lease.
    pub(crate) fn expire(&mut self, terms: &Terms, now: Moment) -> Effects {
        match self.held() {
            Some((_, until)) if until <= now => Effects { event: Some(Event::Lost), ..self.release(terms) },
            _ => Effects::default(),
        }
    }

    /// The attempt or renewal that waits for answers.
    pub(crate) fn waiting(&self) -> Option<u64> {
        match &self.phase {
            Phase::Taking { attempt, .. } => Some(*attempt),
            Phase::Held { renewal: Some(renewal), .. } => Some(renewal.attempt),
            _ => None,
        }
    }

    /// Handles a node's answer to this attempt or renewal.
    pub(crate) fn hear(&mut self, terms: &Terms, now: Moment, node: usize, attempt: u64, answer: Answer) -> Effects {
        if !self.expects(node, attempt, answer) {
            return Effects::default();
        }
        self.open[node] = None;
        match (&mut self.phase, answer) {
            (Phase::Taking { taking, .. }, Answer::Vote(vote)) => {
                let next = taking.vote(node, vote);
                self.go_on(terms, now, next)
            }
            (Phase::Taking { taking, .. }, Answer::Wrote(token, written)) => {
                let next = taking.wrote(node, token, written);
                self.go_on(terms, now, next)
            }
            (Phase::Held { .. }, Answer::Renewed(answer)) => self.renewed(terms, now, node, answer),
            _ => Effects::default(),
        }
    }

    fn go_on(&mut self, terms: &Terms, now: Moment, next: Move) -> Effects {
        let Phase::Taking { attempt, sent, taking, asked } = &mut self.phase else { return Effects::default() };
        let (attempt, sent) = (*attempt, *sent);
        match next {
            Move::Wait | Move::Write(_) => {
                let Some(token) = taking.writing() else { return Effects::default() };
                let due =
                    |(node, asked): &(usize, &mut Option<Token>)| taking.said_yes(*node) && **asked != Some(token);
                let nodes: Vec<usize> = asked
                    .iter_mut()
                    .enumerate()
                    .filter(due)
                    .map(|(node, asked)| {
                        *asked = Some(token);
                        node
                    })
                    .collect();
                let request = self.request(terms, attempt, Order::Write(token));
                self.sends(nodes.into_iter().map(|node| (node, request)).collect(), None)
            }
            Move::Held(token) => match validity(sent, now, terms.ttl, terms.drift) {
                Some(left) => {
                    self.phase = Phase::Held { token, until: now.after(left), renewal: None };
                    self.open.fill(None);
                    Effects { sends: Vec::new(), event: Some(Event::Granted(token)) }
                }
                None => self.give_up(terms, attempt),
            },
            Move::Failed(_) => self.give_up(terms, attempt),
        }
    }

    fn give_up(&mut self, terms: &Terms, attempt: u64) -> Effects {
        self.phase = Phase::Idle;
        self.sends(self.to_all(terms, attempt, Order::Withdraw), Some(Event::Failed))
    }

    fn renewed(&mut self, terms: &Terms, now: Moment, node: usize, answer: Option<bool>) -> Effects {
        let Phase::Held { until, renewal, .. } = &mut self.phase else { return Effects::default() };
        let Some(Renewal { sent, tally, .. }) = renewal else { return Effects::default() };
        match tally.hear(node, answer) {
            Outcome::Open => Effects::default(),
            Outcome::Done if now < *until => {
                let left = validity(*sent, now, terms.ttl, terms.drift);
                *until = left.map_or(*until, |left| now.after(left).max(*until));
                *renewal = None;
                self.open.fill(None);
                Effects { sends: Vec::new(), event: Some(Event::Extended) }
            }
            Outcome::Done | Outcome::Refused => Effects { event: Some(Event::Lost), ..self.release(terms) },
            Outcome::Unknown => {
                *renewal = None;
                Effects::default()
            }
        }
    }
}
