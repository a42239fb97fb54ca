//! A client that acquires the lock again and again.

use leasehold::clock::Moment;
use leasehold::logic::ballots::Ask;
use leasehold::logic::quorum::{Vote, Written, node_timeout};
use leasehold::{ClaimId, Token};
use std::time::Duration;

use super::chance::Skewed;
use super::judge::Grant;
use super::world::{Act, Happening, World, rate};
use crate::quorum::client::{Answer, Client, Effects, Event, Order, Phase, Request, Terms};

#[derive(Debug)]
pub(super) struct Actor {
    id: usize,
    client: Client,
    terms: Terms,
    clock: Skewed,
    /// The largest distance seen from our clock to a node's, or to a token.
    ahead: Option<i64>,
    guessed: u64,
    claims: u128,
    /// Changes with every grant and every end of one: actions planned before are void.
    turn: u64,
    began: u64,
    grant: Option<usize>,
    pub(super) paused_until: u64,
    /// The actor makes no new claims.
    pub(super) retired: bool,
}

impl Actor {
    pub(super) fn new(id: usize, world: &mut World) -> Self {
        let owner = (id < world.plan.together).then_some(7);
        let clock =
            Skewed { base: world.dice.between(1_000_000, 2_000_000), rate: rate(&mut world.dice, world.plan.ppm) };
        let client = Client::new(0, owner, world.plan.nodes);
        let terms = world.plan.terms();
        let mut actor = Self {
            id,
            client,
            terms,
            clock,
            ahead: None,
            guessed: 0,
            claims: 0,
            turn: 0,
            began: 0,
            grant: None,
            paused_until: 0,
            retired: false,
        };
        actor.renew_claim();
        let wait = world.dice.between(0, world.plan.ttl / 4);
        actor.plan(world, wait, Act::Start);
        actor
    }

    pub(super) fn holds(&self) -> bool {
        self.grant.is_some()
    }

    /// A request of a claim that no node knows.
    pub(super) fn probe(&self, claim: ClaimId) -> Request {
        Request { ask: Ask { claim, attempt: 1, owner: None, ttl: self.terms.node_ttl }, order: Order::Release }
    }

    fn renew_claim(&mut self) {
        self.claims += 1;
        self.client.claim = ClaimId::from_bits(self.id as u128 * 1_000_000 + self.claims);
        self.client.phase = Phase::Idle;
    }

    fn local(&self, world: &World) -> u64 {
        self.clock.at(world.now)
    }

    fn moment(&self, world: &World) -> Moment {
        Moment::from_nanos(self.local(world) * 1000)
    }

    fn plan(&self, world: &mut World, wait: u64, act: Act) {
        world.after(wait, Happening::Acts { actor: self.id, turn: self.turn, act });
    }

    fn learn(&mut self, world: &World, clock_or_token: u64) {
        let ahead = clock_or_token as i64 - self.local(world) as i64;
        self.ahead = Some(self.ahead.map_or(ahead, |known| known.max(ahead)));
    }

    fn guess(&mut self, world: &World) -> Token {
        let Some(ahead) = self.ahead else { return Token::default() };
        self.guessed = self.local(world).saturating_add_signed(ahead).max(self.guessed + 1);
        Token(self.guessed)
    }

    pub(super) fn act(&mut self, world: &mut World, turn: u64, act: Act) {
        if turn != self.turn {
            return;
        }
        let (now, local) = (self.moment(world), self.local(world));
        if let effects @ Effects { event: Some(_), .. } = self.client.expire(&self.terms, now) {
            return self.follow(world, effects);
        }
        match (act, self.grant) {
            (Act::Start, None) if self.retired => {}
            (Act::Start, None) => {
                self.began = world.now;
                let guess = self.guess(world);
                let effects = self.client.start(&self.terms, now, local, guess);
                world.say(|| format!("{} begins attempt #{local}", self.id));
                self.follow(world, effects);
            }
            (Act::Renew, Some(_)) => {
                let effects = self.client.renew(&self.terms, now, local);
                self.follow(world, effects);
                let pause = world.dice.between(world.plan.ttl / 5, world.plan.ttl / 3);
                self.plan(world, pause, Act::Renew);
            }
            (Act::Touch, Some(grant)) => {
                world.touch(self.id, grant);
                let pause = world.dice.between(world.plan.ttl / 20, world.plan.ttl / 4);
                self.plan(world, pause, Act::Touch);
            }
            (Act::Expire, Some(_)) => self.plan_expiry(world),
            (Act::Finish, Some(_)) => {
                world.say(|| format!("{} gives back", self.id));
                let effects = self.client.release(&self.terms);
                self.follow(world, effects);
                self.end(world);
            }
            _ => {}
        }
    }

    pub(super) fn hear(&mut self, world: &mut World, node: usize, attempt: u64, answer: Answer, clock: Option<u64>) {
        if let Some(clock) = clock {
            self.learn(world, clock);
        }
        if let Answer::Vote(Vote::Yes { last, .. } | Vote::No { last }) | Answer::Wrote(_, Written::Behind(last)) =
            answer
        {
            self.learn(world, last.0);
        }
        let now = self.moment(world);
        let effects = match self.client.expire(&self.terms, now) {
            effects @ Effects { event: Some(_), .. } => effects,
            _ => self.client.hear(&self.terms, now, node, attempt, answer),
        };
        self.follow(world, effects);
    }

    fn follow(&mut self, world: &mut World, effects: Effects) {
        self.await_answers(world, &effects.sends);
        world.send(self.id, effects.sends);
        match effects.event {
            None => {}
            Some(Event::Granted(token)) => self.granted(world, token),
            Some(Event::Extended) => {
                let until = self.true_end();
                world.say(|| format!("{} holds until {until} µs", self.id));
                if let Some(grant) = self.grant {
                    world.judge.extended(grant, until);
                }
            }
            Some(Event::Lost) => {
                world.say(|| format!("{} has lost it", self.id));
                self.end(world);
            }
            Some(Event::Failed) => {
                world.say(|| format!("{} did not get it", self.id));
                if !world.calm && world.dice.happens(100) {
                    self.renew_claim();
                }
                let often = if world.plan.greedy && !world.calm { 50 } else { 1 };
                let pause = world.dice.between(world.plan.ttl / 50, world.plan.ttl / 5) / often;
                self.plan(world, pause, Act::Start);
            }
        }
    }

    /// Limits the wait for each node's answer.
    fn await_answers(&self, world: &mut World, sends: &[(usize, Request)]) {
        let patience = node_timeout(self.terms.ttl, Duration::from_secs(1)).as_micros() as u64;
        for (node, request) in sends {
            let answer = match request.order {
                Order::Take(_) => Answer::Vote(Vote::Silent),
                Order::Write(token) => Answer::Wrote(token, Written::Silent),
                Order::Renew(_) => Answer::Renewed(None),
                Order::Release | Order::Withdraw => continue,
            };
            let attempt = request.ask.attempt;
            world.after(patience, Happening::GivesUp { actor: self.id, node: *node, attempt, answer });
        }
    }

    /// The true time at which its lease ends.
    fn true_end(&self) -> u64 {
        self.client.held().map_or(0, |(_, until)| self.clock.when(until.as_nanos() / 1000))
    }

    fn granted(&mut self, world: &mut World, token: Token) {
        self.turn += 1;
        let owner = self.client.owner.map_or(self.client.claim.bits() + 1000, |owner| owner.bits());
        let (at, until) = (world.now, self.true_end());
        world.say(|| format!("{} HOLDS with token {token} until {until} µs", self.id));
        let grant = Grant { actor: self.id, owner, token, began: self.began, at, until, open: true };
        self.grant = Some(world.judge.granted(grant));
        let longest = if world.dice.happens(200) { world.plan.ttl * 3 } else { world.plan.ttl / 3 };
        let hold = world.dice.between(0, longest);
        if !world.plan.greedy || world.calm {
            self.plan(world, hold, Act::Finish);
        }
        if !world.plan.greedy && world.dice.happens(800) {
            let pause = world.dice.between(world.plan.ttl / 5, world.plan.ttl / 3);
            self.plan(world, pause, Act::Renew);
        }
        self.plan(world, 0, Act::Touch);
        self.plan_expiry(world);
    }

    fn plan_expiry(&self, world: &mut World) {
        let wait = self.true_end().saturating_sub(world.now);
        self.plan(world, wait, Act::Expire);
    }

    /// After a release or a loss, the actor makes a new claim.
    fn end(&mut self, world: &mut World) {
        self.turn += 1;
        if let Some(grant) = self.grant.take() {
            world.judge.ended(grant);
        }
        self.renew_claim();
        let pause = world.dice.between(0, world.plan.ttl / 4);
        self.plan(world, pause, Act::Start);
    }
}
