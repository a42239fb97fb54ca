//! Long random runs, each determined by its seed. `LEASEHOLD_SEED=7 cargo test -p leasehold --test
//! integration quorum::simulation::every_promise_holds -- --nocapture` does only this run, and
//! shows it event by event.

mod actor;
mod chance;
mod judge;
mod plan;
mod world;

use std::collections::BTreeMap;
use std::time::Duration;

use self::actor::Actor;
use self::chance::Dice;
use self::judge::Breach;
use self::plan::{Plan, Restart};
use self::world::{Happening, World};
use leasehold::logic::lease::Drift;

/// The ordinary tests do one in this many runs; `--features nightly` does all.
const ONE_IN: u64 = if cfg!(feature = "nightly") { 1 } else { 25 };

/// The result of a run.
#[derive(Debug, Default)]
struct Report {
    grants: usize,
    shared: usize,
    fenced_off: usize,
    events: u64,
    breaches: Vec<(Breach, String)>,
    log: Vec<String>,
}

fn step(world: &mut World, actors: &mut [Actor], what: Happening) {
    let of = match what {
        Happening::Answers { actor, .. } | Happening::GivesUp { actor, .. } | Happening::Acts { actor, .. } => {
            Some(actor)
        }
        _ => None,
    };
    // A paused actor receives everything that came meanwhile when it resumes.
    if let Some(until) = of.map(|actor| actors[actor].paused_until).filter(|until| *until > world.now) {
        return world.at(until, what);
    }
    match what {
        Happening::Answers { actor, node, attempt, answer, clock } => {
            actors[actor].hear(world, node, attempt, answer, Some(clock));
        }
        Happening::GivesUp { actor, node, attempt, answer } => actors[actor].hear(world, node, attempt, answer, None),
        Happening::Acts { actor, turn, act } => actors[actor].act(world, turn, act),
        Happening::Writes { actor, grant } => {
            let passes = world.judge.writes(grant);
            world.say(|| {
                format!("the resource gets a write of {actor}, which {}", if passes { "passes" } else { "is refused" })
            });
        }
        Happening::Pauses { actor, lasts } if !world.calm => {
            world.say(|| format!("{actor} stops for {lasts} µs"));
            actors[actor].paused_until = world.now + lasts;
        }
        other => world.node_step(other),
    }
}

fn run(seed: u64, logs: bool, adjust: fn(&mut Plan)) -> Report {
    let mut dice = Dice::new(seed);
    let mut plan = Plan::draw(&mut dice);
    adjust(&mut plan);
    let mut world = World::new(plan, dice, logs);
    world.say(|| format!("{plan:?}"));
    let mut actors: Vec<Actor> = (0..plan.actors).map(|id| Actor::new(id, &mut world)).collect();
    while let Some(what) = world.next(plan.lasts) {
        step(&mut world, &mut actors, what);
    }
    afterwards(&mut world, &mut actors);
    let judge = world.judge;
    let (grants, shared, fenced_off) = (judge.grants.len(), judge.shared, judge.fenced_off);
    let log = world.log.unwrap_or_default();
    Report { grants, shared, fenced_off, events: world.events, breaches: judge.breaches, log }
}

/// After the faults end, an actor acquires the lock soon, and nothing is left in the end.
fn afterwards(world: &mut World, actors: &mut [Actor]) {
    world.say(|| "all faults are over".into());
    world.calm = true;
    let ttl = world.plan.ttl;
    // Late and stopped participants are back within two TTLs. A node that restarted at that time is
    // back after one more, and what late messages left there expires after another one. A clock
    // that jumped may keep such data for longer.
    let end = world.now + ttl * (6 + world.plan.jumps * 2);
    let before = world.judge.grants.len();
    while let Some(what) = world.next(end) {
        step(world, actors, what);
    }
    if world.judge.grants.len() == before {
        world.judge.stuck("nobody got the lock after all faults were over");
    }
    for actor in actors.iter_mut() {
        actor.retired = true;
    }
    let end = world.now + ttl * 6;
    while let Some(what) = world.next(end) {
        step(world, actors, what);
    }
    if actors.iter().any(Actor::holds) {
        world.judge.stuck("somebody still holds the lock");
    }
    for node in 0..world.plan.nodes {
        if world.plan.jumps == 0 && !world.lets_in(node, &actors[0]) {
            let what = format!("node {node}: {:?}", world.nodes[node].ballots);
            world.judge.left_over(what);
        }
    }
}

/// The one run that is requested, if any.
fn wanted() -> Option<u64> {
    std::env::var("LEASEHOLD_SEED").ok().map(|seed| seed.parse().expect("LEASEHOLD_SEED is a number"))
}

/// The result of many runs.
struct Many {
    total: Report,
    bad: BTreeMap<u64, Vec<(Breach, String)>>,
    /// Only one run was requested, and shown: its counts are not checked.
    one: bool,
}

/// Runs many seeds on two threads, or the requested one, and adds up the results.
fn many(test: &str, seeds: u64, adjust: fn(&mut Plan)) -> Many {
    let (wanted, seeds) = (wanted(), seeds.div_ceil(ONE_IN));
    let reports: Vec<(u64, Report)> = match wanted {
        Some(seed) => {
            let report = run(seed, true, adjust);
            println!("{test}, LEASEHOLD_SEED={seed}\n{}", report.log.join("\n"));
            vec![(seed, report)]
        }
        None => {
            let half = |odd: u64| {
                (0..seeds).filter(move |seed| seed % 2 == odd).map(move |seed| (seed, run(seed, false, adjust)))
            };
            std::thread::scope(|scope| {
                let other = scope.spawn(|| half(1).collect::<Vec<_>>());
                half(0).collect::<Vec<_>>().into_iter().chain(other.join().expect("no run panics")).collect()
            })
        }
    };
    let mut many = Many { total: Report::default(), bad: BTreeMap::new(), one: wanted.is_some() };
    let runs = reports.len();
    for (seed, report) in reports {
        many.total.grants += report.grants;
        many.total.shared += report.shared;
        many.total.fenced_off += report.fenced_off;
        many.total.events += report.events;
        if !report.breaches.is_empty() {
            many.bad.insert(seed, report.breaches);
        }
    }
    let Report { grants, shared, fenced_off, events, .. } = many.total;
    println!(
        "{test}: {runs} runs, {events} events, {grants} grants, {shared} of them shared, {fenced_off} late writes fenced off, \
         {} runs with a breach",
        many.bad.len()
    );
    many
}

/// No run may have a breach; and enough must have happened that a breach would show.
fn all_hold(test: &str, seeds: u64, adjust: fn(&mut Plan), enough: fn(&Report) -> bool) {
    let Many { total, bad, one } = many(test, seeds, adjust);
    let kinds = bad.values().flatten().fold(BTreeMap::<String, usize>::new(), |mut kinds, (breach, _)| {
        *kinds.entry(format!("{breach:?}")).or_default() += 1;
        kinds
    });
    if let Some((seed, breaches)) = bad.first_key_value() {
        panic!(
            "{} runs broke a promise: {kinds:?}\nthe first, to be seen with\n\
             LEASEHOLD_SEED={seed} cargo test -p leasehold --test integration quorum::simulation::{test} -- --nocapture\n{:#?}",
            bad.len(),
            &breaches[..breaches.len().min(3)]
        );
    }
    assert!(one || enough(&total), "it would show: {total:?}");
}

/// Some run must have this breach: otherwise the simulation could not detect it.
fn some_break(test: &str, seeds: u64, adjust: fn(&mut Plan), breach: Breach) {
    let Many { bad, one, .. } = many(test, seeds, adjust);
    let broken = bad.values().flatten().filter(|(kind, _)| *kind == breach);
    match one {
        true => broken.for_each(|(kind, what)| println!("{kind:?}: {what}")),
        false => assert!(broken.count() > 0, "the simulation would not notice"),
    }
}

#[test]
fn one_seed_is_one_run() {
    for seed in 0..20_u64.div_ceil(ONE_IN) {
        let (one, again, other) = (run(seed, true, |_| {}), run(seed, true, |_| {}), run(seed + 1, true, |_| {}));
        assert!(one.log.len() > 50, "{} events", one.log.len());
        assert_eq!((&one.log, one.events), (&again.log, again.events), "seed {seed}");
        assert_ne!(one.log, other.log, "seed {seed}");
        // Logging does not change a run.
        assert_eq!(run(seed, false, |_| {}).events, one.events, "seed {seed}");
    }
}

#[test]
fn every_promise_holds() {
    let enough = |total: &Report| {
        let one_in = ONE_IN as usize;
        total.grants > 10_000 / one_in && total.shared > 500 / one_in && total.fenced_off > 100 / one_in
    };
    all_hold("every_promise_holds", 2500, |_| {}, enough);
}

#[test]
fn tokens_need_no_clock() {
    let jumps = |plan: &mut Plan| {
        plan.jumps = 4;
        plan.restart = Restart::Durable;
    };
    all_hold("tokens_need_no_clock", 1500, jumps, |total| total.grants > 5_000 / ONE_IN as usize);
}

#[test]
fn nodes_that_forget_and_do_not_abstain_let_two_in() {
    let forgetful = |plan: &mut Plan| {
        plan.restart = Restart::Forgetful;
        plan.restarts = 12;
    };
    some_break("nodes_that_forget_and_do_not_abstain_let_two_in", 300, forgetful, Breach::TwoHolders);
}

#[test]
fn the_allowance_for_drift_is_needed_and_enough() {
    const TEST: &str = "the_allowance_for_drift_is_needed_and_enough";
    all_hold(TEST, 25, Plan::only_clocks, |total| total.grants > 100 / ONE_IN as usize);
    let without = |plan: &mut Plan| {
        plan.only_clocks();
        plan.drift = Drift { ppm: 0, fixed: Duration::ZERO };
    };
    some_break(TEST, 25, without, Breach::TwoHolders);
}
