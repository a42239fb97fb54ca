//! Every order of the protocol's steps within small bounds: two nodes, two ticks, a kill, a stall,
//! a lost reply. The nodes' decisions are the real code. The same search finds the errors of
//! protocols that are wrong on purpose.

use leasehold_schedule::logic::{
    Action, ActiveRun, Crash, DecisionInput, JobRecord, Missed, Overlap, PendingWork, Policy, TickOutcome, Ticks,
    decide, pending_work,
};
use stateright::{Checker, HasDiscoveries, Model, Property};

const NAME: (&str, &str) = ("@every 1s", "UTC");
const BEGIN: i64 = 10;
const NODES: usize = 2;

struct EverySecond;

impl Ticks for EverySecond {
    fn next(&self, after: i64) -> Option<i64> {
        Some(after + 1)
    }
}

/// A deliberate error of the modelled protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// Writes regardless of the version.
    IgnoresVersion,
    /// Runs before it has written.
    RunsFirst,
    /// Decides from what it read before it had the lock.
    DecidesOnOldRecord,
    /// In a new run of a server, trusts that its data is complete.
    TrustsNewServerRun,
}

#[derive(Clone, Debug)]
struct BoundedModel {
    policy: Policy,
    flaw: Flaw,
    /// How many ticks come due.
    ticks: i64,
    /// How often a node dies.
    kills: u8,
    /// How often a lease ends without its holder noticing.
    stalls: u8,
    /// How many replies are lost.
    lost_replies: u8,
    /// How often the server starts a new run without its last write.
    data_losses: u8,
}

/// The next step of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Step {
    ReadWithoutLock,
    WaitForLock { seen: (u64, Box<JobRecord>) },
    Read { token: u64 },
    Write { token: u64, over: u64, read_in: u8, state: Box<JobRecord>, run: Option<ActiveRun> },
    Begin { token: u64, run: ActiveRun },
    Run { token: u64 },
    Finish { token: u64 },
    End { token: u64, over: u64, state: Box<JobRecord> },
    Release { token: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    now: i64,
    version: u64,
    record: JobRecord,
    /// The record before the last write.
    previous_record: JobRecord,
    /// The server's run, and when it began.
    server_run: (u8, i64),
    holder: Option<(usize, u64)>,
    token: u64,
    nodes: Vec<Step>,
    /// The tick and the token of every run that began.
    starts: Vec<(i64, u64)>,
    watermark_fell: bool,
    /// How many of each fault may still come.
    kills: u8,
    stalls: u8,
    lost_replies: u8,
    data_losses: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ModelAction {
    Step(usize),
    /// A step whose reply to the write is lost.
    StepWithLostReply(usize),
    Kill(usize),
    /// The lease ends, and the node does not know.
    Stall(usize),
    Tick,
    /// The server starts a new run without its last write. The holder keeps the lock until its
    /// lease ends, and no other node acquires it before.
    LoseLastWrite,
}

impl BoundedModel {
    fn step(&self, world: &mut World, node: usize, lost: bool) {
        let holds = |world: &World, token| world.holder == Some((node, token));
        let now = u64::try_from(world.now).unwrap() * 1000;
        let next = match world.nodes[node].clone() {
            Step::ReadWithoutLock => {
                match pending_work(&world.record, &EverySecond, NAME, &self.policy, BEGIN, world.now) {
                    PendingWork::Idle(_) => Step::ReadWithoutLock,
                    _ => Step::WaitForLock { seen: (world.version, Box::new(world.record.clone())) },
                }
            }
            Step::WaitForLock { seen } if world.holder.is_some() => Step::WaitForLock { seen },
            Step::WaitForLock { seen } => {
                world.token += 1;
                world.holder = Some((node, world.token));
                if self.flaw == Flaw::DecidesOnOldRecord {
                    self.step_after_decision(world.token, world.version, &seen.1, world.server_run, now)
                } else {
                    Step::Read { token: world.token }
                }
            }
            Step::Read { token } => {
                self.step_after_decision(token, world.version, &world.record, world.server_run, now)
            }
            Step::Write { token, over, read_in, state, run } => {
                let fits = (over, read_in) == (world.version, world.server_run.0) || self.flaw == Flaw::IgnoresVersion;
                if fits {
                    world.store_record(*state);
                }
                match run {
                    // It started before it wrote, and continues with any result.
                    _ if self.flaw == Flaw::RunsFirst => Step::Run { token },
                    Some(run) if fits && !lost => Step::Begin { token, run },
                    None if fits && !lost => Step::Release { token },
                    _ => Step::Read { token },
                }
            }
            Step::Begin { token, run } if holds(world, token) => {
                world.starts.push((run.tick, run.token));
                Step::Run { token }
            }
            Step::Begin { token, .. } => Step::Release { token },
            Step::Run { token } if holds(world, token) => Step::Finish { token },
            Step::Run { token } => Step::Release { token },
            Step::Finish { token } => match world.record.with_run_ended(token, TickOutcome::Done, "", now) {
                Some(state) => Step::End { token, over: world.version, state: Box::new(state) },
                None => Step::Release { token },
            },
            Step::End { token, over, state } => {
                let fits = over == world.version || self.flaw == Flaw::IgnoresVersion;
                if fits {
                    world.store_record(*state);
                }
                if fits && !lost { Step::Release { token } } else { Step::Finish { token } }
            }
            Step::Release { token } => {
                if holds(world, token) {
                    world.holder = None;
                }
                Step::ReadWithoutLock
            }
        };
        if self.flaw == Flaw::RunsFirst
            && let Step::Write { run: Some(run), .. } = &next
        {
            world.starts.push((run.tick, run.token));
        }
        world.nodes[node] = next;
    }

    fn step_after_decision(
        &self,
        token: u64,
        over: u64,
        state: &JobRecord,
        (read_in, began): (u8, i64),
        now: u64,
    ) -> Step {
        let (schedule, policy, ticks, number) = (NAME, &self.policy, &EverySecond, read_in.to_string());
        let run = (self.flaw != Flaw::TrustsNewServerRun).then_some((number.as_str(), began));
        let input = DecisionInput {
            schedule,
            ticks,
            policy,
            since: BEGIN,
            seen: None,
            server_run: run,
            now,
            token,
            node: "n",
            concurrent_tokens: &[],
        };
        let decision = decide(Some(state), &input);
        let run = match decision.action {
            Action::Superseded(_) => return Step::Release { token },
            Action::Start(run) => Some(run),
            Action::None => None,
        };
        Step::Write { token, over, read_in, state: Box::new(decision.state), run }
    }
}

impl World {
    fn store_record(&mut self, state: JobRecord) {
        self.watermark_fell |= state.watermark < self.record.watermark;
        self.previous_record = std::mem::replace(&mut self.record, state);
        self.version += 1;
    }
}

impl Model for BoundedModel {
    type State = World;
    type Action = ModelAction;

    fn init_states(&self) -> Vec<World> {
        let record = JobRecord { run: "0".to_owned(), ..JobRecord::new(NAME.0, NAME.1, BEGIN) };
        let (kills, stalls, lost_replies, forgets) = (self.kills, self.stalls, self.lost_replies, self.data_losses);
        vec![World {
            now: BEGIN,
            version: 1,
            previous_record: record.clone(),
            record,
            server_run: (0, BEGIN),
            holder: None,
            token: 0,
            nodes: vec![Step::ReadWithoutLock; NODES],
            starts: Vec::new(),
            watermark_fell: false,
            kills,
            stalls,
            lost_replies,
            data_losses: forgets,
        }]
    }

    fn actions(&self, world: &World, moves: &mut Vec<ModelAction>) {
        for node in 0..NODES {
            moves.push(ModelAction::Step(node));
            if world.lost_replies > 0 && matches!(world.nodes[node], Step::Write { .. } | Step::End { .. }) {
                moves.push(ModelAction::StepWithLostReply(node));
            }
            if world.kills > 0 && world.nodes[node] != Step::ReadWithoutLock {
                moves.push(ModelAction::Kill(node));
            }
            if world.stalls > 0 && world.holder.is_some_and(|(holder, _)| holder == node) {
                moves.push(ModelAction::Stall(node));
            }
        }
        if world.now < BEGIN + self.ticks {
            moves.push(ModelAction::Tick);
        }
        if world.data_losses > 0 {
            moves.push(ModelAction::LoseLastWrite);
        }
    }

    fn next_state(&self, world: &World, action: ModelAction) -> Option<World> {
        let mut next = world.clone();
        match action {
            ModelAction::Step(node) => self.step(&mut next, node, false),
            ModelAction::StepWithLostReply(node) => {
                next.lost_replies -= 1;
                self.step(&mut next, node, true);
            }
            ModelAction::Kill(node) => {
                next.kills -= 1;
                next.holder = next.holder.filter(|(holder, _)| *holder != node);
                next.nodes[node] = Step::ReadWithoutLock;
            }
            ModelAction::Stall(_) => {
                next.stalls -= 1;
                next.holder = None;
            }
            ModelAction::Tick => next.now += 1,
            ModelAction::LoseLastWrite => {
                next.data_losses -= 1;
                next.record = next.previous_record.clone();
                next.server_run = (next.server_run.0 + 1, next.now);
                next.version += 1;
            }
        }
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("a tick begins once, or again with a higher token", |model: &Self, world: &World| {
                let most = match model.policy.crash {
                    Crash::AtMostOnce => 1,
                    Crash::Retry { attempts } => attempts as usize,
                };
                (BEGIN..=BEGIN + model.ticks).all(|tick| {
                    let tokens: Vec<_> = world.starts.iter().filter(|run| run.0 == tick).map(|run| run.1).collect();
                    tokens.len() <= most && tokens.is_sorted_by(|a, b| a < b)
                })
            }),
            Property::always("the watermark does not fall", |_, world: &World| !world.watermark_fell),
            Property::sometimes("every tick ends well", |model, world: &World| {
                let done = |tick| world.record.history.iter().any(|e| e.tick == tick && e.outcome == TickOutcome::Done);
                (BEGIN + 1..=BEGIN + model.ticks).all(done)
            }),
        ]
    }
}

fn bounded_model(crash: Crash, flaw: Flaw) -> BoundedModel {
    let policy = Policy { crash, missed: Missed::All { limit: 9 }, overlap: Overlap::Queue, grace: 0 };
    BoundedModel { policy, flaw, ticks: 2, kills: 1, stalls: 1, lost_replies: 1, data_losses: 0 }
}

/// A model whose server loses its last write.
fn model_with_data_loss(flaw: Flaw) -> BoundedModel {
    BoundedModel { kills: 0, lost_replies: 0, data_losses: 1, ..bounded_model(Crash::AtMostOnce, flaw) }
}

#[test]
fn within_these_bounds_no_order_of_events_repeats_a_tick_that_the_server_lost() {
    let checker = model_with_data_loss(Flaw::None).checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    assert!(checker.unique_state_count() > 5_000, "{}", checker.unique_state_count());
    let found = model_with_data_loss(Flaw::TrustsNewServerRun)
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    assert!(found.discoveries().contains_key("a tick begins once, or again with a higher token"), "not detected");
}

#[test]
fn within_these_bounds_no_order_of_events_repeats_a_tick() {
    for crash in [Crash::AtMostOnce, Crash::Retry { attempts: 2 }] {
        let checker = bounded_model(crash, Flaw::None).checker().threads(2).spawn_bfs().join();
        checker.assert_properties();
        assert!(checker.unique_state_count() > 10_000, "{}", checker.unique_state_count());
    }
}

#[test]
fn each_part_of_the_protocol_is_needed() {
    for (crash, flaw) in [
        (Crash::AtMostOnce, Flaw::IgnoresVersion),
        (Crash::AtMostOnce, Flaw::RunsFirst),
        (Crash::AtMostOnce, Flaw::DecidesOnOldRecord),
    ] {
        let checker =
            bounded_model(crash, flaw).checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
        let found = checker.discoveries();
        let broken = found.keys().any(|property| *property != "every tick ends well");
        assert!(broken, "{flaw:?} was not detected");
    }
}
