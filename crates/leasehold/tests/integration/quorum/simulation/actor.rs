//! An actor: a client that acquires the lock again and again, and writes to the resource.

use leasehold::clock::Instant;
use leasehold::internals::logic::acceptor::ClaimRequest;
use leasehold::internals::logic::quorum::{Vote, WriteReply, node_timeout};
use leasehold::{ClaimId, Token};
use std::time::Duration;

use super::checker::Grant;
use super::rng::SkewedClock;
use super::world::{ActorAction, SimulatedEvent, World, rate};
use crate::quorum::client::{Answer, ClaimOutcome, ClaimPhase, Client, Effects, LeaseTimes, NodeCommand, Request};

/// A client that acquires the lock again and again, and writes to the resource.
#[derive(Debug)]
pub(super) struct Actor {
    /// Its index among the actors.
    id: usize,
    client: Client,
    lease_times: LeaseTimes,
    clock: SkewedClock,
    /// How far a node's clock or a token was ahead of the actor's clock, at most; `None`: no answer
    /// came yet.
    max_clock_lead: Option<i64>,
    /// The last guess of a token.
    guessed: u64,
    /// How many claims the actor has made.
    claims: u128,
    /// Rises with every grant and every end of one: actions that were scheduled before are void.
    generation: u64,
    /// The true time at which the present attempt began.
    attempt_started: u64,
    /// The checker's index of the present grant; `None`: the actor does not hold the lock.
    grant_index: Option<usize>,
    /// The true time until which the actor is paused.
    pub(super) paused_until: u64,
    /// Whether the actor makes no new claims.
    pub(super) retired: bool,
}

impl Actor {
    pub(super) fn new(id: usize, world: &mut World) -> Self {
        let owner = (id < world.plan.same_owner_actors).then_some(7);
        let clock =
            SkewedClock { base: world.rng.between(1_000_000, 2_000_000), rate: rate(&mut world.rng, world.plan.ppm) };
        let client = Client::new(0, owner, world.plan.nodes);
        let lease_times = world.plan.lease_times();
        let mut actor = Self {
            id,
            client,
            lease_times,
            clock,
            max_clock_lead: None,
            guessed: 0,
            claims: 0,
            generation: 0,
            attempt_started: 0,
            grant_index: None,
            paused_until: 0,
            retired: false,
        };
        actor.new_claim();
        let wait = world.rng.between(0, world.plan.ttl / 4);
        actor.schedule_action(world, wait, ActorAction::Start);
        actor
    }

    /// Whether the actor believes to hold the lock.
    pub(super) fn holds(&self) -> bool {
        self.grant_index.is_some()
    }

    /// A request of a claim that no node knows, for a caller that sets another command.
    pub(super) fn probe_request(&self, claim: ClaimId) -> Request {
        Request {
            claim_request: ClaimRequest { claim, attempt: 1, owner: None, ttl: self.lease_times.node_ttl },
            command: NodeCommand::Release,
        }
    }

    /// Replaces the claim by a new one.
    fn new_claim(&mut self) {
        self.claims += 1;
        self.client.claim = ClaimId::from_bits(self.id as u128 * 1_000_000 + self.claims);
        self.client.phase = ClaimPhase::Idle;
    }

    /// The time on the actor's clock, in µs.
    fn local_time(&self, world: &World) -> u64 {
        self.clock.at(world.now)
    }

    /// The time on the actor's clock, as the client needs it.
    fn local_instant(&self, world: &World) -> Instant {
        Instant::from_nanos(self.local_time(world) * 1000)
    }

    /// Schedules an action after this time, in µs.
    fn schedule_action(&self, world: &mut World, wait: u64, act: ActorAction) {
        world.schedule_after(wait, SimulatedEvent::Acts { actor: self.id, turn: self.generation, act });
    }

    /// Learns from a node's clock, or from a token, how far nodes are ahead.
    fn observe_clock(&mut self, world: &World, clock_or_token: u64) {
        let ahead = clock_or_token as i64 - self.local_time(world) as i64;
        self.max_clock_lead = Some(self.max_clock_lead.map_or(ahead, |known| known.max(ahead)));
    }

    /// A token that is probably above all that nodes know; zero before the first answer.
    fn guess_token(&mut self, world: &World) -> Token {
        let Some(ahead) = self.max_clock_lead else { return Token::default() };
        self.guessed = self.local_time(world).saturating_add_signed(ahead).max(self.guessed + 1);
        Token(self.guessed)
    }

    /// Does a scheduled action, unless a grant or the end of one came in between: `turn` is the
    /// generation in which it was scheduled.
    pub(super) fn act(&mut self, world: &mut World, turn: u64, act: ActorAction) {
        if turn != self.generation {
            return;
        }
        let (now, local) = (self.local_instant(world), self.local_time(world));
        if let effects @ Effects { event: Some(_), .. } = self.client.expire(&self.lease_times, now) {
            return self.apply_effects(world, effects);
        }
        match (act, self.grant_index) {
            (ActorAction::Start, None) if self.retired => {}
            (ActorAction::Start, None) => {
                self.attempt_started = world.now;
                let guess = self.guess_token(world);
                let effects = self.client.start(&self.lease_times, now, local, guess);
                world.log_line(|| format!("{} begins attempt #{local}", self.id));
                self.apply_effects(world, effects);
            }
            (ActorAction::Renew, Some(_)) => {
                let effects = self.client.renew(&self.lease_times, now, local);
                self.apply_effects(world, effects);
                let pause = world.rng.between(world.plan.ttl / 5, world.plan.ttl / 3);
                self.schedule_action(world, pause, ActorAction::Renew);
            }
            (ActorAction::WriteResource, Some(grant)) => {
                world.write_resource(self.id, grant);
                let pause = world.rng.between(world.plan.ttl / 20, world.plan.ttl / 4);
                self.schedule_action(world, pause, ActorAction::WriteResource);
            }
            (ActorAction::Expire, Some(_)) => self.schedule_expiry(world),
            (ActorAction::Finish, Some(_)) => {
                world.log_line(|| format!("{} releases", self.id));
                let effects = self.client.release(&self.lease_times);
                self.apply_effects(world, effects);
                self.start_over(world);
            }
            _ => {}
        }
    }

    /// Handles an answer of a node, and what its clock shows. Without `clock` the answer is that
    /// the wait for the node timed out.
    pub(super) fn handle_answer(
        &mut self,
        world: &mut World,
        node: usize,
        attempt: u64,
        answer: Answer,
        clock: Option<u64>,
    ) {
        if let Some(clock) = clock {
            self.observe_clock(world, clock);
        }
        if let Answer::Vote(Vote::Yes { last_token: last, .. } | Vote::No { last_token: last })
        | Answer::WriteReply(_, WriteReply::TokenTooLow(last)) = answer
        {
            self.observe_clock(world, last.0);
        }
        let now = self.local_instant(world);
        let effects = match self.client.expire(&self.lease_times, now) {
            effects @ Effects { event: Some(_), .. } => effects,
            _ => self.client.handle_answer(&self.lease_times, now, node, attempt, answer),
        };
        self.apply_effects(world, effects);
    }

    /// Sends the client's messages, and reports its event to the checker.
    fn apply_effects(&mut self, world: &mut World, effects: Effects) {
        self.schedule_time_outs(world, &effects.requests);
        world.send(self.id, effects.requests);
        match effects.event {
            None => {}
            Some(ClaimOutcome::Granted(token)) => self.record_grant(world, token),
            Some(ClaimOutcome::Extended) => {
                let until = self.true_expiry();
                world.log_line(|| format!("{} holds until {until} µs", self.id));
                if let Some(grant) = self.grant_index {
                    world.checker.record_extension(grant, until);
                }
            }
            Some(ClaimOutcome::Lost) => {
                world.log_line(|| format!("{} has lost the lock", self.id));
                self.start_over(world);
            }
            Some(ClaimOutcome::Failed) => {
                world.log_line(|| format!("{} did not acquire the lock", self.id));
                if !world.is_fault_free && world.rng.happens(100) {
                    self.new_claim();
                }
                let often = if world.plan.hold_to_the_end && !world.is_fault_free { 50 } else { 1 };
                let pause = world.rng.between(world.plan.ttl / 50, world.plan.ttl / 5) / often;
                self.schedule_action(world, pause, ActorAction::Start);
            }
        }
    }

    /// Schedules the end of the wait for each node's answer to these requests.
    fn schedule_time_outs(&self, world: &mut World, requests: &[(usize, Request)]) {
        let timeout = node_timeout(self.lease_times.ttl, Duration::from_secs(1)).as_micros() as u64;
        for (node, request) in requests {
            let answer = match request.command {
                NodeCommand::Acquire(_) => Answer::Vote(Vote::NoResponse),
                NodeCommand::Write(token) => Answer::WriteReply(token, WriteReply::NoResponse),
                NodeCommand::Renew(_) => Answer::Renewed(None),
                NodeCommand::Release | NodeCommand::Withdraw => continue,
            };
            let attempt = request.claim_request.attempt;
            world.schedule_after(timeout, SimulatedEvent::GivesUp { actor: self.id, node: *node, attempt, answer });
        }
    }

    /// The true time at which the lease ends on the actor's clock; zero without a lease.
    fn true_expiry(&self) -> u64 {
        self.client.held_lease().map_or(0, |(_, until)| self.clock.true_time_of(until.as_nanos() / 1000))
    }

    /// Reports a grant to the checker, and schedules what the actor does while it holds the lock.
    fn record_grant(&mut self, world: &mut World, token: Token) {
        self.generation += 1;
        let owner = self.client.owner.map_or(self.client.claim.bits() + 1000, |owner| owner.bits());
        let (at, until) = (world.now, self.true_expiry());
        world.log_line(|| format!("{} HOLDS with token {token} until {until} µs", self.id));
        let grant = Grant {
            actor: self.id,
            owner,
            token,
            attempt_started: self.attempt_started,
            granted_at: at,
            valid_until: until,
            is_unreleased: true,
        };
        self.grant_index = Some(world.checker.record_grant(grant));
        let longest = if world.rng.happens(200) { world.plan.ttl * 3 } else { world.plan.ttl / 3 };
        let hold = world.rng.between(0, longest);
        if !world.plan.hold_to_the_end || world.is_fault_free {
            self.schedule_action(world, hold, ActorAction::Finish);
        }
        if !world.plan.hold_to_the_end && world.rng.happens(800) {
            let pause = world.rng.between(world.plan.ttl / 5, world.plan.ttl / 3);
            self.schedule_action(world, pause, ActorAction::Renew);
        }
        self.schedule_action(world, 0, ActorAction::WriteResource);
        self.schedule_expiry(world);
    }

    /// Schedules a check at the end of the lease.
    fn schedule_expiry(&self, world: &mut World) {
        let wait = self.true_expiry().saturating_sub(world.now);
        self.schedule_action(world, wait, ActorAction::Expire);
    }

    /// Begins again with a new claim, after a release or a loss.
    fn start_over(&mut self, world: &mut World) {
        self.generation += 1;
        if let Some(grant) = self.grant_index.take() {
            world.checker.record_end(grant);
        }
        self.new_claim();
        let pause = world.rng.between(0, world.plan.ttl / 4);
        self.schedule_action(world, pause, ActorAction::Start);
    }
}
