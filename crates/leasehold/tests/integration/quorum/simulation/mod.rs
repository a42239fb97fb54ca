//! Long random runs of clients and nodes with faults, each determined by its seed.
//! `LEASEHOLD_SEED=7 cargo test -p leasehold --test integration
//! quorum::simulation::every_guarantee_holds -- --nocapture` does only the run with seed 7, and
//! prints it event by event.

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

/// The ordinary tests do the number of runs divided by this; `--features nightly` does all.
const RUN_DIVISOR: u64 = if cfg!(feature = "nightly") { 1 } else { 25 };

/// The result of a run.
#[derive(Debug, Default)]
struct Report {
    /// How often an actor was granted the lock.
    grants: usize,
    /// How many grants had the token of another live grant of the same owner.
    shared_tokens: usize,
    /// How many writes the resource refused.
    refused_writes: usize,
    /// How many events happened.
    events: u64,
    violations: Vec<(Violation, String)>,
    /// The events, one per line; empty unless a log was requested.
    log: Vec<String>,
}

/// Handles one event.
fn step(world: &mut World, actors: &mut [Actor], event: SimulatedEvent) {
    let event_actor = match event {
        SimulatedEvent::Answers { actor, .. }
        | SimulatedEvent::GivesUp { actor, .. }
        | SimulatedEvent::Acts { actor, .. } => Some(actor),
        _ => None,
    };
    // A paused actor receives everything that arrived during the pause when it resumes.
    if let Some(until) = event_actor.map(|actor| actors[actor].paused_until).filter(|until| *until > world.now) {
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
            world.log_line(|| format!("{actor} pauses for {lasts} µs"));
            actors[actor].paused_until = world.now + lasts;
        }
        other => world.node_step(other),
    }
}

/// Does the run with this seed, whose random plan is changed by `adjust`. `logs`: whether to keep a
/// log.
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
    let (grants, shared_tokens, refused_writes) = (checker.grants.len(), checker.shared_tokens, checker.refused_writes);
    let log = world.log.unwrap_or_default();
    Report { grants, shared_tokens, refused_writes, events: world.events, violations: checker.violations, log }
}

/// Continues a run without faults. Reports a violation unless an actor acquires the lock soon; and,
/// once the actors stop requesting it, if a node still has a claim at the end.
fn check_recovery(world: &mut World, actors: &mut [Actor]) {
    world.log_line(|| "all faults are over".into());
    world.is_fault_free = true;
    let ttl = world.plan.ttl;
    // Late messages arrive, and stopped nodes and paused actors continue, within two TTLs. A node
    // that restarts then cools down for another TTL, and claims that late messages stored expire
    // after one more. A clock that jumped may keep such claims for longer.
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
            let description = format!("node {node}: {:?}", world.nodes[node].acceptor);
            world.checker.report_left_over(description);
        }
    }
}

/// The seed of the only run to do, from `LEASEHOLD_SEED`; `None`: do all runs.
fn requested_seed() -> Option<u64> {
    std::env::var("LEASEHOLD_SEED").ok().map(|seed| seed.parse().expect("LEASEHOLD_SEED is a number"))
}

/// The result of many runs.
struct RunSummary {
    /// The sums of all runs' counts.
    total: Report,
    /// The seeds of the runs with violations.
    failed_seeds: BTreeMap<u64, Vec<(Violation, String)>>,
    /// Whether only one run was requested and printed; its counts are not checked.
    is_single_run: bool,
}

/// Does the runs with the seeds 0 to `seeds` on two threads, or only the requested one, and adds up
/// the results.
fn run_many(test: &str, seeds: u64, adjust: fn(&mut Plan)) -> RunSummary {
    let (requested_seed, seeds) = (requested_seed(), seeds.div_ceil(RUN_DIVISOR));
    let reports: Vec<(u64, Report)> = match requested_seed {
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
    let mut summary =
        RunSummary { total: Report::default(), failed_seeds: BTreeMap::new(), is_single_run: requested_seed.is_some() };
    let runs = reports.len();
    for (seed, report) in reports {
        summary.total.grants += report.grants;
        summary.total.shared_tokens += report.shared_tokens;
        summary.total.refused_writes += report.refused_writes;
        summary.total.events += report.events;
        if !report.violations.is_empty() {
            summary.failed_seeds.insert(seed, report.violations);
        }
    }
    let Report { grants, shared_tokens, refused_writes, events, .. } = summary.total;
    println!(
        "{test}: {runs} runs, {events} events, {grants} grants, {shared_tokens} of them with a shared token, \
         {refused_writes} writes refused, {} runs with a violation",
        summary.failed_seeds.len()
    );
    summary
}

/// Requires that no run violates a guarantee, and that `is_enough` accepts the sums of all counts:
/// with too few events a violation might not show.
fn assert_all_hold(test: &str, seeds: u64, adjust: fn(&mut Plan), is_enough: fn(&Report) -> bool) {
    let RunSummary { total, failed_seeds, is_single_run } = run_many(test, seeds, adjust);
    let counts =
        failed_seeds.values().flatten().fold(BTreeMap::<String, usize>::new(), |mut counts, (violation, _)| {
            *counts.entry(format!("{violation:?}")).or_default() += 1;
            counts
        });
    if let Some((seed, violations)) = failed_seeds.first_key_value() {
        panic!(
            "{} runs violated a guarantee: {counts:?}\nshow the first of them with\n\
             LEASEHOLD_SEED={seed} cargo test -p leasehold --test integration quorum::simulation::{test} -- --nocapture\n{:#?}",
            failed_seeds.len(),
            &violations[..violations.len().min(3)]
        );
    }
    assert!(is_single_run || is_enough(&total), "too few events to show a violation: {total:?}");
}

/// Requires that some run has this violation: the simulation can detect it.
fn assert_some_violation(test: &str, seeds: u64, adjust: fn(&mut Plan), expected: Violation) {
    let RunSummary { failed_seeds, is_single_run, .. } = run_many(test, seeds, adjust);
    let found = failed_seeds.values().flatten().filter(|(violation, _)| *violation == expected);
    match is_single_run {
        true => found.for_each(|(violation, description)| println!("{violation:?}: {description}")),
        false => assert!(found.count() > 0, "no run shows {expected:?}"),
    }
}

#[test]
fn one_seed_determines_one_run() {
    for seed in 0..20_u64.div_ceil(RUN_DIVISOR) {
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
    let is_enough = |total: &Report| {
        let divisor = RUN_DIVISOR as usize;
        total.grants > 10_000 / divisor && total.shared_tokens > 500 / divisor && total.refused_writes > 100 / divisor
    };
    assert_all_hold("every_guarantee_holds", 2500, |_| {}, is_enough);
}

#[test]
fn tokens_rise_although_clocks_jump() {
    let jumps = |plan: &mut Plan| {
        plan.jumps = 4;
        plan.restart = Restart::Durable;
    };
    assert_all_hold("tokens_rise_although_clocks_jump", 1500, jumps, |total| {
        total.grants > 5_000 / RUN_DIVISOR as usize
    });
}

#[test]
fn nodes_that_lose_data_without_a_cool_down_admit_two_holders() {
    let loses_data = |plan: &mut Plan| {
        plan.restart = Restart::EmptyWithoutCoolDown;
        plan.restarts = 12;
    };
    assert_some_violation(
        "nodes_that_lose_data_without_a_cool_down_admit_two_holders",
        300,
        loses_data,
        Violation::TwoHolders,
    );
}

#[test]
fn the_drift_margin_is_necessary_and_sufficient() {
    const TEST: &str = "the_drift_margin_is_necessary_and_sufficient";
    assert_all_hold(TEST, 25, Plan::keep_only_clock_faults, |total| total.grants > 100 / RUN_DIVISOR as usize);
    let without_margin = |plan: &mut Plan| {
        plan.keep_only_clock_faults();
        plan.drift = Drift { ppm: 0, fixed: Duration::ZERO };
    };
    assert_some_violation(TEST, 25, without_margin, Violation::TwoHolders);
}
