//! Long random runs, each determined by its seed. `LEASEHOLD_SEED=7 cargo test -p leasehold --test
//! integration quorum::simulation::every_guarantee_holds -- --nocapture` does only this run, and
//! shows it event by event.

mod actor;
mod checker;
mod plan;
mod rng;
mod world;

use std::collections::BTreeMap;
use std::time::Duration;

use self::actor::Actor;
use self::checker::Violation;
use self::plan::{Plan, Restart};
use self::rng::Rng;
use self::world::{SimulatedEvent, World};
use leasehold::internals::logic::lease::Drift;

/// The ordinary tests do one in this many runs; `--features nightly` does all.
const ONE_IN: u64 = if cfg!(feature = "nightly") { 1 } else { 25 };

/// The result of a run.
#[derive(Debug, Default)]
struct Report {
    grants: usize,
    shared: usize,
    fenced_off: usize,
    events: u64,
    violations: Vec<(Violation, String)>,
    log: Vec<String>,
}

fn step(world: &mut World, actors: &mut [Actor], event: SimulatedEvent) {
    let of = match event {
        SimulatedEvent::Answers { actor, .. }
        | SimulatedEvent::GivesUp { actor, .. }
        | SimulatedEvent::Acts { actor, .. } => Some(actor),
        _ => None,
    };
    // A paused actor receives everything that arrived during the pause when it resumes.
    if let Some(until) = of.map(|actor| actors[actor].paused_until).filter(|until| *until > world.now) {
        return world.schedule_at(until, event);
    }
    match event {
        SimulatedEvent::Answers { actor, node, attempt, answer, clock } => {
            actors[actor].handle_answer(world, node, attempt, answer, Some(clock));
        }
        SimulatedEvent::GivesUp { actor, node, attempt, answer } => {
            actors[actor].handle_answer(world, node, attempt, answer, None)
        }
        SimulatedEvent::Acts { actor, turn, act } => actors[actor].act(world, turn, act),
        SimulatedEvent::Writes { actor, grant } => {
            let passes = world.checker.check_write(grant);
            world.log_line(|| {
                format!("the resource gets a write of {actor}, which {}", if passes { "passes" } else { "is refused" })
            });
        }
        SimulatedEvent::Pauses { actor, lasts } if !world.is_fault_free => {
            world.log_line(|| format!("{actor} stops for {lasts} µs"));
            actors[actor].paused_until = world.now + lasts;
        }
        other => world.node_step(other),
    }
}

fn run(seed: u64, logs: bool, adjust: fn(&mut Plan)) -> Report {
    let mut random = Rng::new(seed);
    let mut plan = Plan::random(&mut random);
    adjust(&mut plan);
    let mut world = World::new(plan, random, logs);
    world.log_line(|| format!("{plan:?}"));
    let mut actors: Vec<Actor> = (0..plan.actors).map(|id| Actor::new(id, &mut world)).collect();
    while let Some(event) = world.next_event(plan.fault_time) {
        step(&mut world, &mut actors, event);
    }
    check_recovery(&mut world, &mut actors);
    let checker = world.checker;
    let (grants, shared, fenced_off) = (checker.grants.len(), checker.shared_tokens, checker.refused_writes);
    let log = world.log.unwrap_or_default();
    Report { grants, shared, fenced_off, events: world.events, violations: checker.violations, log }
}

/// After the faults end, an actor acquires the lock soon, and no claim is left at the end.
fn check_recovery(world: &mut World, actors: &mut [Actor]) {
    world.log_line(|| "all faults are over".into());
    world.is_fault_free = true;
    let ttl = world.plan.ttl;
    // Late and stopped participants are back within two TTLs. A node that restarted at that time is
    // back after one more, and what late messages left there expires after another one. A clock
    // that jumped may keep such data for longer.
    let end = world.now + ttl * (6 + world.plan.jumps * 2);
    let before = world.checker.grants.len();
    while let Some(event) = world.next_event(end) {
        step(world, actors, event);
    }
    if world.checker.grants.len() == before {
        world.checker.report_stuck("no actor acquired the lock after the faults ended");
    }
    for actor in actors.iter_mut() {
        actor.retired = true;
    }
    let end = world.now + ttl * 6;
    while let Some(event) = world.next_event(end) {
        step(world, actors, event);
    }
    if actors.iter().any(Actor::holds) {
        world.checker.report_stuck("an actor still holds the lock");
    }
    for node in 0..world.plan.nodes {
        if world.plan.jumps == 0 && !world.would_grant(node, &actors[0]) {
            let event = format!("node {node}: {:?}", world.nodes[node].acceptor);
            world.checker.report_left_over(event);
        }
    }
}

/// The one run that is requested, if any.
fn requested_seed() -> Option<u64> {
    std::env::var("LEASEHOLD_SEED").ok().map(|seed| seed.parse().expect("LEASEHOLD_SEED is a number"))
}

/// The result of many runs.
struct RunSummary {
    total: Report,
    failed_seeds: BTreeMap<u64, Vec<(Violation, String)>>,
    /// Only one run was requested, and shown: its counts are not checked.
    is_single_run: bool,
}

/// Runs many seeds on two threads, or the requested one, and adds up the results.
fn run_many(test: &str, seeds: u64, adjust: fn(&mut Plan)) -> RunSummary {
    let (wanted, seeds) = (requested_seed(), seeds.div_ceil(ONE_IN));
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
    let mut many =
        RunSummary { total: Report::default(), failed_seeds: BTreeMap::new(), is_single_run: wanted.is_some() };
    let runs = reports.len();
    for (seed, report) in reports {
        many.total.grants += report.grants;
        many.total.shared += report.shared;
        many.total.fenced_off += report.fenced_off;
        many.total.events += report.events;
        if !report.violations.is_empty() {
            many.failed_seeds.insert(seed, report.violations);
        }
    }
    let Report { grants, shared, fenced_off, events, .. } = many.total;
    println!(
        "{test}: {runs} runs, {events} events, {grants} grants, {shared} of them shared, {fenced_off} late writes fenced off, \
         {} runs with a breach",
        many.failed_seeds.len()
    );
    many
}

/// No run may have a breach; and enough must have happened that a breach would show.
fn assert_all_hold(test: &str, seeds: u64, adjust: fn(&mut Plan), enough: fn(&Report) -> bool) {
    let RunSummary { total, failed_seeds: bad, is_single_run: one } = run_many(test, seeds, adjust);
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
fn assert_some_violation(test: &str, seeds: u64, adjust: fn(&mut Plan), breach: Violation) {
    let RunSummary { failed_seeds: bad, is_single_run: one, .. } = run_many(test, seeds, adjust);
    let broken = bad.values().flatten().filter(|(kind, _)| *kind == breach);
    match one {
        true => broken.for_each(|(kind, event)| println!("{kind:?}: {event}")),
        false => assert!(broken.count() > 0, "the simulation would not notice"),
    }
}

#[test]
fn one_seed_determines_one_run() {
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
fn every_guarantee_holds() {
    let enough = |total: &Report| {
        let one_in = ONE_IN as usize;
        total.grants > 10_000 / one_in && total.shared > 500 / one_in && total.fenced_off > 100 / one_in
    };
    assert_all_hold("every_guarantee_holds", 2500, |_| {}, enough);
}

#[test]
fn tokens_need_no_clock() {
    let jumps = |plan: &mut Plan| {
        plan.jumps = 4;
        plan.restart = Restart::Durable;
    };
    assert_all_hold("tokens_need_no_clock", 1500, jumps, |total| total.grants > 5_000 / ONE_IN as usize);
}

#[test]
fn nodes_that_lose_data_without_a_cool_down_admit_two_holders() {
    let forgetful = |plan: &mut Plan| {
        plan.restart = Restart::EmptyWithoutCoolDown;
        plan.restarts = 12;
    };
    assert_some_violation(
        "nodes_that_lose_data_without_a_cool_down_admit_two_holders",
        300,
        forgetful,
        Violation::TwoHolders,
    );
}

#[test]
fn the_drift_margin_is_necessary_and_sufficient() {
    const TEST: &str = "the_drift_margin_is_necessary_and_sufficient";
    assert_all_hold(TEST, 25, Plan::keep_only_clock_faults, |total| total.grants > 100 / ONE_IN as usize);
    let without = |plan: &mut Plan| {
        plan.keep_only_clock_faults();
        plan.drift = Drift { ppm: 0, fixed: Duration::ZERO };
    };
    assert_some_violation(TEST, 25, without, Violation::TwoHolders);
}
