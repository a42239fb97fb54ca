//! A few nodes take the steps of the protocol in any order. Between any two steps they may be
//! killed or suspended, and replies may be lost. The engine's clock jumps, or its server loses its
//! latest writes and grants no new lock while leases may last. The decisions are the real code.
#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::ticks::tests::Every;
use super::*;

const PERIOD: i64 = 10;
const TIMETABLE: Every = Every(PERIOD);
const NAME: (&str, &str) = ("@every 10s", "UTC");
const NODES: usize = 3;

/// The state of a node.
#[derive(Clone, Debug)]
enum Step {
    /// Reads the record, without a lock.
    Look,
    /// Waits for the lock.
    Line,
    /// Holds it with this token, and reads.
    Read {
        token: u64,
    },
    /// Has read this version, and looks for concurrent holders.
    Beside {
        token: u64,
        over: u64,
        state: Option<Box<State>>,
        /// The server run in which that was read.
        run: (String, i64),
    },
    /// Has decided over this version, and writes.
    Write {
        token: u64,
        over: u64,
        /// In this server run only.
        run: (String, i64),
        decision: Box<Decision>,
    },
    /// Has written, and begins unless the lock is lost.
    Begin {
        token: u64,
        run: Running,
    },
    Run {
        token: u64,
        left: u8,
    },
    /// Reads, to write the end over this version.
    Finish {
        token: u64,
    },
    WriteEnd {
        token: u64,
        over: u64,
        state: Box<State>,
    },
    Release {
        token: u64,
    },
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A node takes its next step; `lost`: the reply to its write is lost.
    Step { node: usize, lost: bool },
    /// A node dies, and another starts in its place. The lock is free at once.
    Kill { node: usize },
    /// A node is suspended for longer than its lease: the lock is free, and the node does not know.
    Stall { node: usize },
    /// The engine's clock advances, or goes back.
    Clock { by: i64 },
    /// The server begins a new run, without its last `writes` writes.
    Forget { writes: usize },
}

struct World {
    policy: Policy,
    now: i64,
    record: Option<(u64, State)>,
    /// All writes that are not lost, oldest first.
    written: Vec<(u64, State)>,
    /// The highest version: it is never used again.
    versions: u64,
    /// The name of the server run, and when it began.
    run: (String, i64),
    /// Whether the engine reports that.
    tells: bool,
    /// Nodes and their tokens; more than one only with `Overlap::Allow`.
    holders: Vec<(usize, u64)>,
    token: u64,
    nodes: Vec<(Step, i64)>,
    /// Every start: tick and token.
    begun: Vec<(i64, u64)>,
    watermark: i64,
}

impl World {
    fn new(policy: Policy) -> Self {
        let now = 1000;
        let nodes = vec![(Step::Look, now); NODES];
        // Created by the first node.
        let run = ("1".to_owned(), now);
        let record = Some((1, State { run: run.0.clone(), ..State::new(NAME.0, NAME.1, now) }));
        let written = Vec::from_iter(record.clone());
        Self {
            policy,
            now,
            record,
            written,
            versions: 1,
            run,
            tells: true,
            holders: Vec::new(),
            token: 0,
            nodes,
            begun: Vec::new(),
            watermark: now,
        }
    }

    fn read(&self) -> (u64, Option<&State>) {
        self.record.as_ref().map_or((0, None), |(version, state)| (*version, Some(state)))
    }

    /// Compare and set; a lost reply looks like a refusal.
    fn write(&mut self, over: u64, state: &State, lost: bool) -> Option<bool> {
        let fits = self.read().0 == over;
        if fits {
            assert!(state.watermark >= self.watermark, "the watermark fell");
            self.watermark = state.watermark;
            let version = self.versions + 1;
            self.versions = version;
            self.record = Some((version, state.clone()));
            self.written.extend(self.record.clone());
        }
        if lost { None } else { Some(fits) }
    }

    fn holds(&self, node: usize, token: u64) -> bool {
        self.holders.contains(&(node, token))
    }

    fn is_full(&self) -> bool {
        let most = match self.policy.overlap {
            Overlap::Allow { max } => max as usize,
            _ => 1,
        };
        self.holders.len() >= most
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Step { node, lost } => self.step(node, lost),
            Event::Kill { node } => {
                self.free(node);
                self.nodes[node] = (Step::Look, self.now);
            }
            Event::Stall { node } => self.free(node),
            Event::Clock { by } => self.now = (self.now + by).max(0),
            Event::Forget { writes } => self.forget(writes),
        }
    }

    /// A holder continues by its own clock; until its lease is over, the lock is not granted to
    /// others.
    fn forget(&mut self, writes: usize) {
        self.written.truncate(self.written.len().saturating_sub(writes));
        self.record = self.written.last().cloned();
        self.watermark = self.record.as_ref().map_or(0, |(_, state)| state.watermark);
        let number: u64 = self.run.0.parse().unwrap();
        self.run = ((number + 1).to_string(), self.now);
    }

    fn free(&mut self, node: usize) {
        self.holders.retain(|(holder, _)| *holder != node);
    }

    fn scene<'a>(&'a self, token: u64, since: i64, beside: &'a [u64]) -> Scene<'a> {
        let now = u64::try_from(self.now).unwrap() * 1000;
        let (schedule, policy) = (NAME, &self.policy);
        Scene { schedule, timetable: &TIMETABLE, policy, since, seen: None, run: None, now, token, node: "n", beside }
    }

    fn step(&mut self, node: usize, lost: bool) {
        let (step, since) = self.nodes[node].clone();
        let next = match step {
            Step::Look => {
                let work = self.read().1.map(|state| look(state, &TIMETABLE, NAME, &self.policy, since, self.now));
                // A node that finds no record creates one.
                if matches!(work, None | Some(Work::Now | Work::Watch)) { Step::Line } else { Step::Look }
            }
            Step::Line if self.is_full() => Step::Line,
            Step::Line => {
                self.token += 1;
                self.holders.push((node, self.token));
                Step::Read { token: self.token }
            }
            Step::Read { token } => {
                let (over, state) = self.read();
                Step::Beside { token, over, state: state.cloned().map(Box::new), run: self.run.clone() }
            }
            Step::Beside { token, over, state, run } => {
                let beside: Vec<u64> = match self.policy.overlap {
                    Overlap::Allow { .. } => self.holders.iter().map(|(_, token)| *token).collect(),
                    _ => Vec::new(),
                };
                let told = self.tells.then_some((run.0.as_str(), run.1));
                let decision = decide(state.as_deref(), &Scene { run: told, ..self.scene(token, since, &beside) });
                match decision.action {
                    Action::Stale(_) => Step::Release { token },
                    // With concurrent runs, writes that change nothing would block others forever.
                    _ if !decision.is_to_be_written_over(state.as_deref()) => Step::Release { token },
                    _ => Step::Write { token, over, run, decision: Box::new(decision) },
                }
            }
            Step::Write { token, run, .. } if self.tells && run != self.run => Step::Read { token },
            Step::Write { token, over, decision, .. } => {
                match (self.write(over, &decision.state, lost), decision.action) {
                    (Some(true), Action::Start(run)) => Step::Begin { token, run },
                    (Some(true), _) => Step::Release { token },
                    // Read again: the token shows whether the write was ours.
                    _ => Step::Read { token },
                }
            }
            Step::Begin { token, run } if self.holds(node, token) => {
                self.begun.push((run.tick, run.token));
                Step::Run { token, left: 2 }
            }
            Step::Begin { token, .. } => Step::Release { token },
            // A node that lost the lock leaves the run to the node that finds it.
            Step::Run { token, .. } if !self.holds(node, token) => Step::Release { token },
            Step::Run { token, left: 0 } => Step::Finish { token },
            Step::Run { token, left } => Step::Run { token, left: left - 1 },
            Step::Finish { token } => {
                let (over, state) = self.read();
                let now = u64::try_from(self.now).unwrap() * 1000;
                match state.and_then(|state| state.finished(token, Outcome::Done, "", now)) {
                    Some(state) => Step::WriteEnd { token, over, state: Box::new(state) },
                    None => Step::Release { token },
                }
            }
            Step::WriteEnd { token, over, state } => match self.write(over, &state, lost) {
                Some(true) => Step::Release { token },
                _ => Step::Finish { token },
            },
            Step::Release { token } => {
                self.holders.retain(|holder| *holder != (node, token));
                Step::Look
            }
        };
        self.nodes[node].0 = next;
    }

    /// Lets all nodes continue undisturbed, for long enough.
    fn settle(&mut self) {
        for round in 0..20_000 {
            self.step(round % NODES, false);
        }
    }

    fn begins(&self) -> BTreeMap<i64, Vec<u64>> {
        let mut all: BTreeMap<i64, Vec<u64>> = BTreeMap::new();
        for (tick, token) in &self.begun {
            all.entry(*tick).or_default().push(*token);
        }
        all
    }
}

/// With a server that loses writes.
fn losses() -> impl Strategy<Value = Vec<Event>> {
    let forget = (0usize..6).prop_map(|writes| Event::Forget { writes });
    let wipe = Just(Event::Forget { writes: usize::MAX });
    let losses = prop::collection::vec((any::<prop::sample::Index>(), prop_oneof![4 => forget, 1 => wipe]), 1..4);
    (events(false), losses).prop_map(|(mut events, losses)| {
        for (at, loss) in losses {
            events.insert(at.index(events.len() + 1), loss);
        }
        events
    })
}

fn events(jumps: bool) -> impl Strategy<Value = Vec<Event>> {
    let node = 0..NODES;
    let step = (node.clone(), prop::bool::weighted(0.1)).prop_map(|(node, lost)| Event::Step { node, lost });
    let back = if jumps { -60i64..60 } else { 0i64..25 };
    let event = prop_oneof![
        60 => step,
        2 => node.clone().prop_map(|node| Event::Kill { node }),
        2 => node.prop_map(|node| Event::Stall { node }),
        6 => back.prop_map(|by| Event::Clock { by }),
    ];
    prop::collection::vec(event, 0..600)
}

fn policies() -> impl Strategy<Value = Policy> {
    let crash = prop_oneof![Just(Crash::AtMostOnce), (1u32..5).prop_map(|attempts| Crash::Retry { attempts })];
    let missed = prop_oneof![Just(Missed::Skip), Just(Missed::Once), (1u32..9).prop_map(|limit| Missed::All { limit })];
    let beside = (1u32..4).prop_map(|max| Overlap::Allow { max });
    let overlap = prop_oneof![Just(Overlap::Skip), Just(Overlap::Queue), beside];
    (crash, missed, overlap, 0i64..30).prop_map(|(crash, missed, overlap, grace)| Policy {
        crash,
        missed,
        overlap,
        grace,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(feature = "nightly") { 600 } else { 150 }))]

    #[test]
    fn no_tick_begins_twice_but_by_policy_and_then_with_a_higher_token(policy in policies(), events in events(true)) {
        let mut world = World::new(policy);
        for event in events {
            world.happen(event);
        }
        world.settle();
        let most = match policy.crash {
            Crash::AtMostOnce => 1,
            Crash::Retry { attempts } => attempts as usize,
        };
        for (tick, tokens) in world.begins() {
            prop_assert!(tick % PERIOD == 0 && tick > 1000, "{} is no tick", tick);
            prop_assert!(tokens.len() <= most, "{} began with {:?}", tick, tokens);
            prop_assert!(tokens.is_sorted_by(|a, b| a < b), "{} began with {:?}", tick, tokens);
        }
        let order: Vec<_> = world.begun.iter().map(|(tick, _)| *tick).collect();
        let beside = matches!(policy.overlap, Overlap::Allow { .. });
        prop_assert!(beside || order.is_sorted(), "out of order: {:?}", order);
    }

    #[test]
    fn what_the_server_forgets_is_not_begun_again_but_by_policy_and_then_with_a_higher_token(
        policy in policies(), events in losses(),
    ) {
        let mut world = World::new(policy);
        for event in events {
            world.happen(event);
        }
        world.settle();
        for (tick, tokens) in world.begins() {
            // With retries, the number of lost starts is unknown.
            let once = policy.crash == Crash::AtMostOnce || policy.crash == Crash::Retry { attempts: 1 };
            prop_assert!(!once || tokens.len() == 1, "{} began with {:?}", tick, tokens);
            prop_assert!(tokens.is_sorted_by(|a, b| a < b), "{} began with {:?}", tick, tokens);
        }
        // Every due tick is judged.
        let state = world.record.map(|(_, state)| state).unwrap();
        prop_assert!(state.watermark + PERIOD > world.now, "{} at {}", state.watermark, world.now);
    }

    #[test]
    fn with_every_policy_open_each_tick_is_run(events in events(false), beside in 0u32..4) {
        let overlap = if beside == 0 { Overlap::Queue } else { Overlap::Allow { max: beside } };
        let policy = Policy {
            crash: Crash::Retry { attempts: u32::MAX }, missed: Missed::All { limit: 1000 }, overlap, grace: 5,
        };
        let mut world = World::new(policy);
        for event in events {
            world.happen(event);
        }
        world.settle();
        let wanted: Vec<i64> = (1001..=world.now).filter(|tick| tick % PERIOD == 0).collect();
        let (_, state) = world.record.clone().unwrap();
        let done: Vec<i64> = world.begins().into_keys().collect();
        prop_assert_eq!(done, wanted);
        prop_assert!(state.running.is_empty() && state.queue.is_empty());
        let mut ends: Vec<_> = state.history.iter().filter(|entry| entry.outcome == Outcome::Done).map(|e| e.tick).collect();
        if beside > 0 {
            ends.sort_unstable();
        }
        prop_assert!(ends.is_sorted_by(|a, b| a < b), "ended twice: {:?}", ends);
    }
}

/// If the engine does not report its server runs, the same loss runs a tick again.
#[test]
fn a_server_that_forgets_and_does_not_tell_has_a_tick_begin_twice() {
    let policy = Policy { crash: Crash::AtMostOnce, missed: Missed::Skip, overlap: Overlap::Skip, grace: 20 };
    for tells in [false, true] {
        let mut world = World { tells, ..World::new(policy) };
        world.happen(Event::Clock { by: PERIOD });
        // All writes but the first are lost once the tick has run.
        for _ in 0..40 {
            world.step(0, false);
        }
        world.happen(Event::Forget { writes: 2 });
        world.settle();
        let begins: Vec<usize> = world.begins().values().map(Vec::len).collect();
        assert_eq!(begins, [if tells { 1 } else { 2 }]);
    }
}
