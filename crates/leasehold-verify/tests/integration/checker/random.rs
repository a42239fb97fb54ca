//! Tests that random histories of a correct service have no violation, and that each has one after
//! a single change.

use std::collections::HashMap;

use leasehold_verify::checker::check;
use leasehold_verify::history::{Call, Event, Mode, OpId, Outcome, Workload};
use leasehold_verify::verdict::{FindingStatus, Guarantee, SecondOpinion};
use proptest::prelude::*;

use crate::checker::history_builder::{NANOS_PER_MS, finding, header};
use crate::checker::simulation::{SimulationPlan, simulate};

/// The history of a simulated correct service, with faults.
fn simulated_events(seed: u64, workload: Workload) -> Vec<Event> {
    simulate(header(workload), &SimulationPlan { seed, workers: 5, calls: 120, has_faults: true }).events
}

/// When each call began and ended (`u64::MAX`: it has no end).
fn call_spans(events: &[Event]) -> HashMap<OpId, (u64, u64)> {
    let mut spans = HashMap::new();
    for event in events {
        match event {
            Event::Begin { t, op, .. } => {
                spans.insert(*op, (*t, u64::MAX));
            }
            Event::End { t, op, .. } => {
                spans.entry(*op).and_modify(|span| span.1 = *t);
            }
            _ => {}
        }
    }
    spans
}

fn is_broken(events: &[Event], guarantee: Guarantee) -> bool {
    finding(&check(events), guarantee).state == FindingStatus::Broken
}

/// All grants: the index of the event, the times of the request and of the grant, and the call.
fn grants(events: &[Event]) -> Vec<(usize, u64, u64, OpId)> {
    let spans = call_spans(events);
    let grant = |(at, event): (usize, &Event)| match event {
        Event::End { t, op, outcome: Outcome::Granted { .. } } => Some((at, spans[op].0, *t, *op)),
        _ => None,
    };
    events.iter().enumerate().filter_map(grant).collect()
}

/// Sets the token of a grant; returns the old one. `None`: the event is no grant.
fn set_token(event: &mut Event, new: u64) -> Option<u64> {
    if let Event::End { outcome: Outcome::Granted { token, .. }, .. } = event {
        return Some(std::mem::replace(token, new));
    }
    None
}

/// Swaps the tokens of two grants, one of which was requested after the other. Returns `false` if
/// there are none.
fn swap_tokens(events: &mut [Event]) -> bool {
    let grants = grants(events);
    let pair = grants
        .iter()
        .find_map(|first| grants.iter().find(|second| second.1 > first.2).map(|second| (first.0, second.0)));
    let Some((first, second)) = pair else { return false };
    let token = set_token(&mut events[first], 0).expect("a grant");
    let other = set_token(&mut events[second], token).expect("a grant");
    set_token(&mut events[first], other);
    true
}

/// Moves a grant to the time of an earlier one whose holder still held the lock. Returns `false` if
/// there are none.
fn grant_earlier(events: &mut [Event]) -> bool {
    let grants = grants(events);
    let last_held = |op: OpId| {
        events
            .iter()
            .filter_map(
                |event| if let Event::Held { t, op: of, .. } = event { (*of == op).then_some(*t) } else { None },
            )
            .max()
    };
    let mut held = grants.iter().filter(|grant| last_held(grant.3).is_some_and(|t| t > grant.2));
    let (Some(first), Some(second)) = (held.next(), held.next()) else { return false };
    let (granted, moved) = (first.2, second.3);
    for event in events {
        match event {
            Event::Begin { t, op, .. } if *op == moved => *t = (*t).min(granted),
            Event::End { t, op, .. } if *op == moved => *t = granted,
            _ => {}
        }
    }
    true
}

/// Makes the second of two concurrent holds exclusive, or gives it all permits. Returns `false` if
/// there are none.
fn widen_mode(events: &mut [Event]) -> bool {
    let last_held = |of: OpId| {
        let held = events.iter().filter_map(|event| match event {
            Event::Held { t, op, .. } if *op == of => Some(*t),
            _ => None,
        });
        held.max()
    };
    let held: Vec<(u64, u64, OpId)> = grants(events)
        .into_iter()
        .filter_map(|(_, _, granted, op)| last_held(op).filter(|held| *held > granted).map(|held| (granted, held, op)))
        .collect();
    let pairs = held.iter().flat_map(|first| held.iter().map(move |second| (first, second)));
    let met = |(first, second): &(&(u64, u64, OpId), &(u64, u64, OpId))| first.0 < second.0 && second.0 < first.1;
    let mut second = pairs.filter(met).map(|(_, second)| second.2);
    let Some(second) = second.next() else { return false };
    for event in events {
        let Event::Begin { op, call: Call::Lock { mode, .. }, .. } = event else { continue };
        if *op == second {
            *mode = match *mode {
                Mode::Permits { limit, .. } => Mode::Permits { n: limit, limit },
                _ => Mode::Exclusive,
            };
        }
    }
    true
}

/// Turns a refused stale write into an accepted one. Returns `false` if there is none.
fn accept_stale(events: &mut [Event]) -> bool {
    let spans = call_spans(events);
    let mut calls: HashMap<OpId, (u64, bool)> = HashMap::new();
    for event in events.iter() {
        if let Event::Begin { op, call: Call::Write { token: Some(token), .. }, .. } = event {
            calls.insert(*op, (*token, true));
        } else if let Event::Begin { op, call: Call::Read { token: Some(token), .. }, .. } = event {
            calls.insert(*op, (*token, false));
        }
    }
    let mut accepted = Vec::new();
    for event in events.iter() {
        if let Event::End { t, op, outcome: Outcome::Accepted | Outcome::Value { .. } } = event {
            accepted.push((*t, calls[op].0));
        }
    }
    for event in events {
        let Event::End { op, outcome, .. } = event else { continue };
        let (Outcome::Refused { .. }, Some(&(token, true))) = (&*outcome, calls.get(op)) else { continue };
        if accepted.iter().any(|&(t, other)| t < spans[op].0 && other > token) {
            *outcome = Outcome::Accepted;
            return true;
        }
    }
    false
}

/// Changes the value of a read to one that was never written. Returns `false` if there is no read.
fn change_read(events: &mut [Event]) -> bool {
    let read = events.iter_mut().rev().find_map(|event| match event {
        Event::End { outcome: Outcome::Value { value }, .. } => Some(value),
        _ => None,
    });
    read.map(|value| *value = Some(999_999)).is_some()
}

/// Makes an increment write the same value as an earlier one. Returns `false` if there are not two.
fn repeat_increment(events: &mut [Event]) -> bool {
    let accepted: Vec<OpId> = events
        .iter()
        .filter_map(
            |event| if let Event::End { op, outcome: Outcome::Accepted, .. } = event { Some(*op) } else { None },
        )
        .collect();
    let [first, second, ..] = accepted[..] else { return false };
    let written = |events: &[Event], of| {
        events.iter().find_map(|event| match event {
            Event::Begin { op, call: Call::Write { value, .. }, .. } if *op == of => Some(*value),
            _ => None,
        })
    };
    let same = written(events, first).expect("a write");
    for event in events {
        if let Event::Begin { op, call: Call::Write { value, .. }, .. } = event
            && *op == second
        {
            *value = same;
        }
    }
    true
}

/// Changes a random history with `mutate`, after which this guarantee must be broken.
fn check_mutation(
    seed: u64,
    workload: Workload,
    guarantee: Guarantee,
    mutate: fn(&mut [Event]) -> bool,
) -> Result<(), TestCaseError> {
    let mut events = simulated_events(seed, workload);
    prop_assume!(mutate(&mut events));
    prop_assert!(is_broken(&events, guarantee), "{guarantee:?} is not broken");
    prop_assert!(check(&events).second_opinion != SecondOpinion::Differs);
    Ok(())
}

/// The seed gives a history in which a worker's read and write have the same time.
#[test]
fn a_correct_service_has_no_violation_where_calls_coincide() {
    assert_eq!(check(&simulated_events(13_815_036_892_180_609_344, Workload::Counter)).violations, []);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, max_global_rejects: 20_000, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn a_correct_service_has_no_violation(seed in any::<u64>(), which in 0..4_usize) {
        let workload = [Workload::Counter, Workload::Fenced, Workload::Rwlock, Workload::Semaphore][which];
        let verdict = check(&simulated_events(seed, workload));
        prop_assert_eq!(&verdict.violations, &Vec::new());
        prop_assert!(matches!(verdict.second_opinion, SecondOpinion::Agrees | SecondOpinion::None));
    }

    #[test]
    fn swapped_tokens_are_found(seed in any::<u64>()) {
        check_mutation(seed, Workload::Fenced, Guarantee::Tokens, swap_tokens)?;
    }

    #[test]
    fn a_grant_moved_earlier_is_found(seed in any::<u64>()) {
        check_mutation(seed, Workload::Fenced, Guarantee::Exclusion, grant_earlier)?;
    }

    #[test]
    fn an_exclusive_hold_beside_a_reader_is_found(seed in any::<u64>()) {
        check_mutation(seed, Workload::Rwlock, Guarantee::Exclusion, widen_mode)?;
    }

    #[test]
    fn more_permits_than_the_limit_are_found(seed in any::<u64>()) {
        check_mutation(seed, Workload::Semaphore, Guarantee::Permits, widen_mode)?;
    }

    #[test]
    fn an_accepted_stale_write_is_found(seed in any::<u64>()) {
        check_mutation(seed, Workload::Fenced, Guarantee::Fencing, accept_stale)?;
    }

    #[test]
    fn a_changed_read_is_found(seed in any::<u64>()) {
        check_mutation(seed, Workload::Fenced, Guarantee::Fencing, change_read)?;
    }

    #[test]
    fn a_repeated_increment_is_found(seed in any::<u64>()) {
        check_mutation(seed, Workload::Counter, Guarantee::Counter, repeat_increment)?;
    }
}

#[test]
fn the_random_histories_cover_every_outcome() {
    let mut all = [0_u64; 5];
    for seed in 0..50 {
        let verdict = check(&simulated_events(seed, Workload::Fenced));
        let counts = verdict.counts;
        for (sum, n) in all.iter_mut().zip([counts.grants, counts.losses, counts.refused, counts.unknown, counts.open])
        {
            *sum += n;
        }
        assert!(counts.lasted > NANOS_PER_MS);
    }
    assert!(all.iter().all(|&n| n > 10), "grants, losses, refused, unknown, open: {all:?}");
}
