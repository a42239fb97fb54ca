//! Tests the verdict as a whole: inconsistent events, counts, many violations, long histories.

use leasehold_verify::checker::check;
use leasehold_verify::history::{Call, Event, FaultKind, Outcome, WorkerState, Workload, load, parse, to_json_line};
use leasehold_verify::verdict::{Guarantee, SecondOpinion};
use proptest::prelude::*;

use crate::checker::history_builder::{
    HistoryBuilder, NANOS_PER_MS, exclusive_request, failed_outcome, header, unknown_outcome,
};
use crate::checker::simulation::{SimulationPlan, simulate};

#[test]
fn an_empty_history_gets_a_verdict() {
    let verdict = check(&[]);
    assert!(verdict.has_no_violations() && !verdict.complete);
    assert_eq!(verdict.findings.len(), Guarantee::ALL.len());
}

#[test]
fn inconsistent_lines_are_ignored() {
    let mut history = HistoryBuilder::for_workload(Workload::Fenced);
    history.end(5, 99, Outcome::Released);
    history.add_held_check(5, 99);
    history.add_loss(6, 99, 7);
    history.release_with((5, 6), 98, Outcome::Released);
    history.add_worker_state(7, 5, WorkerState::Resumed);
    history.events.push(Event::FaultEnd { t: 8 * NANOS_PER_MS, fault: 9, note: String::new(), connections: None });
    history.events.push(Event::Queued { t: 8 * NANOS_PER_MS, op: 97 });
    // A call that ends before it begins, a second end, and an outcome of a register for a lock.
    let lock = history.begin(50, 1, exclusive_request("a"));
    history.end(40, lock, Outcome::Accepted);
    history.end(60, lock, Outcome::Granted { token: 1, deadline: 0 });
    history.write((70, 80), lock, Some(1), 5, Outcome::Busy);
    let verdict = history.check();
    assert!(verdict.has_no_violations(), "{verdict:#?}");
    assert_eq!((verdict.counts.grants, verdict.counts.calls), (0, 3));
}

#[test]
fn everything_is_counted() {
    let mut history = HistoryBuilder::for_workload(Workload::Fenced);
    let hold = history.acquire((0, 10), 1, 1);
    history.add_loss(20, hold, 15);
    history.write((30, 40), hold, Some(1), 5, unknown_outcome());
    history.write((50, 60), hold, Some(1), 6, failed_outcome());
    history.write((70, 80), hold, Some(1), 7, Outcome::Refused { seen: 2 });
    history.begin(90, 2, exclusive_request("a"));
    history.add_fault((95, 96), 1, FaultKind::Cut, &[]);
    history.add_last_line(100);
    let verdict = history.check();
    let counts = verdict.counts;
    assert_eq!((counts.calls, counts.ok, counts.failed, counts.unknown, counts.open), (5, 2, 1, 1, 1));
    assert_eq!((counts.grants, counts.losses, counts.refused, counts.faults, counts.workers), (1, 1, 1, 1, 2));
    assert_eq!(counts.lasted, 100 * NANOS_PER_MS);
    assert!(verdict.complete);
}

#[test]
fn the_first_hundred_violations_are_kept_and_all_are_counted() {
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    for worker in (0..151_u32).rev() {
        let hold = history.acquire((0, 10 + u64::from(worker)), worker, 1 + u64::from(worker));
        history.add_held_check(5_000, hold);
    }
    let verdict = history.check();
    assert_eq!((verdict.violations.len(), verdict.violations_in_all), (100, 150));
    assert!(verdict.violations.is_sorted_by_key(|one| one.from));
    assert_eq!(verdict.violations[0].from, 11 * NANOS_PER_MS);
}

#[test]
fn the_description_names_the_nearest_fault() {
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    history.add_worker_state(0, 1, WorkerState::Started { lane: 4, pid: 77 });
    history.add_fault((5, 7), 3, FaultKind::Failover, &[]);
    for worker in [1, 2] {
        let hold = history.acquire((0, 10), worker, u64::from(worker));
        history.add_held_check(50, hold);
    }
    let details = &history.check().violations[0].details;
    assert!(details.contains("Worker 1 on lane 4 was granted"), "{details}");
    assert!(details.ends_with("Fault 3 (failover of the server) had ended 3 ms before."), "{details}");
}

#[test]
fn two_thousand_operations_by_fifty_workers() {
    let history =
        simulate(header(Workload::Fenced), &SimulationPlan { seed: 7, workers: 50, calls: 2_000, has_faults: true });
    let verdict = history.check();
    assert_eq!(verdict.violations, Vec::new());
    assert!(verdict.counts.calls >= 2_000 && verdict.counts.workers >= 50);
    assert_eq!(verdict.second_opinion, SecondOpinion::Agrees);
}

#[test]
fn a_history_too_long_for_porcupine_is_still_checked() {
    let history =
        simulate(header(Workload::Fenced), &SimulationPlan { seed: 8, workers: 50, calls: 25_000, has_faults: true });
    let verdict = history.check();
    assert_eq!(verdict.violations, Vec::new());
    assert_eq!(verdict.second_opinion, SecondOpinion::None);
}

/// A random event, which need not fit any other event.
fn any_event() -> impl Strategy<Value = Event> {
    let small = 0..6_u64;
    let outcome = (0..9_u8, 0..4_u64).prop_map(|(kind, n)| match kind {
        0 => Outcome::Granted { token: n, deadline: n },
        1 => Outcome::Released,
        2 => Outcome::Accepted,
        3 => Outcome::Refused { seen: n },
        4 => Outcome::Value { value: Some(n) },
        5 => Outcome::Value { value: None },
        6 => Outcome::Done,
        7 => failed_outcome(),
        _ => unknown_outcome(),
    });
    let call = (0..6_u8, 0..6_u64, 0..4_u64).prop_map(|(kind, hold, n)| match kind {
        0 => exclusive_request("a"),
        1 => crate::checker::history_builder::exclusive_request_of("a", "x"),
        2 => Call::Release { hold },
        3 => Call::Write { hold, register: "r".to_owned(), token: n.checked_sub(1), value: n },
        4 => Call::Read { hold, register: "r".to_owned(), token: n.checked_sub(1) },
        _ => Call::Tick { job: "j".to_owned(), tick: 1, attempt: 1, token: n, once: n % 2 == 0 },
    });
    let big = prop_oneof![0..10_u64, Just(u64::MAX), Just(u64::MAX - 1)];
    (0..10_u8, big, small, outcome, call).prop_map(|(kind, t, op, outcome, call)| match kind {
        0..3 => Event::Begin { t, worker: 1, op, due: Some(t), call },
        3..5 => Event::End { t, op, outcome },
        5 => Event::Held { t, op, deadline: t / 2 },
        6 => Event::Lost { t, op, deadline: t, reason: String::new() },
        7 => Event::Worker {
            t,
            worker: 1,
            state: if op > 3 { WorkerState::Stopped } else { WorkerState::Stalled { from: t / 2 } },
        },
        8 => Event::FaultBegin {
            t,
            fault: 1,
            kind: FaultKind::Stop,
            target: String::new(),
            workers: vec![1],
            served: None,
            spares: Vec::new(),
        },
        _ => Event::Queued { t, op },
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    /// Every history gets a verdict, and on registers the two checkers agree.
    #[test]
    fn every_history_gets_a_verdict(events in proptest::collection::vec(any_event(), 0..30), workload in 0..10_usize) {
        let workload = leasehold_verify::history::Workload::ALL[workload];
        let mut all = vec![Event::Run(Box::new(header(workload)))];
        all.extend(events);
        let verdict = check(&all);
        prop_assert!(verdict.second_opinion != SecondOpinion::Differs);
    }
}

#[test]
fn a_truncated_line_of_a_killed_worker_is_skipped() {
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    let hold = history.acquire((0, 10), 1, 1);
    history.release((20, 30), hold);
    history.add_last_line(40);
    let lines: Vec<String> = history.events.iter().map(to_json_line).collect();
    let whole: String = lines.concat();
    assert_eq!(parse(&whole).as_deref(), Ok(&history.events[..]));
    // A truncated line, followed by another one: only the truncated part is lost.
    let half = &lines[1][..lines[1].len() / 2];
    let mixed: String = [&lines[0], half, &lines[1..].concat()].concat();
    assert_eq!(parse(&mixed).as_deref(), Ok(&history.events[..]));
    // A whole line without its newline, and a truncated UTF-8 sequence.
    let glued: String = [&lines[0], lines[1].trim_end(), &lines[2..].concat()].concat();
    assert_eq!(parse(&glued).as_deref(), Ok(&history.events[..]));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("history.jsonl");
    std::fs::write(&file, [whole.as_bytes(), half.as_bytes(), &"é".as_bytes()[..1]].concat()).expect("written");
    assert_eq!(parse(&load(&file).expect("it is there")).as_deref(), Ok(&history.events[..]));
    // A truncated line at the very end.
    assert_eq!(parse(&format!("{whole}{half}")).as_deref(), Ok(&history.events[..]));
    // Anything other than a truncated line is an error with its line number.
    assert_eq!(parse(&format!("{}nonsense\n", lines[0])).expect_err("no event").line, 2);
    assert_eq!(parse(&format!("{}{half}\n", lines[0])).expect_err("half an event").line, 2);
}
