//! Every order of the protocol's steps within small bounds: two nodes, two ticks, a kill, a stall,
//! a lost reply. The nodes' decisions are the real code. The same search finds the errors of
//! protocols that are wrong on purpose.

use leasehold::logic::schedule::{
    Action, Crash, Missed, Outcome, Overlap, Policy, Running, Scene, State, Ticks, Work, decide, look,
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

/// A deliberate error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// Writes regardless of the version.
    Blind,
    /// Runs before it has written.
    RunsFirst,
    /// Decides from what it read before it had the lock.
    Stale,
    /// In a new run of a server, trusts that its data is complete.
    Trusts,
}

#[derive(Clone, Debug)]
struct Small {
    policy: Policy,
    flaw: Flaw,
    ticks: i64,
    kills: u8,
    stalls: u8,
    losses: u8,
    /// How often the server starts a new run without its last write.
    forgets: u8,
}

/// The next step of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Step {
    Look,
    Line { seen: (u64, Box<State>) },
    Read { token: u64 },
    Write { token: u64, over: u64, read_in: u8, state: Box<State>, run: Option<Running> },
    Begin { token: u64, run: Running },
    Run { token: u64 },
    Finish { token: u64 },
    End { token: u64, over: u64, state: Box<State> },
    Release { token: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    now: i64,
    version: u64,
    record: State,
    /// The record before the last write.
    before: State,
    /// The server's run, and when it began.
    run: (u8, i64),
    holder: Option<(usize, u64)>,
    token: u64,
    nodes: Vec<Step>,
    /// Every start of a run: tick, token.
    begun: Vec<(i64, u64)>,
    fell: bool,
    kills: u8,
    stalls: u8,
    losses: u8,
    forgets: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Move {
    Step(usize),
    /// A step whose reply to the write is lost.
    Lost(usize),
    Kill(usize),
    /// The lease ends, and the node does not know.
    Stall(usize),
    Tick,
    /// A new run, without the last write. The holder keeps the lock for its time, and no other node
    /// acquires it.
    Forget,
}

impl Small {
    fn step(&self, world: &mut World, node: usize, lost: bool) {
        let holds = |world: &World, token| world.holder == Some((node, token));
        let now = u64::try_from(world.now).unwrap() * 1000;
        let next = match world.nodes[node].clone() {
            Step::Look => match look(&world.record, &EverySecond, NAME, &self.policy, BEGIN, world.now) {
                Work::Idle(_) => Step::Look,
                _ => Step::Line { seen: (world.version, Box::new(world.record.clone())) },
            },
            Step::Line { seen } if world.holder.is_some() => Step::Line { seen },
            Step::Line { seen } => {
                world.token += 1;
                world.holder = Some((node, world.token));
                if self.flaw == Flaw::Stale {
                    self.decided(world.token, world.version, &seen.1, world.run, now)
                } else {
                    Step::Read { token: world.token }
                }
            }
            Step::Read { token } => self.decided(token, world.version, &world.record, world.run, now),
            Step::Write { token, over, read_in, state, run } => {
                let fits = (over, read_in) == (world.version, world.run.0) || self.flaw == Flaw::Blind;
                if fits {
                    world.keep(*state);
                }
                match run {
                    // It started before it wrote, and continues whatever the result was.
                    _ if self.flaw == Flaw::RunsFirst => Step::Run { token },
                    Some(run) if fits && !lost => Step::Begin { token, run },
                    None if fits && !lost => Step::Release { token },
                    _ => Step::Read { token },
                }
            }
            Step::Begin { token, run } if holds(world, token) => {
                world.begun.push((run.tick, run.token));
                Step::Run { token }
            }
            Step::Begin { token, .. } => Step::Release { token },
            Step::Run { token } if holds(world, token) => Step::Finish { token },
            Step::Run { token } => Step::Release { token },
            Step::Finish { token } => match world.record.finished(token, Outcome::Done, "", now) {
                Some(state) => Step::End { token, over: world.version, state: Box::new(state) },
                None => Step::Release { token },
            },
            Step::End { token, over, state } => {
                let fits = over == world.version || self.flaw == Flaw::Blind;
                if fits {
                    world.keep(*state);
                }
                if fits && !lost { Step::Release { token } } else { Step::Finish { token } }
            }
            Step::Release { token } => {
                if holds(world, token) {
                    world.holder = None;
                }
                Step::Look
            }
        };
        if self.flaw == Flaw::RunsFirst
            && let Step::Write { run: Some(run), .. } = &next
        {
            world.begun.push((run.tick, run.token));
        }
        world.nodes[node] = next;
    }

    fn decided(&self, token: u64, over: u64, state: &State, (read_in, began): (u8, i64), now: u64) -> Step {
        let (schedule, policy, timetable, number) = (NAME, &self.policy, &EverySecond, read_in.to_string());
        let run = (self.flaw != Flaw::Trusts).then_some((number.as_str(), began));
        let scene =
            Scene { schedule, timetable, policy, since: BEGIN, seen: None, run, now, token, node: "n", beside: &[] };
        let decision = decide(Some(state), &scene);
        let run = match decision.action {
            Action::Stale(_) => return Step::Release { token },
            Action::Start(run) => Some(run),
            Action::Nothing => None,
        };
        Step::Write { token, over, read_in, state: Box::new(decision.state), run }
    }
}

impl World {
    fn keep(&mut self, state: State) {
        self.fell |= state.watermark < self.record.watermark;
        self.before = std::mem::replace(&mut self.record, state);
        self.version += 1;
    }
}

impl Model for Small {
    type State = World;
    type Action = Move;

    fn init_states(&self) -> Vec<World> {
        let record = State { run: "0".to_owned(), ..State::new(NAME.0, NAME.1, BEGIN) };
        let (kills, stalls, losses, forgets) = (self.kills, self.stalls, self.losses, self.forgets);
        vec![World {
            now: BEGIN,
            version: 1,
            before: record.clone(),
            record,
            run: (0, BEGIN),
            holder: None,
            token: 0,
            nodes: vec![Step::Look; NODES],
            begun: Vec::new(),
            fell: false,
            kills,
            stalls,
            losses,
            forgets,
        }]
    }

    fn actions(&self, world: &World, moves: &mut Vec<Move>) {
        for node in 0..NODES {
            moves.push(Move::Step(node));
            if world.losses > 0 && matches!(world.nodes[node], Step::Write { .. } | Step::End { .. }) {
                moves.push(Move::Lost(node));
            }
            if world.kills > 0 && world.nodes[node] != Step::Look {
                moves.push(Move::Kill(node));
            }
            if world.stalls > 0 && world.holder.is_some_and(|(holder, _)| holder == node) {
                moves.push(Move::Stall(node));
            }
        }
        if world.now < BEGIN + self.ticks {
            moves.push(Move::Tick);
        }
        if world.forgets > 0 {
            moves.push(Move::Forget);
        }
    }

    fn next_state(&self, world: &World, action: Move) -> Option<World> {
        let mut next = world.clone();
        match action {
            Move::Step(node) => self.step(&mut next, node, false),
            Move::Lost(node) => {
                next.losses -= 1;
                self.step(&mut next, node, true);
            }
            Move::Kill(node) => {
                next.kills -= 1;
                next.holder = next.holder.filter(|(holder, _)| *holder != node);
                next.nodes[node] = Step::Look;
            }
            Move::Stall(_) => {
                next.stalls -= 1;
                next.holder = None;
            }
            Move::Tick => next.now += 1,
            Move::Forget => {
                next.forgets -= 1;
                next.record = next.before.clone();
                next.run = (next.run.0 + 1, next.now);
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
                    let tokens: Vec<_> = world.begun.iter().filter(|run| run.0 == tick).map(|run| run.1).collect();
                    tokens.len() <= most && tokens.is_sorted_by(|a, b| a < b)
                })
            }),
            Property::always("the watermark does not fall", |_, world: &World| !world.fell),
            Property::sometimes("every tick ends well", |model, world: &World| {
                let done = |tick| world.record.history.iter().any(|e| e.tick == tick && e.outcome == Outcome::Done);
                (BEGIN + 1..=BEGIN + model.ticks).all(done)
            }),
        ]
    }
}

fn small(crash: Crash, flaw: Flaw) -> Small {
    let policy = Policy { crash, missed: Missed::All { limit: 9 }, overlap: Overlap::Queue, grace: 0 };
    Small { policy, flaw, ticks: 2, kills: 1, stalls: 1, losses: 1, forgets: 0 }
}

/// A model whose server loses its last write.
fn forgetful(flaw: Flaw) -> Small {
    Small { kills: 0, losses: 0, forgets: 1, ..small(Crash::AtMostOnce, flaw) }
}

#[test]
fn within_these_bounds_no_order_of_events_runs_a_tick_again_that_the_server_forgot() {
    let checker = forgetful(Flaw::None).checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    assert!(checker.unique_state_count() > 5_000, "{}", checker.unique_state_count());
    let found =
        forgetful(Flaw::Trusts).checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    assert!(found.discoveries().contains_key("a tick begins once, or again with a higher token"), "not found out");
}

#[test]
fn within_these_bounds_no_order_of_events_runs_a_tick_again() {
    for crash in [Crash::AtMostOnce, Crash::Retry { attempts: 2 }] {
        let checker = small(crash, Flaw::None).checker().threads(2).spawn_bfs().join();
        checker.assert_properties();
        assert!(checker.unique_state_count() > 10_000, "{}", checker.unique_state_count());
    }
}

#[test]
fn each_part_of_the_protocol_is_needed() {
    for (crash, flaw) in
        [(Crash::AtMostOnce, Flaw::Blind), (Crash::AtMostOnce, Flaw::RunsFirst), (Crash::AtMostOnce, Flaw::Stale)]
    {
        let checker =
            small(crash, flaw).checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
        let found = checker.discoveries();
        let broken = found.keys().any(|property| *property != "every tick ends well");
        assert!(broken, "{flaw:?} was not found out");
    }
}
