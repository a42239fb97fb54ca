//! Tests that violations of what is not guaranteed are only counted, and that exceeded time bounds
//! are violations or only reported.

use leasehold_verify::checker::{CheckOptions, TimeBounds, check, check_with};
use leasehold_verify::history::{Call, FaultKind, Outcome, Workload};
use leasehold_verify::verdict::FindingStatus;
use leasehold_verify::verdict::Guarantee::{Deadlines, Exclusion, Ticks};

use crate::checker::history_builder::{HistoryBuilder, NANOS_PER_MS, exclusive_request, finding, header};

/// An empty history of a Redis engine at this URL, whose run has faults of this kind.
fn redis_history(url: &str, workload: Workload, fault: FaultKind) -> HistoryBuilder {
    let mut head = header(workload);
    (head.engine, head.url, head.faults) = ("redis".to_owned(), url.to_owned(), vec![fault]);
    HistoryBuilder::with_header(head)
}

/// A tick ran before and again after the server lost its data. `once`: the job starts each tick at
/// most once.
fn tick_run_twice(url: &str, fault: FaultKind, once: bool) -> HistoryBuilder {
    let mut history = redis_history(url, Workload::Ticks, fault);
    history.add_fault((1_000, 2_000), 1, fault, &[]);
    for (worker, begin, attempt) in [(1, 100, 1), (2, 3_000, if once { 1 } else { 2 })] {
        let call = Call::Tick { job: "j".to_owned(), tick: 60, attempt, token: begin, once };
        let op = history.begin(begin, worker, call);
        history.end(begin + 10, op, Outcome::Done);
    }
    history
}

#[test]
fn ticks_that_run_twice_fail_with_strict_and_are_only_counted_without() {
    for fault in [FaultKind::Failover, FaultKind::Wipe] {
        let finding = tick_run_twice("redis://a", fault, true).assert_not_guaranteed(Ticks);
        assert!(finding.broken == 1 && finding.figure.starts_with("not guaranteed"), "{finding:?}");
        let verdict = tick_run_twice("redis://a?strict=6000ms", fault, true).assert_broken(Ticks, 1);
        assert!(verdict.violations[0].title.contains("began again, although it is at-most-once"), "{verdict:?}");
    }
    tick_run_twice("redis://a?replicas=1", FaultKind::Failover, true).assert_broken(Ticks, 1);
    tick_run_twice("redis://a?replicas=1", FaultKind::Wipe, true).assert_not_guaranteed(Ticks);
    tick_run_twice("redis://a", FaultKind::Cut, true).assert_broken(Ticks, 1);
}

#[test]
fn a_job_with_retries_may_run_again_after_the_server_lost_data() {
    let history = tick_run_twice("redis://a?strict=6000ms", FaultKind::Failover, false);
    // The fault began within a TTL after the first run was done, so the engine may not have
    // recorded that.
    history.assert_kept(Ticks);
}

#[test]
fn two_holders_are_only_counted_where_a_server_may_lose_data_without_strict() {
    let two = |url: &str| {
        let mut history = redis_history(url, Workload::Mutex, FaultKind::Wipe);
        for worker in [1, 2] {
            let hold = history.acquire((0, 10), worker, u64::from(worker));
            history.add_held_check(50, hold);
        }
        history
    };
    two("redis://a").assert_not_guaranteed(Exclusion);
    two("redis://a?strict=1s").assert_broken(Exclusion, 1);
}

#[test]
fn time_bounds_fail_or_are_reported_and_a_hanging_call_always_fails() {
    let mut late = HistoryBuilder::for_workload(Workload::Mutex);
    let op = late.begin_with_deadline(0, 1, Some(100), exclusive_request("a"));
    late.end(5_000, op, Outcome::Granted { token: 1, deadline: 6_000 * NANOS_PER_MS });
    late.add_last_line(6_000);
    let strict = check(&late.events);
    assert!(!strict.has_no_violations() && strict.late.is_empty());
    let lenient = check_with(&late.events, CheckOptions { time_bounds: TimeBounds::Report });
    assert!(lenient.has_no_violations() && lenient.late.len() == 1, "{lenient:?}");
    let deadlines = finding(&lenient, Deadlines);
    assert_eq!((deadlines.state, deadlines.broken), (FindingStatus::Kept, 0));
    assert!(deadlines.figure.ends_with("; 1 over a time bound, only reported"), "{deadlines:?}");
    let mut hung = HistoryBuilder::for_workload(Workload::Mutex);
    hung.begin_with_deadline(0, 1, Some(100), exclusive_request("a"));
    hung.add_last_line(6_000);
    assert!(!check_with(&hung.events, CheckOptions { time_bounds: TimeBounds::Report }).has_no_violations());
}
