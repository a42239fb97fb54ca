//! Tests the check of a scheduled job's ticks.

use leasehold_verify::history::{Call, FaultKind, OpId, Outcome, WorkerState, Workload};
use leasehold_verify::verdict::Guarantee::Ticks;

use crate::checker::history_builder::{HistoryBuilder, NANOS_PER_MS, failed_outcome};

/// Adds a run of a tick with this attempt number over this span; `None`: the run has no end. Its
/// token is the time of its beginning.
fn tick_run(
    history: &mut HistoryBuilder,
    span: (u64, u64),
    worker: u32,
    (tick, attempt): (i64, u32),
    outcome: Option<Outcome>,
) -> OpId {
    let token = span.0;
    let op = history.begin(span.0, worker, Call::Tick { job: "j".to_owned(), tick, attempt, token, once: false });
    if let Some(outcome) = outcome {
        history.end(span.1, op, outcome);
    }
    op
}

#[test]
fn each_tick_runs_once() {
    let mut history = HistoryBuilder::for_workload(Workload::Ticks);
    tick_run(&mut history, (10, 20), 1, (60, 1), Some(Outcome::Done));
    tick_run(&mut history, (20, 30), 2, (120, 1), Some(Outcome::Done));
    assert_eq!(history.assert_kept(Ticks).figure, "2 ticks, 2 runs, 0 of them repeated");
}

#[test]
fn a_lost_run_is_run_again() {
    for outcome in [None, Some(failed_outcome())] {
        let mut history = HistoryBuilder::for_workload(Workload::Ticks);
        tick_run(&mut history, (10, 20), 1, (60, 1), outcome);
        history.add_worker_state(21, 1, WorkerState::Killed);
        tick_run(&mut history, (1_020, 1_030), 2, (60, 2), Some(Outcome::Done));
        assert_eq!(history.assert_kept(Ticks).figure, "1 tick, 2 runs, 1 of them repeated");
    }
}

#[test]
fn a_tick_done_twice_is_found() {
    let mut history = HistoryBuilder::for_workload(Workload::Ticks);
    tick_run(&mut history, (10, 20), 1, (60, 1), Some(Outcome::Done));
    tick_run(&mut history, (1_020, 1_030), 2, (60, 2), Some(Outcome::Done));
    history.assert_broken(Ticks, 1);
}

#[test]
fn a_failing_run_after_a_completed_one_is_found() {
    let mut history = HistoryBuilder::for_workload(Workload::Ticks);
    tick_run(&mut history, (10, 20), 1, (60, 1), Some(Outcome::Done));
    tick_run(&mut history, (30, 40), 2, (60, 2), Some(failed_outcome()));
    history.assert_broken(Ticks, 1);
}

#[test]
fn a_worker_killed_right_after_a_run_may_not_have_recorded_it() {
    let mut history = HistoryBuilder::for_workload(Workload::Ticks);
    tick_run(&mut history, (10, 20), 1, (60, 1), Some(Outcome::Done));
    history.add_worker_state(25, 1, WorkerState::Killed);
    tick_run(&mut history, (1_020, 1_030), 2, (60, 2), Some(Outcome::Done));
    history.assert_kept(Ticks);
}

#[test]
fn a_repeated_attempt_number_is_found() {
    let mut history = HistoryBuilder::for_workload(Workload::Ticks);
    tick_run(&mut history, (10, 20), 1, (60, 1), Some(failed_outcome()));
    tick_run(&mut history, (30, 40), 2, (60, 1), Some(failed_outcome()));
    history.assert_broken(Ticks, 1);
}

#[test]
fn two_concurrent_runs_are_found() {
    let mut history = HistoryBuilder::for_workload(Workload::Ticks);
    tick_run(&mut history, (10, 50), 1, (60, 1), Some(Outcome::Done));
    tick_run(&mut history, (49, 70), 2, (120, 1), Some(Outcome::Done));
    history.assert_broken(Ticks, 1);
}

#[test]
fn a_run_counts_until_its_worker_was_stopped() {
    let mut history = HistoryBuilder::for_workload(Workload::Ticks);
    tick_run(&mut history, (10, 3_000), 1, (60, 1), Some(Outcome::Done));
    history.add_worker_state(20, 1, WorkerState::Stopped);
    history.add_worker_state(2_900, 1, WorkerState::Resumed);
    tick_run(&mut history, (1_100, 1_200), 2, (60, 2), Some(Outcome::Done));
    history.assert_kept(Ticks);
}

#[test]
fn without_runs_ticks_are_untested() {
    HistoryBuilder::for_workload(Workload::Ticks).assert_untested(Ticks);
}

#[test]
fn a_worker_whose_connection_was_disturbed_may_not_have_recorded_its_run() {
    let history = |kind: FaultKind, span: (u64, u64)| {
        let mut history = HistoryBuilder::for_workload(Workload::Ticks);
        tick_run(&mut history, (5_000, 5_010), 1, (59, 1), Some(Outcome::Done));
        tick_run(&mut history, (10_010, 10_020), 1, (60, 1), Some(Outcome::Done));
        history.add_fault(span, 1, kind, &[]);
        tick_run(&mut history, (13_020, 13_030), 2, (60, 2), Some(Outcome::Done));
        history
    };
    history(FaultKind::Partition, (10_000, 12_000)).assert_kept(Ticks);
    history(FaultKind::Crash, (10_900, 12_000)).assert_kept(Ticks);
    // Violations: the fault ended more than a TTL before the run, began more than a TTL after it,
    // or stopped another worker.
    history(FaultKind::Partition, (8_000, 9_000)).assert_broken(Ticks, 1);
    history(FaultKind::Partition, (11_100, 12_000)).assert_broken(Ticks, 1);
    history(FaultKind::Stop, (10_000, 12_000)).assert_broken(Ticks, 1);
}

/// Three runs, one per second, with these ticks and tokens.
fn three_runs(runs: [(i64, u64); 3]) -> HistoryBuilder {
    let mut history = HistoryBuilder::for_workload(Workload::Ticks);
    for (at, (tick, token)) in (0..).zip(runs) {
        let call = Call::Tick { job: "j".to_owned(), tick, attempt: 1, token, once: false };
        let op = history.begin(at * 1_000, 1 + at as u32 % 2, call);
        history.end(at * 1_000 + 10, op, Outcome::Done);
    }
    history
}

#[test]
fn tokens_and_ticks_of_successive_runs_rise() {
    three_runs([(1, 5), (2, 6), (3, 9)]).assert_kept(Ticks);
    three_runs([(1, 5), (2, 5), (3, 9)]).assert_broken(Ticks, 1);
    three_runs([(1, 5), (2, 9), (3, 6)]).assert_broken(Ticks, 1);
    three_runs([(1, 5), (3, 6), (2, 9)]).assert_broken(Ticks, 1);
    // No violation if the worker of the late run did not run for a while.
    for runs in [[(1, 5), (2, 9), (3, 6)], [(1, 5), (3, 6), (2, 9)]] {
        let mut history = three_runs(runs);
        history.add_worker_state(1_990, 1, WorkerState::Stalled { from: 500 * NANOS_PER_MS });
        history.assert_kept(Ticks);
    }
    // The same token twice is a violation even if the worker did not run for a while.
    let mut history = three_runs([(1, 5), (2, 9), (3, 9)]);
    history.add_worker_state(1_990, 1, WorkerState::Stalled { from: 500 * NANOS_PER_MS });
    history.assert_broken(Ticks, 1);
}

/// A tick runs at 1,000, the next one at `next`, and the workers end at `end`.
fn runs_with_gap(next: u64, end: u64) -> HistoryBuilder {
    let mut history = HistoryBuilder::for_workload(Workload::Ticks);
    tick_run(&mut history, (1_000, 1_010), 1, (60, 1), Some(Outcome::Done));
    tick_run(&mut history, (next, next + 10), 2, (61, 1), Some(Outcome::Done));
    history.add_worker_state(end, 1, WorkerState::Ended);
    history.add_worker_state(end, 2, WorkerState::Ended);
    history.add_last_line(end + 20_000);
    history
}

#[test]
fn a_gap_between_runs_above_the_bound_is_found() {
    // Two TTLs, three seconds, and the second until the next tick is due.
    runs_with_gap(7_000, 13_000).assert_kept(Ticks);
    runs_with_gap(7_001, 8_000).assert_broken(Ticks, 1);
    runs_with_gap(2_000, 8_001).assert_broken(Ticks, 1);
    // With a fault, the bound counts from the fault's end.
    for (next, kept) in [(13_500, true), (13_501, false)] {
        let mut history = runs_with_gap(next, 14_000);
        history.add_fault((6_500, 7_500), 1, FaultKind::Crash, &[]);
        if kept {
            history.assert_kept(Ticks);
        } else {
            history.assert_broken(Ticks, 1);
        }
    }
    // The very first tick may come two TTLs and two seconds later than other ticks.
    let first = |at: u64| {
        let mut history = HistoryBuilder::for_workload(Workload::Ticks);
        tick_run(&mut history, (at, at + 10), 1, (60, 1), Some(Outcome::Done));
        history.add_worker_state(at + 20, 1, WorkerState::Ended);
        history
    };
    first(10_000).assert_kept(Ticks);
    first(10_001).assert_broken(Ticks, 1);
    // No violation if all workers had ended.
    let mut history = runs_with_gap(20_000, 21_000);
    history.add_worker_state(5_000, 1, WorkerState::Ended);
    history.add_worker_state(5_000, 2, WorkerState::Ended);
    history.assert_kept(Ticks);
    // No violation if no worker ran all the time, or a clock that was set back has to catch up.
    let mut history = runs_with_gap(20_000, 21_000);
    for worker in [1, 2] {
        history.add_worker_state(6_000, worker, WorkerState::Stalled { from: 5_000 * NANOS_PER_MS });
    }
    history.assert_kept(Ticks);
    let mut history = runs_with_gap(20_000, 21_000);
    history.add_fault((1_500, 1_600), 1, FaultKind::Clock, &[]);
    history.assert_kept(Ticks);
}
