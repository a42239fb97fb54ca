//! A client that acquires the lock again and again.

use leasehold::clock::Instant;
use leasehold::internals::logic::acceptor::ClaimRequest;
use leasehold::internals::logic::quorum::{Vote, WriteReply, node_timeout};
use leasehold::{ClaimId, Token};
use std::time::Duration;

use super::checker::Grant;
use super::rng::SkewedClock;
use super::world::{ActorAction, SimulatedEvent, World, rate};
use crate::quorum::client::{Answer, ClaimOutcome, ClaimPhase, Client, Effects, LeaseTimes, NodeCommand, Request};

#[derive(Debug)]
pub(super) struct Actor {
    id: usize,
    client: Client,
    lease_times: LeaseTimes,
    clock: SkewedClock,
    /// The largest distance seen from our clock to a node's, or to a token.
    max_clock_lead: Option<i64>,
    guessed: u64,
    claims: u128,
    /// Changes with every grant and every end of one: actions planned before are void.
    generation: u64,
    attempt_started: u64,
    grant_index: Option<usize>,
    pub(super) paused_until: u64,
    /// The actor makes no new claims.
    pub(super) retired: bool,
}

impl Actor {
    pub(super) fn new(id: usize, world: &mut World) -> Self {
        let owner = (id < world.plan.same_owner_actors).then_some(7);
        let clock =
            SkewedClock { base: world.rng.between(1_000_000, 2_000_000), rate: rate(&mut world.rng, world.plan.ppm) };
        let client = Client::new(0, owner, world.plan.nodes);
        let options = world.plan.lease_times();
        let mut actor = Self {
            id,
            client,
            lease_times: options,
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

    pub(super) fn holds(&self) -> bool {
        self.grant_index.is_some()
    }

    /// A request of a claim that no node knows.
    pub(super) fn probe_request(&self, claim: ClaimId) -> Request {
        Request {
            claim_request: ClaimRequest { claim, attempt: 1, owner: None, ttl: self.lease_times.node_ttl },
            command: NodeCommand::Release,
        }
    }

    fn new_claim(&mut self) {
        self.claims += 1;
        self.client.claim = ClaimId::from_bits(self.id as u128 * 1_000_000 + self.claims);
        self.client.phase = ClaimPhase::Idle;
    }

    fn local_time(&self, world: &World) -> u64 {
        self.clock.at(world.now)
    }

    fn local_instant(&self, world: &World) -> Instant {
        Instant::from_nanos(self.local_time(world) * 1000)
    }

    fn schedule_action(&self, world: &mut World, wait: u64, act: ActorAction) {
        world.schedule_after(wait, SimulatedEvent::Acts { actor: self.id, turn: self.generation, act });
    }

    fn observe_clock(&mut self, world: &World, clock_or_token: u64) {
        let ahead = clock_or_token as i64 - self.local_time(world) as i64;
        self.max_clock_lead = Some(self.max_clock_lead.map_or(ahead, |known| known.max(ahead)));
    }

    fn guess_token(&mut self, world: &World) -> Token {
        let Some(ahead) = self.max_clock_lead else { return Token::default() };
        self.guessed = self.local_time(world).saturating_add_signed(ahead).max(self.guessed + 1);
        Token(self.guessed)
    }

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
                world.log_line(|| format!("{} gives back", self.id));
                let effects = self.client.release(&self.lease_times);
                self.apply_effects(world, effects);
                self.start_over(world);
            }
            _ => {}
        }
    }

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
                world.log_line(|| format!("{} has lost it", self.id));
                self.start_over(world);
            }
            Some(ClaimOutcome::Failed) => {
                world.log_line(|| format!("{} did not get it", self.id));
                if !world.is_fault_free && world.rng.happens(100) {
                    self.new_claim();
                }
                let often = if world.plan.hold_to_the_end && !world.is_fault_free { 50 } else { 1 };
                let pause = world.rng.between(world.plan.ttl / 50, world.plan.ttl / 5) / often;
                self.schedule_action(world, pause, ActorAction::Start);
            }
        }
    }

    /// Limits the wait for each node's answer.
    fn schedule_time_outs(&self, world: &mut World, sends: &[(usize, Request)]) {
        let timeout = node_timeout(self.lease_times.ttl, Duration::from_secs(1)).as_micros() as u64;
        for (node, request) in sends {
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

    /// The true time at which its lease ends.
    fn true_expiry(&self) -> u64 {
        self.client.held_lease().map_or(0, |(_, until)| self.clock.true_time_of(until.as_nanos() / 1000))
    }

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

    fn schedule_expiry(&self, world: &mut World) {
        let wait = self.true_expiry().saturating_sub(world.now);
        self.schedule_action(world, wait, ActorAction::Expire);
    }

    /// After a release or a loss, the actor makes a new claim.
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
