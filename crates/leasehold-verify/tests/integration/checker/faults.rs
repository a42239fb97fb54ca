//! Tests the checks of order, loss, recovery, leaks and deadlines, which depend on faults and on
//! when workers ran.

use leasehold_verify::history::{Event, FaultKind, Outcome, WorkerId, WorkerState, Workload};
use leasehold_verify::verdict::Guarantee::{Deadlines, Leaks, Loss, Order, Recovery};

use crate::checker::history_builder::{
    HistoryBuilder, NANOS_PER_MS, TTL, exclusive_request, failed_outcome, header, shared_request, unknown_outcome,
};

/// Worker 1 is queued at 20, worker 2 requests at 30; if `overtakes`, worker 2 is granted first.
fn two_waiters(overtakes: bool, fencing: bool) -> HistoryBuilder {
    let mut head = header(Workload::Queue);
    head.fencing = fencing;
    let mut history = HistoryBuilder::with_header(head);
    let (first, second) = if overtakes { (200, 100) } else { (100, 200) };
    let one = history.begin(10, 1, exclusive_request("a"));
    history.events.push(Event::Queued { t: 20 * NANOS_PER_MS, op: one });
    let two = history.begin(30, 2, exclusive_request("a"));
    for (op, t) in [(one, first), (two, second)] {
        let token = if fencing { t } else { 5 };
        history.end(t, op, Outcome::Granted { token, deadline: (t + TTL) * NANOS_PER_MS });
        history.release((t + 10, t + 20), op);
    }
    history
}

#[test]
fn grants_in_queue_order_keep_the_order() {
    for fencing in [true, false] {
        assert_eq!(two_waiters(false, fencing).assert_kept(Order).figure, "0 overtaken of 1");
    }
}

#[test]
fn overtaking_a_waiter_breaks_the_order() {
    for fencing in [true, false] {
        two_waiters(true, fencing).assert_broken(Order, 1);
    }
}

#[test]
fn a_waiter_queued_after_the_other_request_cannot_be_overtaken() {
    let mut history = two_waiters(true, true);
    for event in &mut history.events {
        if let Event::Queued { t, .. } = event {
            *t = 30 * NANOS_PER_MS;
        }
    }
    history.assert_kept(Order);
}

#[test]
fn faults_and_stops_excuse_overtaking() {
    let mut history = two_waiters(true, true);
    history.add_fault((0, 1), 1, FaultKind::Cut, &[]);
    assert_eq!(history.assert_kept(Order).figure, "0 overtaken of 1; 1 during a fault");
    let mut history = two_waiters(true, true);
    history.add_worker_state(50, 1, WorkerState::Stopped);
    history.add_worker_state(60, 1, WorkerState::Resumed);
    history.assert_kept(Order);
    let mut history = two_waiters(true, true);
    history.add_worker_state(50, 1, WorkerState::Stalled { from: 40 * NANOS_PER_MS });
    history.assert_kept(Order);
}

/// Worker 1 is queued at 20 and times out at 500; worker 2 requests at 30 and is granted it at
/// `granted`.
fn overtaken_until_timeout(granted: u64) -> HistoryBuilder {
    let mut history = HistoryBuilder::for_workload(Workload::Queue);
    let one = history.begin_with_deadline(10, 1, Some(500), exclusive_request("a"));
    history.events.push(Event::Queued { t: 20 * NANOS_PER_MS, op: one });
    let two = history.acquire((30, granted), 2, 1);
    history.release((granted + 10, granted + 20), two);
    history.end(510, one, Outcome::TimedOut);
    history
}

#[test]
fn a_waiter_overtaken_until_its_timeout_is_found() {
    overtaken_until_timeout(499).assert_broken(Order, 1);
    // After its timeout, worker 1 has left the queue and cannot be overtaken.
    assert_eq!(overtaken_until_timeout(501).assert_kept(Order).figure, "0 overtaken of 1");
    let mut history = overtaken_until_timeout(499);
    history.add_fault((0, 1), 1, FaultKind::Cut, &[]);
    history.assert_kept(Order);
}

#[test]
fn order_is_guaranteed_only_by_fair_engines_and_for_queued_waiters() {
    let mut head = header(Workload::Queue);
    head.fair = false;
    let mut history = two_waiters(true, true);
    history.events[0] = Event::Run(Box::new(head));
    assert_eq!(history.assert_untested(Order).figure, "not guaranteed by this engine");
    history.events[0] = Event::Run(Box::new(header(Workload::Mutex)));
    history.assert_untested(Order);
}

/// Worker 1 loses its lock, whose deadline is at 1,010, and is notified of that at `notified`;
/// worker 2 is granted the lock at `granted`.
fn lost_and_granted(notified: u64, granted: u64) -> HistoryBuilder {
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    let first = history.acquire((0, 10), 1, 1);
    history.add_held_check(10, first);
    history.add_loss(notified, first, 1_010);
    let second = history.acquire((0, granted), 2, 2);
    history.add_held_check(granted + 1, second);
    history
}

#[test]
fn a_loss_notified_in_time_is_kept() {
    let finding = lost_and_granted(1_000, 1_020).assert_kept(Loss);
    assert_eq!(finding.checked, 3);
    assert_eq!(
        finding.figure,
        "2 checks, 1 loss: notified 10 ms before the deadline (median), 10 ms before the deadline (latest)"
    );
    // A notification up to 100 ms late is no violation: the worker had to wake up.
    lost_and_granted(1_110, 1_010).assert_kept(Loss);
}

#[test]
fn a_loss_notified_too_late_is_found() {
    let verdict = lost_and_granted(1_111, 1_010).assert_broken(Loss, 1);
    assert_eq!(verdict.violations[0].title, "the loss of \"a\" was notified 101 ms too late");
}

#[test]
fn a_stopped_worker_cannot_be_notified() {
    let mut history = lost_and_granted(3_000, 1_010);
    history.add_worker_state(500, 1, WorkerState::Stopped);
    history.add_worker_state(2_990, 1, WorkerState::Resumed);
    history.assert_kept(Loss);
    let mut history = lost_and_granted(3_000, 1_010);
    history.add_worker_state(2_000, 1, WorkerState::Stalled { from: 1_900 * NANOS_PER_MS });
    history.assert_kept(Loss);
    // A stop that ended before the deadline is no excuse.
    let mut history = lost_and_granted(3_000, 1_010);
    history.add_worker_state(500, 1, WorkerState::Stopped);
    history.add_worker_state(600, 1, WorkerState::Resumed);
    history.assert_broken(Loss, 1);
}

#[test]
fn a_lock_held_after_its_deadline_or_loss_is_found() {
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    let hold = history.acquire((0, 10), 1, 1);
    history.events.push(Event::Held { t: 50 * NANOS_PER_MS, op: hold, deadline: 50 * NANOS_PER_MS });
    history.assert_kept(Loss);
    history.events.push(Event::Held { t: 60 * NANOS_PER_MS, op: hold, deadline: 59 * NANOS_PER_MS });
    history.assert_broken(Loss, 1);
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    let hold = history.acquire((0, 10), 1, 1);
    history.add_held_check(60, hold);
    history.add_loss(60, hold, 1_060);
    history.assert_kept(Loss);
    history.add_held_check(61, hold);
    history.assert_broken(Loss, 1);
}

/// Worker 1 holds the lock when a fault begins at 100, which hits `workers` (empty: the server) and
/// ends at `to`. Worker 2 waits for the lock and is granted it at `granted`; `None`: never.
fn fault_then_grant(kind: FaultKind, to: u64, workers: &[WorkerId], granted: Option<u64>) -> HistoryBuilder {
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    let first = history.acquire((0, 10), 1, 1);
    history.add_held_check(90, first);
    history.add_fault((100, to), 1, kind, workers);
    let call = history.begin(50, 2, exclusive_request("a"));
    if let Some(t) = granted {
        history.end(t, call, Outcome::Granted { token: 2, deadline: (t + TTL) * NANOS_PER_MS });
    }
    history.add_worker_state(20_000, 2, WorkerState::Ended);
    history
}

#[test]
fn recovery_within_the_bound() {
    let mut history = fault_then_grant(FaultKind::Kill, 120, &[1], Some(1_140));
    history.add_worker_state(100, 1, WorkerState::Killed);
    assert_eq!(history.assert_kept(Recovery).figure, "after kill at most 1.04 TTL");
    let recovered = &history.check().recovered[0];
    assert!(recovered.was_requested);
    assert_eq!((recovered.counted_from, recovered.granted), (100 * NANOS_PER_MS, Some(1_140 * NANOS_PER_MS)));
    assert_eq!(recovered.bound, 2_200 * NANOS_PER_MS);
    // After a server fault, the bound counts from its end: two TTLs and three seconds.
    fault_then_grant(FaultKind::Crash, 3_000, &[], Some(8_000)).assert_kept(Recovery);
    fault_then_grant(FaultKind::Stop, 4_000, &[1], Some(2_300)).assert_kept(Recovery);
}

#[test]
fn recovery_too_late_or_never() {
    fault_then_grant(FaultKind::Kill, 120, &[1], Some(2_301)).assert_broken(Recovery, 1);
    fault_then_grant(FaultKind::Stop, 9_000, &[1], None).assert_broken(Recovery, 1);
    fault_then_grant(FaultKind::Crash, 3_000, &[], Some(8_001)).assert_broken(Recovery, 1);
    fault_then_grant(FaultKind::Crash, 3_000, &[], None).assert_broken(Recovery, 1);
}

/// On `file:` the kernel detects the end of a process, so that no waiter waits for the lease to
/// expire.
#[test]
fn a_lock_that_the_kernel_frees_must_be_granted_at_once() {
    let history_on = |engine: &str, process_ended, granted| {
        let mut history = fault_then_grant(FaultKind::Kill, process_ended, &[1], Some(granted));
        if let Some(Event::Run(header)) = history.events.first_mut() {
            header.engine = engine.to_owned();
            header.ttl = 3 * TTL * NANOS_PER_MS;
        }
        history
    };
    history_on("file", 120, 2_120).assert_kept(Recovery);
    history_on("file", 120, 2_121).assert_broken(Recovery, 1);
    history_on("redis", 120, 2_121).assert_kept(Recovery);
    // A process that dies slowly keeps its locks, at most until their leases expire.
    history_on("file", 2_000, 4_000).assert_kept(Recovery);
    history_on("file", 2_000, 4_001).assert_broken(Recovery, 1);
    history_on("file", 9_000, 4_700).assert_kept(Recovery);
    history_on("file", 9_000, 4_701).assert_broken(Recovery, 1);
}

/// Two readers hold the lock, one of them is killed, and a writer waits: the writer need not be
/// granted the lock until the other reader has released.
#[test]
fn a_lock_that_another_worker_still_holds_need_not_be_granted() {
    let granted = |t: u64| {
        let mut history = HistoryBuilder::for_workload(Workload::Rwlock);
        let hit = history.add_grant((0, 10), 1, shared_request("a"), 1);
        let stays = history.add_grant((0, 10), 3, shared_request("a"), 2);
        history.add_held_check(90, hit);
        let call = history.begin(50, 2, exclusive_request("a"));
        history.add_fault((100, 120), 1, FaultKind::Kill, &[1]);
        history.add_worker_state(100, 1, WorkerState::Killed);
        history.add_held_check(7_400, stays);
        history.release((7_490, 7_500), stays);
        history.end(t, call, Outcome::Granted { token: 3, deadline: (t + TTL) * NANOS_PER_MS });
        history.add_worker_state(20_000, 2, WorkerState::Ended);
        history
    };
    granted(7_600).assert_kept(Recovery);
    granted(8_600).assert_broken(Recovery, 1);
}

/// The server is down from 1 to 2 s. From 1.5 s on, worker 2 requests the lock again and again:
/// each request takes `duration` and ends with `outcome`, and a `pause` follows it.
fn failing_requests_after_crash(duration: u64, pause: u64, outcome: &Outcome) -> HistoryBuilder {
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    let first = history.acquire((0, 10), 1, 1);
    history.release((500, 510), first);
    history.add_fault((1_000, 2_000), 1, FaultKind::Crash, &[]);
    let mut t = 1_500;
    while t < 20_000 {
        let call = history.begin(t, 2, exclusive_request("a"));
        history.end(t + duration, call, outcome.clone());
        t += duration + pause;
    }
    history.add_last_line(21_000);
    history
}

#[test]
fn repeated_failing_requests_show_that_nothing_recovered() {
    failing_requests_after_crash(2_000, 20, &Outcome::TimedOut).assert_broken(Recovery, 1);
    failing_requests_after_crash(1, 100, &failed_outcome()).assert_broken(Recovery, 1);
    failing_requests_after_crash(50, 100, &unknown_outcome()).assert_broken(Recovery, 1);
    // With hardly any requests, the recovery is not tested.
    failing_requests_after_crash(1, 3_000, &failed_outcome()).assert_untested(Recovery);
}

#[test]
fn other_faults_extend_the_recovery_bound() {
    let mut history = fault_then_grant(FaultKind::Kill, 120, &[1], Some(6_000));
    history.add_fault((1_000, 2_000), 2, FaultKind::Crash, &[]);
    history.assert_kept(Recovery);
    let mut history = fault_then_grant(FaultKind::Kill, 120, &[1], Some(7_001));
    history.add_fault((1_000, 2_000), 2, FaultKind::Crash, &[]);
    history.assert_broken(Recovery, 2);
}

#[test]
fn recovery_is_only_checked_where_a_worker_waited() {
    // Untested: the worker that was hit held no lock.
    fault_then_grant(FaultKind::Kill, 120, &[3], Some(9_000)).assert_untested(Recovery);
    // Untested: the waiter was killed.
    let mut history = fault_then_grant(FaultKind::Kill, 120, &[1], None);
    history.add_worker_state(200, 2, WorkerState::Killed);
    history.assert_untested(Recovery);
    // Untested: the history ends before the bound is exceeded.
    let mut history = fault_then_grant(FaultKind::Kill, 120, &[1], None);
    history.events.pop();
    history.assert_untested(Recovery);
    // Untested: no worker requested the lock.
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    let first = history.acquire((0, 10), 1, 1);
    history.add_held_check(90, first);
    history.add_fault((100, 120), 1, FaultKind::Kill, &[1]);
    history.add_last_line(9_000);
    history.assert_untested(Recovery);
}

#[test]
fn a_stop_too_short_to_lose_the_lock_leaves_recovery_untested() {
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    let first = history.acquire((0, 10), 1, 1);
    history.add_fault((100, 300), 1, FaultKind::Stop, &[1]);
    history.add_held_check(400, first);
    history.begin(50, 2, exclusive_request("a"));
    history.add_worker_state(9_000, 2, WorkerState::Ended);
    history.assert_untested(Recovery);
}

#[test]
fn leftovers_are_leaks() {
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    history.assert_untested(Leaks);
    history.events.push(Event::Clean { t: NANOS_PER_MS, locks: 1_234 });
    assert_eq!(history.assert_kept(Leaks).figure, "1,234 locks inspected, 0 left");
    let what = "held by worker 3, token 17".to_owned();
    history.events.push(Event::Leftover { t: NANOS_PER_MS, lock: "a".to_owned(), what });
    history.assert_broken(Leaks, 1);
}

/// A call with a deadline at 100 that ends at `end`; `None`: never.
fn call_due_at_100(end: Option<u64>) -> HistoryBuilder {
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    let op = history.begin_with_deadline(0, 1, Some(100), exclusive_request("a"));
    if let Some(end) = end {
        history.end(end, op, Outcome::TimedOut);
    }
    history
}

#[test]
fn calls_that_end_in_time_are_kept() {
    assert_eq!(call_due_at_100(Some(90)).assert_kept(Deadlines).figure, "1 call, the latest 10 ms before its deadline");
    assert_eq!(
        call_due_at_100(Some(1_100)).assert_kept(Deadlines).figure,
        "1 call, the latest 1.000 s after its deadline"
    );
}

#[test]
fn calls_that_end_too_late_or_never_are_found() {
    call_due_at_100(Some(1_101)).assert_broken(Deadlines, 1);
    let mut hung = call_due_at_100(None);
    hung.add_last_line(200);
    hung.assert_broken(Deadlines, 1);
    let mut cut_short = call_due_at_100(None);
    cut_short.add_worker_state(1_101, 2, WorkerState::Ended);
    cut_short.assert_broken(Deadlines, 1);
    let mut cut_short = call_due_at_100(None);
    cut_short.add_worker_state(1_100, 2, WorkerState::Ended);
    cut_short.assert_untested(Deadlines);
}

#[test]
fn time_in_which_the_worker_did_not_run_is_added() {
    let mut history = call_due_at_100(Some(1_500));
    history.add_worker_state(50, 1, WorkerState::Stopped);
    history.add_worker_state(450, 1, WorkerState::Resumed);
    history.assert_kept(Deadlines);
    history.events.pop();
    history.add_worker_state(449, 1, WorkerState::Resumed);
    history.assert_broken(Deadlines, 1);
    let mut killed = call_due_at_100(None);
    killed.add_worker_state(50, 1, WorkerState::Killed);
    killed.add_last_line(9_000);
    assert!(killed.check().has_no_violations());
    let mut stopped = call_due_at_100(None);
    stopped.add_worker_state(50, 1, WorkerState::Stopped);
    stopped.add_last_line(9_000);
    assert!(stopped.check().has_no_violations());
}

/// The lock is granted at 10, a check at 500 shows that it is no longer held, and its release
/// begins at `released`. Returns the history and the call that acquired the lock.
fn unheld_then_released(released: u64) -> (HistoryBuilder, leasehold_verify::history::OpId) {
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    let hold = history.acquire((0, 10), 1, 1);
    history.add_held_check(400, hold);
    history.add_unheld_check(500, hold);
    history.release_with((released, released + 10), hold, Outcome::WasLost { reason: "expired".to_owned() });
    (history, hold)
}

#[test]
fn a_loss_that_is_never_notified_is_found_although_a_check_shows_it() {
    let verdict = unheld_then_released(1_000).0.assert_broken(Loss, 1);
    assert_eq!(verdict.violations[0].title, "the loss of \"a\" was never notified");
    // It was released before the notification was due; or the worker did not run.
    unheld_then_released(999).0.assert_kept(Loss);
    let (mut history, _) = unheld_then_released(1_500);
    history.add_worker_state(700, 1, WorkerState::Stalled { from: 550 });
    history.assert_kept(Loss);
}

#[test]
fn a_loss_that_is_notified_late_is_found_although_no_other_holder_was_granted() {
    let notified = |t: u64, deadline: u64| {
        let (mut history, hold) = unheld_then_released(1_500);
        history.add_loss(t, hold, deadline);
        history
    };
    notified(600, 1_400).assert_kept(Loss);
    let verdict = notified(601, 1_400).assert_broken(Loss, 1);
    assert_eq!(verdict.violations[0].title, "the loss of \"a\" was notified 101 ms late");
    // The time counts from the deadline if that is before the check.
    notified(550, 449).assert_broken(Loss, 1);
    notified(550, 450).assert_kept(Loss);
}

/// Worker 1 releases the lock at 30. Then worker 2 requests it from 5 to 15 s, and each request
/// ends with `outcome`.
fn never_granted_again(outcome: &Outcome) -> HistoryBuilder {
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    let first = history.acquire((10, 20), 1, 1);
    history.release((30, 40), first);
    for at in (5_000..15_000).step_by(500) {
        let request = history.begin(at, 2, exclusive_request("a"));
        history.end(at + 480, request, outcome.clone());
    }
    history.add_last_line(15_100);
    history
}

#[test]
fn a_free_lock_that_is_never_granted_is_found_without_any_fault() {
    never_granted_again(&Outcome::TimedOut).assert_broken(Recovery, 1);
    never_granted_again(&Outcome::Busy).assert_broken(Recovery, 1);
    // After an unknown outcome, worker 2 may have held it.
    assert!(never_granted_again(&unknown_outcome()).check().violations.is_empty());
    // No violation if worker 2 did not run for a while, or a fault was active.
    let mut history = never_granted_again(&Outcome::TimedOut);
    history.add_worker_state(9_500, 2, WorkerState::Stalled { from: 8_000 * NANOS_PER_MS });
    assert!(history.check().violations.is_empty());
    let mut history = never_granted_again(&Outcome::TimedOut);
    history.add_fault((6_000, 14_000), 1, FaultKind::Cut, &[]);
    assert!(history.check().violations.is_empty());
    // No violation if worker 1 holds the lock all the time.
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    let first = history.acquire((10, 20), 1, 1);
    for at in (500..15_000).step_by(500) {
        history.add_held_check(at, first);
        let request = history.begin(at, 2, exclusive_request("a"));
        history.end(at + 480, request, Outcome::TimedOut);
    }
    history.release((15_000, 15_010), first);
    history.add_last_line(15_100);
    assert!(history.check().violations.is_empty());
}

#[test]
fn another_fault_extends_the_bound_in_the_table() {
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    let first = history.acquire((10, 20), 1, 1);
    history.release((30, 40), first);
    history.add_fault((100, 200), 1, FaultKind::Crash, &[]);
    history.add_fault((3_000, 7_000), 2, FaultKind::Crash, &[]);
    let next = history.acquire((150, 9_000), 2, 2);
    history.release((9_010, 9_020), next);
    history.add_last_line(20_000);
    let verdict = history.check();
    assert_eq!(verdict.violations, Vec::new());
    let bounds: Vec<u64> = verdict.recovered.iter().map(|one| one.bound / NANOS_PER_MS).collect();
    assert_eq!(bounds, [7_000 + 2 * TTL + 3_000 - 200, 2 * TTL + 3_000]);
}
