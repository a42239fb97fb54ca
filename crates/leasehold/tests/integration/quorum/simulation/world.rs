//! The nodes, the network and the time: one event after another.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use leasehold::logic::ballots::Ballots;
use leasehold::{ClaimId, Token};

use super::actor::Actor;
use super::chance::{Dice, Skewed};
use super::judge::Judge;
use super::plan::{Plan, Restart};
use crate::quorum::client::{Answer, Request, serve};

/// An event at some time.
#[derive(Clone, Copy, Debug)]
pub(super) enum Happening {
    Arrives {
        node: usize,
        from: usize,
        request: Request,
    },
    Answers {
        actor: usize,
        node: usize,
        attempt: u64,
        answer: Answer,
        clock: u64,
    },
    /// An actor stops waiting for a node.
    GivesUp {
        actor: usize,
        node: usize,
        attempt: u64,
        answer: Answer,
    },
    /// An actor does something that it planned in this turn.
    Acts {
        actor: usize,
        turn: u64,
        act: Act,
    },
    /// A write reaches the resource.
    Writes {
        actor: usize,
        grant: usize,
    },
    Stops {
        node: usize,
        lasts: u64,
    },
    Restarts {
        node: usize,
    },
    Pauses {
        actor: usize,
        lasts: u64,
    },
    Jumps {
        node: usize,
        by: i64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Start,
    Renew,
    Touch,
    Expire,
    Finish,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) ballots: Ballots,
    pub(super) clock: Skewed,
    up: bool,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) dice: Dice,
    pub(super) now: u64,
    /// Time and number of each event; `kept` has the events by number.
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    kept: std::collections::HashMap<u64, Happening>,
    count: u64,
    pub(super) nodes: Vec<Node>,
    pub(super) judge: Judge,
    pub(super) calm: bool,
    pub(super) log: Option<Vec<String>>,
    pub(super) events: u64,
}

impl World {
    pub(super) fn new(plan: Plan, mut dice: Dice, logs: bool) -> Self {
        let mut node = |_| {
            let clock = Skewed { base: 1_000_000_000 + dice.between(0, plan.ttl / 2), rate: rate(&mut dice, plan.ppm) };
            Node { ballots: Ballots::default(), clock, up: true }
        };
        let nodes = (0..plan.nodes).map(&mut node).collect();
        let judge = Judge::new(plan.jumps == 0);
        let log = logs.then(Vec::new);
        let mut world = Self {
            plan,
            dice,
            now: 0,
            queue: BinaryHeap::new(),
            kept: std::collections::HashMap::new(),
            count: 0,
            nodes,
            judge,
            calm: false,
            log,
            events: 0,
        };
        world.plan_faults();
        world
    }

    fn plan_faults(&mut self) {
        let Plan { nodes, actors, ttl, lasts, restarts, pauses, jumps, .. } = self.plan;
        for _ in 0..restarts {
            let (at, node) = (self.dice.between(0, lasts), self.dice.between(0, nodes as u64) as usize);
            let lasts = self.dice.between(1, ttl / 2);
            self.at(at, Happening::Stops { node, lasts });
        }
        for _ in 0..pauses {
            let (at, actor) = (self.dice.between(0, lasts), self.dice.between(0, actors as u64) as usize);
            let lasts = self.dice.between(1, ttl * 2);
            self.at(at, Happening::Pauses { actor, lasts });
        }
        for _ in 0..jumps {
            let (at, node) = (self.dice.between(0, lasts), self.dice.between(0, nodes as u64) as usize);
            let by = self.dice.between(0, ttl * 4) as i64 - ttl as i64 * 2;
            self.at(at, Happening::Jumps { node, by });
        }
    }

    pub(super) fn say(&mut self, what: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(log) = &mut self.log {
            log.push(format!("{:>11.6} s  {}", now as f64 / 1e6, what()));
        }
    }

    pub(super) fn at(&mut self, time: u64, what: Happening) {
        self.count += 1;
        self.kept.insert(self.count, what);
        self.queue.push(Reverse((time.max(self.now), self.count)));
    }

    pub(super) fn after(&mut self, time: u64, what: Happening) {
        self.at(self.now + time, what);
    }

    /// The next event before `end`.
    pub(super) fn next(&mut self, end: u64) -> Option<Happening> {
        if self.queue.peek().is_none_or(|Reverse((time, _))| *time >= end) {
            self.now = end;
            return None;
        }
        let Reverse((time, number)) = self.queue.pop()?;
        self.now = time;
        self.events += 1;
        self.kept.remove(&number)
    }

    /// The delay of a message; `None` if it is lost.
    fn delay(&mut self) -> Option<u64> {
        let usual = self.dice.between(50, self.plan.ttl / self.plan.pace);
        if self.calm {
            return Some(usual);
        }
        if self.dice.happens(self.plan.lost) {
            return None;
        }
        let long = self.dice.happens(self.plan.late).then(|| self.dice.between(0, self.plan.ttl * 3 / 2));
        Some(usual + long.unwrap_or_default())
    }

    /// Sends a message, which arrives never, once or twice.
    fn post(&mut self, what: Happening) {
        let copies = 1 + u64::from(!self.calm && self.dice.happens(self.plan.doubled));
        for _ in 0..copies {
            if let Some(delay) = self.delay() {
                self.after(delay, what);
            }
        }
    }

    pub(super) fn send(&mut self, from: usize, sends: Vec<(usize, Request)>) {
        for (node, request) in sends {
            self.post(Happening::Arrives { node, from, request });
        }
    }

    /// Handles the events of the nodes.
    pub(super) fn node_step(&mut self, what: Happening) {
        match what {
            Happening::Arrives { node, from, request } if self.nodes[node].up => {
                let now = self.nodes[node].clock.at(self.now);
                let answer = serve(&mut self.nodes[node].ballots, now, &request);
                self.say(|| {
                    format!("node {node} <- {from}: {:?} #{} -> {answer:?}", request.order, request.ask.attempt)
                });
                if let Some(answer) = answer {
                    let attempt = request.ask.attempt;
                    self.post(Happening::Answers { actor: from, node, attempt, answer, clock: now });
                }
            }
            Happening::Stops { node, lasts } if self.nodes[node].up && !self.calm => {
                self.say(|| format!("node {node} stops"));
                self.nodes[node].up = false;
                self.after(lasts, Happening::Restarts { node });
            }
            Happening::Restarts { node } => {
                let how = self.plan.restart;
                let now = self.nodes[node].clock.at(self.now);
                self.say(|| format!("node {node} is back: {how:?}"));
                self.nodes[node].up = true;
                match how {
                    Restart::Durable => {}
                    Restart::Abstaining => self.nodes[node].ballots = Ballots::abstaining(now + self.plan.ttl),
                    Restart::Forgetful => self.nodes[node].ballots = Ballots::default(),
                }
            }
            Happening::Jumps { node, by } if !self.calm => {
                self.say(|| format!("the clock of node {node} jumps by {by} µs"));
                let clock = &mut self.nodes[node].clock;
                clock.base = clock.base.saturating_add_signed(by);
            }
            _ => {}
        }
    }

    /// Writes to the resource, some time after the writer checked that it holds the lock.
    pub(super) fn touch(&mut self, actor: usize, grant: usize) {
        if let Some(delay) = self.delay() {
            self.after(delay, Happening::Writes { actor, grant });
        }
    }

    /// Whether a node would grant to a new client.
    pub(super) fn lets_in(&self, node: usize, stranger: &Actor) -> bool {
        let mut copy = self.nodes[node].ballots.clone();
        let request = stranger.probe(ClaimId::from_bits(u128::MAX));
        let now = self.nodes[node].clock.at(self.now);
        let answer =
            serve(&mut copy, now, &Request { order: crate::quorum::client::Order::Take(Token::default()), ..request });
        matches!(answer, Some(Answer::Vote(leasehold::logic::quorum::Vote::Yes { .. })))
    }
}

/// The rate of a clock that deviates by up to `ppm`.
pub(super) fn rate(dice: &mut Dice, ppm: u64) -> u64 {
    1_000_000 - ppm + dice.between(0, 2 * ppm + 1)
}
