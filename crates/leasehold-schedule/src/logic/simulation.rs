//! A few nodes take the steps of the protocol in any order. Between any two steps they may be
//! killed or suspended, and replies may be lost. The engine's clock jumps, or its server loses its
//! latest writes and grants no new lock while leases may last. The decisions are the real code.
#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::ticks::tests::Every;
use super::*;

const PERIOD: i64 = 10;
const SCHEDULE: Every = Every(PERIOD);
const NAME: (&str, &str) = ("@every 10s", "UTC");
const NODES: usize = 3;

/// What a node does next.
#[derive(Clone, Debug)]
enum Step {
    /// Reads the record, without a lock.
    ReadWithoutLock,
    /// Waits for the lock.
    WaitForLock,
    /// Holds it with this token, and reads.
    ReadRecord {
        token: u64,
    },
    /// Has read the record `state` (`None` if there is none) at this version, and lists the tokens
    /// of concurrent holders.
    ListHolders {
        token: u64,
        expected_version: u64,
        state: Option<Box<JobRecord>>,
        /// The server run in which the record was read, and when it began.
        run: (String, i64),
    },
    /// Has decided, and writes the decision if the record still has this version.
    Write {
        token: u64,
        expected_version: u64,
        /// The server run in which alone the write succeeds, and when it began.
        run: (String, i64),
        decision: Box<Decision>,
    },
    /// Has written, and begins unless the lock is lost.
    Begin {
        token: u64,
        run: ActiveRun,
    },
    /// Works for `left` more steps.
    Run {
        token: u64,
        left: u8,
    },
    /// Reads the record, to write the end of the run into it.
    Finish {
        token: u64,
    },
    /// Writes the end of the run if the record still has this version.
    WriteEnd {
        token: u64,
        expected_version: u64,
        state: Box<JobRecord>,
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
    LoseWrites { writes: usize },
}

struct World {
    policy: Policy,
    /// The engine's time in seconds.
    now: i64,
    /// The record and its version.
    record: Option<(u64, JobRecord)>,
    /// All writes that are not lost, oldest first.
    writes: Vec<(u64, JobRecord)>,
    /// The highest version: it is never used again.
    highest_version: u64,
    /// The name of the server run, and when it began.
    server_run: (String, i64),
    /// Whether the engine reports its server runs.
    reports_server_run: bool,
    /// Nodes and their tokens; more than one only with `Overlap::Allow`.
    holders: Vec<(usize, u64)>,
    /// The last token that was granted.
    token: u64,
    /// Each node's next step, and the time from which it has the schedule.
    nodes: Vec<(Step, i64)>,
    /// The tick and the token of every run that began.
    starts: Vec<(i64, u64)>,
    /// The highest watermark that was written and not lost.
    watermark: i64,
}

impl World {
    fn new(policy: Policy) -> Self {
        let now = 1000;
        let nodes = vec![(Step::ReadWithoutLock, now); NODES];
        // The first node has created the record.
        let run = ("1".to_owned(), now);
        let record = Some((1, JobRecord { run: run.0.clone(), ..JobRecord::new(NAME.0, NAME.1, now) }));
        let written = Vec::from_iter(record.clone());
        Self {
            policy,
            now,
            record,
            writes: written,
            highest_version: 1,
            server_run: run,
            reports_server_run: true,
            holders: Vec::new(),
            token: 0,
            nodes,
            starts: Vec::new(),
            watermark: now,
        }
    }

    fn read(&self) -> (u64, Option<&JobRecord>) {
        self.record.as_ref().map_or((0, None), |(version, state)| (*version, Some(state)))
    }

    /// Writes `state` if the record still has the version `expected`. Returns whether it did;
    /// `None` if the reply is `lost`.
    fn write(&mut self, expected: u64, state: &JobRecord, lost: bool) -> Option<bool> {
        let matches = self.read().0 == expected;
        if matches {
            assert!(state.watermark >= self.watermark, "the watermark fell");
            self.watermark = state.watermark;
            let version = self.highest_version + 1;
            self.highest_version = version;
            self.record = Some((version, state.clone()));
            self.writes.extend(self.record.clone());
        }
        if lost { None } else { Some(matches) }
    }

    fn holds(&self, node: usize, token: u64) -> bool {
        self.holders.contains(&(node, token))
    }

    /// Whether all permits of the lock are held.
    fn is_full(&self) -> bool {
        let most = match self.policy.overlap {
            Overlap::Allow { max } => max as usize,
            _ => 1,
        };
        self.holders.len() >= most
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Step { node, lost } => self.step(node, lost),
            Event::Kill { node } => {
                self.release(node);
                self.nodes[node] = (Step::ReadWithoutLock, self.now);
            }
            Event::Stall { node } => self.release(node),
            Event::Clock { by } => self.now = (self.now + by).max(0),
            Event::LoseWrites { writes } => self.lose_writes(writes),
        }
    }

    /// Begins a new server run without the last `writes` writes. A holder keeps the lock by its own
    /// clock; it is not granted to others until that lease is over.
    fn lose_writes(&mut self, writes: usize) {
        self.writes.truncate(self.writes.len().saturating_sub(writes));
        self.record = self.writes.last().cloned();
        self.watermark = self.record.as_ref().map_or(0, |(_, state)| state.watermark);
        let number: u64 = self.server_run.0.parse().unwrap();
        self.server_run = ((number + 1).to_string(), self.now);
    }

    fn release(&mut self, node: usize) {
        self.holders.retain(|(holder, _)| *holder != node);
    }

    fn input<'a>(&'a self, token: u64, since: i64, beside: &'a [u64]) -> DecisionInput<'a> {
        let now = u64::try_from(self.now).unwrap() * 1000;
        let (schedule, policy) = (NAME, &self.policy);
        DecisionInput {
            schedule,
            ticks: &SCHEDULE,
            policy,
            since,
            seen: None,
            server_run: None,
            now,
            token,
            node: "n",
            concurrent_tokens: beside,
        }
    }

    /// Prepares the record of a run's end, or releases if the record shows another run.
    fn finish(&self, token: u64) -> Step {
        let (over, state) = self.read();
        let now = u64::try_from(self.now).unwrap() * 1000;
        match state.and_then(|state| state.with_run_ended(token, TickOutcome::Done, "", now)) {
            Some(state) => Step::WriteEnd { token, expected_version: over, state: Box::new(state) },
            None => Step::Release { token },
        }
    }

    fn step(&mut self, node: usize, lost: bool) {
        let (step, since) = self.nodes[node].clone();
        let next = match step {
            Step::ReadWithoutLock => {
                let work =
                    self.read().1.map(|state| pending_work(state, &SCHEDULE, NAME, &self.policy, since, self.now));
                // A node that finds no record creates one.
                if matches!(work, None | Some(PendingWork::Due | PendingWork::WatchRun)) {
                    Step::WaitForLock
                } else {
                    Step::ReadWithoutLock
                }
            }
            Step::WaitForLock if self.is_full() => Step::WaitForLock,
            Step::WaitForLock => {
                self.token += 1;
                self.holders.push((node, self.token));
                Step::ReadRecord { token: self.token }
            }
            Step::ReadRecord { token } => {
                let (over, state) = self.read();
                Step::ListHolders {
                    token,
                    expected_version: over,
                    state: state.cloned().map(Box::new),
                    run: self.server_run.clone(),
                }
            }
            Step::ListHolders { token, expected_version: over, state, run } => {
                let beside: Vec<u64> = match self.policy.overlap {
                    Overlap::Allow { .. } => self.holders.iter().map(|(_, token)| *token).collect(),
                    _ => Vec::new(),
                };
                let server_run = self.reports_server_run.then_some((run.0.as_str(), run.1));
                let decision =
                    decide(state.as_deref(), &DecisionInput { server_run, ..self.input(token, since, &beside) });
                match decision.action {
                    Action::Superseded(_) => Step::Release { token },
                    // With concurrent runs, unneeded writes would block other nodes forever.
                    _ if !decision.must_be_written(state.as_deref()) => Step::Release { token },
                    _ => Step::Write { token, expected_version: over, run, decision: Box::new(decision) },
                }
            }
            Step::Write { token, run, .. } if self.reports_server_run && run != self.server_run => {
                Step::ReadRecord { token }
            }
            Step::Write { token, expected_version: over, decision, .. } => {
                match (self.write(over, &decision.state, lost), decision.action) {
                    (Some(true), Action::Start(run)) => Step::Begin { token, run },
                    (Some(true), _) => Step::Release { token },
                    // Read again: the token shows whether this node wrote it.
                    _ => Step::ReadRecord { token },
                }
            }
            Step::Begin { token, run } if self.holds(node, token) => {
                self.starts.push((run.tick, run.token));
                Step::Run { token, left: 2 }
            }
            Step::Begin { token, .. } => Step::Release { token },
            // A node that lost the lock leaves the run to the node that finds it.
            Step::Run { token, .. } if !self.holds(node, token) => Step::Release { token },
            Step::Run { token, left: 0 } => Step::Finish { token },
            Step::Run { token, left } => Step::Run { token, left: left - 1 },
            Step::Finish { token } => self.finish(token),
            Step::WriteEnd { token, expected_version: over, state } => match self.write(over, &state, lost) {
                Some(true) => Step::Release { token },
                _ => Step::Finish { token },
            },
            Step::Release { token } => {
                self.holders.retain(|holder| *holder != (node, token));
                Step::ReadWithoutLock
            }
        };
        self.nodes[node].0 = next;
    }

    /// Runs all nodes undisturbed until they are idle.
    fn run_undisturbed(&mut self) {
        for round in 0..20_000 {
            self.step(round % NODES, false);
        }
    }

    fn starts_by_tick(&self) -> BTreeMap<i64, Vec<u64>> {
        let mut all: BTreeMap<i64, Vec<u64>> = BTreeMap::new();
        for (tick, token) in &self.starts {
            all.entry(*tick).or_default().push(*token);
        }
        all
    }
}

/// Events with a server that loses its last writes up to three times.
fn events_with_data_loss() -> impl Strategy<Value = Vec<Event>> {
    let forget = (0usize..6).prop_map(|writes| Event::LoseWrites { writes });
    let wipe = Just(Event::LoseWrites { writes: usize::MAX });
    let losses = prop::collection::vec((any::<prop::sample::Index>(), prop_oneof![4 => forget, 1 => wipe]), 1..4);
    (events(false), losses).prop_map(|(mut events, losses)| {
        for (at, loss) in losses {
            events.insert(at.index(events.len() + 1), loss);
        }
        events
    })
}

/// Events without data loss; with `jumps`, the engine's clock goes back as well as forward.
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
    fn a_tick_starts_twice_only_by_policy_and_with_a_higher_token(policy in policies(), events in events(true)) {
        let mut world = World::new(policy);
        for event in events {
            world.apply(event);
        }
        world.run_undisturbed();
        let most = match policy.crash {
            Crash::AtMostOnce => 1,
            Crash::Retry { attempts } => attempts as usize,
        };
        for (tick, tokens) in world.starts_by_tick() {
            prop_assert!(tick % PERIOD == 0 && tick > 1000, "{} is not a tick", tick);
            prop_assert!(tokens.len() <= most, "{} began with {:?}", tick, tokens);
            prop_assert!(tokens.is_sorted_by(|a, b| a < b), "{} began with {:?}", tick, tokens);
        }
        let order: Vec<_> = world.starts.iter().map(|(tick, _)| *tick).collect();
        let beside = matches!(policy.overlap, Overlap::Allow { .. });
        prop_assert!(beside || order.is_sorted(), "out of order: {:?}", order);
    }

    #[test]
    fn after_a_data_loss_a_tick_starts_again_only_by_policy_and_with_a_higher_token(
        policy in policies(), events in events_with_data_loss(),
    ) {
        let mut world = World::new(policy);
        for event in events {
            world.apply(event);
        }
        world.run_undisturbed();
        for (tick, tokens) in world.starts_by_tick() {
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
    fn with_the_most_permissive_policies_each_tick_is_run(events in events(false), beside in 0u32..4) {
        let overlap = if beside == 0 { Overlap::Queue } else { Overlap::Allow { max: beside } };
        let policy = Policy {
            crash: Crash::Retry { attempts: u32::MAX }, missed: Missed::All { limit: 1000 }, overlap, grace: 5,
        };
        let mut world = World::new(policy);
        for event in events {
            world.apply(event);
        }
        world.run_undisturbed();
        let wanted: Vec<i64> = (1001..=world.now).filter(|tick| tick % PERIOD == 0).collect();
        let (_, state) = world.record.clone().unwrap();
        let done: Vec<i64> = world.starts_by_tick().into_keys().collect();
        prop_assert_eq!(done, wanted);
        prop_assert!(state.running.is_empty() && state.queue.is_empty());
        let mut ends: Vec<_> = state.history.iter().filter(|entry| entry.outcome == TickOutcome::Done).map(|e| e.tick).collect();
        if beside > 0 {
            ends.sort_unstable();
        }
        prop_assert!(ends.is_sorted_by(|a, b| a < b), "ended twice: {:?}", ends);
    }
}

/// If the engine does not report its server runs, the same loss runs a tick again.
#[test]
fn an_unreported_data_loss_makes_a_tick_start_twice() {
    let policy = Policy { crash: Crash::AtMostOnce, missed: Missed::Skip, overlap: Overlap::Skip, grace: 20 };
    for reports in [false, true] {
        let mut world = World { reports_server_run: reports, ..World::new(policy) };
        world.apply(Event::Clock { by: PERIOD });
        // All writes but the first are lost once the tick has run.
        for _ in 0..40 {
            world.step(0, false);
        }
        world.apply(Event::LoseWrites { writes: 2 });
        world.run_undisturbed();
        let begins: Vec<usize> = world.starts_by_tick().values().map(Vec::len).collect();
        assert_eq!(begins, [if reports { 1 } else { 2 }]);
    }
}
