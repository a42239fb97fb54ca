//! The simulated world: nodes, network and time, one event after another.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use leasehold::internals::logic::acceptor::AcceptorState;
use leasehold::{ClaimId, Token};

use super::actor::Actor;
use super::checker::InvariantChecker;
use super::plan::{Plan, Restart};
use super::rng::{Rng, SkewedClock};
use crate::quorum::client::{Answer, Request, handle_request};

/// An event of the simulation. Times are in µs; actors and nodes are given by their index.
#[derive(Clone, Copy, Debug)]
pub(super) enum SimulatedEvent {
    /// A message of actor `from` arrives at a node.
    Arrives { node: usize, from: usize, request: Request },
    /// A node's answer arrives at an actor, with the time that the node's clock showed.
    Answers { actor: usize, node: usize, attempt: u64, answer: Answer, clock: u64 },
    /// An actor stops waiting for a node; `answer` says that there was no response.
    GivesUp { actor: usize, node: usize, attempt: u64, answer: Answer },
    /// An actor does what it scheduled; `turn` is the actor's generation at that time.
    Acts { actor: usize, turn: u64, act: ActorAction },
    /// An actor's write reaches the resource, with the token of this grant.
    Writes { actor: usize, grant: usize },
    /// A node stops for this time.
    Stops { node: usize, lasts: u64 },
    /// A node that has stopped starts again.
    Restarts { node: usize },
    /// An actor handles no events for this time.
    Pauses { actor: usize, lasts: u64 },
    /// A node's clock jumps by this time.
    Jumps { node: usize, by: i64 },
}

/// What an actor schedules for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ActorAction {
    /// Begin an attempt.
    Start,
    /// Renew the lease.
    Renew,
    /// Write to the resource.
    WriteResource,
    /// Check whether the lease has ended.
    Expire,
    /// Release the lock.
    Finish,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) acceptor: AcceptorState,
    pub(super) clock: SkewedClock,
    is_up: bool,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) rng: Rng,
    /// The true time, in µs.
    pub(super) now: u64,
    /// The time and the number of each scheduled event; `events_by_number` has the events.
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    events_by_number: std::collections::HashMap<u64, SimulatedEvent>,
    /// How many events were scheduled.
    count: u64,
    pub(super) nodes: Vec<Node>,
    pub(super) checker: InvariantChecker,
    /// Whether no more faults happen.
    pub(super) is_fault_free: bool,
    /// The events, one per line; `None`: no log was requested.
    pub(super) log: Option<Vec<String>>,
    /// How many events have happened.
    pub(super) events: u64,
}

impl World {
    pub(super) fn new(plan: Plan, mut random: Rng, logs: bool) -> Self {
        let mut node = |_| {
            let clock = SkewedClock {
                base: 1_000_000_000 + random.between(0, plan.ttl / 2),
                rate: rate(&mut random, plan.ppm),
            };
            Node { acceptor: AcceptorState::default(), clock, is_up: true }
        };
        let nodes = (0..plan.nodes).map(&mut node).collect();
        let checker = InvariantChecker::new(plan.jumps == 0);
        let log = logs.then(Vec::new);
        let mut world = Self {
            plan,
            rng: random,
            now: 0,
            queue: BinaryHeap::new(),
            events_by_number: std::collections::HashMap::new(),
            count: 0,
            nodes,
            checker,
            is_fault_free: false,
            log,
            events: 0,
        };
        world.schedule_faults();
        world
    }

    /// Schedules the plan's restarts, pauses and jumps at random times.
    fn schedule_faults(&mut self) {
        let Plan { nodes, actors, ttl, fault_time: duration, restarts, pauses, jumps, .. } = self.plan;
        for _ in 0..restarts {
            let (at, node) = (self.rng.between(0, duration), self.rng.between(0, nodes as u64) as usize);
            let duration = self.rng.between(1, ttl / 2);
            self.schedule_at(at, SimulatedEvent::Stops { node, lasts: duration });
        }
        for _ in 0..pauses {
            let (at, actor) = (self.rng.between(0, duration), self.rng.between(0, actors as u64) as usize);
            let duration = self.rng.between(1, ttl * 2);
            self.schedule_at(at, SimulatedEvent::Pauses { actor, lasts: duration });
        }
        for _ in 0..jumps {
            let (at, node) = (self.rng.between(0, duration), self.rng.between(0, nodes as u64) as usize);
            let by = self.rng.between(0, ttl * 4) as i64 - ttl as i64 * 2;
            self.schedule_at(at, SimulatedEvent::Jumps { node, by });
        }
    }

    /// Adds a line to the log, if one was requested.
    pub(super) fn log_line(&mut self, event: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(log) = &mut self.log {
            log.push(format!("{:>11.6} s  {}", now as f64 / 1e6, event()));
        }
    }

    /// Schedules an event at this true time, or now if that has passed.
    pub(super) fn schedule_at(&mut self, time: u64, event: SimulatedEvent) {
        self.count += 1;
        self.events_by_number.insert(self.count, event);
        self.queue.push(Reverse((time.max(self.now), self.count)));
    }

    /// Schedules an event after this time.
    pub(super) fn schedule_after(&mut self, time: u64, event: SimulatedEvent) {
        self.schedule_at(self.now + time, event);
    }

    /// Advances the time to the next event before `end`, and returns it. `None`: there is none, and
    /// the time is `end`.
    pub(super) fn next_event(&mut self, end: u64) -> Option<SimulatedEvent> {
        if self.queue.peek().is_none_or(|Reverse((time, _))| *time >= end) {
            self.now = end;
            return None;
        }
        let Reverse((time, number)) = self.queue.pop()?;
        self.now = time;
        self.events += 1;
        self.events_by_number.remove(&number)
    }

    /// The delay of a message; `None` if it is lost.
    fn message_delay(&mut self) -> Option<u64> {
        let usual = self.rng.between(50, self.plan.ttl / self.plan.delay_divisor);
        if self.is_fault_free {
            return Some(usual);
        }
        if self.rng.happens(self.plan.lost_per_mille) {
            return None;
        }
        let long = self.rng.happens(self.plan.late_per_mille).then(|| self.rng.between(0, self.plan.ttl * 3 / 2));
        Some(usual + long.unwrap_or_default())
    }

    /// Sends a message, given by its arrival, which happens never, once or twice.
    fn send_message(&mut self, event: SimulatedEvent) {
        let copies = 1 + u64::from(!self.is_fault_free && self.rng.happens(self.plan.doubled_per_mille));
        for _ in 0..copies {
            if let Some(delay) = self.message_delay() {
                self.schedule_after(delay, event);
            }
        }
    }

    /// Sends the requests of actor `from`, each to its node.
    pub(super) fn send(&mut self, from: usize, sends: Vec<(usize, Request)>) {
        for (node, request) in sends {
            self.send_message(SimulatedEvent::Arrives { node, from, request });
        }
    }

    /// Handles an event of a node; ignores other events, and faults once they are over.
    pub(super) fn node_step(&mut self, event: SimulatedEvent) {
        match event {
            SimulatedEvent::Arrives { node, from, request } if self.nodes[node].is_up => {
                let now = self.nodes[node].clock.at(self.now);
                let answer = handle_request(&mut self.nodes[node].acceptor, now, &request);
                self.log_line(|| {
                    format!(
                        "node {node} <- {from}: {:?} #{} -> {answer:?}",
                        request.command, request.claim_request.attempt
                    )
                });
                if let Some(answer) = answer {
                    let attempt = request.claim_request.attempt;
                    self.send_message(SimulatedEvent::Answers { actor: from, node, attempt, answer, clock: now });
                }
            }
            SimulatedEvent::Stops { node, lasts } if self.nodes[node].is_up && !self.is_fault_free => {
                self.log_line(|| format!("node {node} stops"));
                self.nodes[node].is_up = false;
                self.schedule_after(lasts, SimulatedEvent::Restarts { node });
            }
            SimulatedEvent::Restarts { node } => {
                let restart_kind = self.plan.restart;
                let now = self.nodes[node].clock.at(self.now);
                self.log_line(|| format!("node {node} is back: {restart_kind:?}"));
                self.nodes[node].is_up = true;
                match restart_kind {
                    Restart::Durable => {}
                    Restart::CoolingDown => {
                        self.nodes[node].acceptor = AcceptorState::cooling_down(now + self.plan.ttl)
                    }
                    Restart::EmptyWithoutCoolDown => self.nodes[node].acceptor = AcceptorState::default(),
                }
            }
            SimulatedEvent::Jumps { node, by } if !self.is_fault_free => {
                self.log_line(|| format!("the clock of node {node} jumps by {by} µs"));
                let clock = &mut self.nodes[node].clock;
                clock.base = clock.base.saturating_add_signed(by);
            }
            _ => {}
        }
    }

    /// Sends an actor's write to the resource, which arrives some time after the actor checked that
    /// it holds the lock, or never.
    pub(super) fn write_resource(&mut self, actor: usize, grant: usize) {
        if let Some(delay) = self.message_delay() {
            self.schedule_after(delay, SimulatedEvent::Writes { actor, grant });
        }
    }

    /// Whether a node would admit a new claim now: it has no other claim.
    pub(super) fn would_grant(&self, node: usize, new_client: &Actor) -> bool {
        let mut copy = self.nodes[node].acceptor.clone();
        let request = new_client.probe_request(ClaimId::from_bits(u128::MAX));
        let now = self.nodes[node].clock.at(self.now);
        let answer = handle_request(
            &mut copy,
            now,
            &Request { command: crate::quorum::client::NodeCommand::Acquire(Token::default()), ..request },
        );
        matches!(answer, Some(Answer::Vote(leasehold::internals::logic::quorum::Vote::Yes { .. })))
    }
}

/// A random rate of a clock that deviates by up to `ppm` parts per million.
pub(super) fn rate(random: &mut Rng, ppm: u64) -> u64 {
    1_000_000 - ppm + random.between(0, 2 * ppm + 1)
}
