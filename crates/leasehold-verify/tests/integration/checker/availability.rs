//! Tests the check that other servers grant locks while one is hit, and that every worker is
//! granted a lock again.

use leasehold_verify::checker::check;
use leasehold_verify::history::{Event, FaultKind, Outcome, WorkerId, Workload};
use leasehold_verify::verdict::Guarantee::Recovery;

use crate::checker::history_builder::{HistoryBuilder, NANOS_PER_MS, TTL, exclusive_request};

/// How long after others can serve they must grant a lock, in milliseconds: two TTLs and three
/// seconds.
const SERVING_BOUND: u64 = 2 * TTL + 3_000;

/// A fault begins at 1 s and lasts for `fault_duration`. Other servers can serve
/// `others_serve_after` its beginning (`None`: there are no others). Worker 1 requests the lock all
/// the time, and is granted it again from `granted_after` its beginning on.
fn served_during_fault(others_serve_after: Option<u64>, fault_duration: u64, granted_after: u64) -> HistoryBuilder {
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    history.add_fault((1_000, 1_000 + fault_duration), 1, FaultKind::Leader, &[]);
    for event in &mut history.events {
        if let Event::FaultBegin { served, .. } = event {
            *served = others_serve_after.map(|after| (1_000 + after) * NANOS_PER_MS);
        }
    }
    let mut token = 0;
    for begin in (100..1_000 + fault_duration + 500).step_by(200) {
        if begin < 1_000 || begin >= 1_000 + granted_after {
            token += 1;
            let op = history.acquire((begin, begin + 50), 1, token);
            history.release((begin + 60, begin + 70), op);
        } else {
            let op = history.begin(begin, 1, exclusive_request("a"));
            history.end(begin + 190, op, Outcome::TimedOut);
        }
    }
    history
}

#[test]
fn others_serve_while_a_server_is_down() {
    let history = served_during_fault(Some(500), SERVING_BOUND + 2_000, 1_200);
    history.assert_kept(Recovery);
    let verdict = check(&history.events);
    assert_eq!(
        verdict.recovered[0].time_to_grant_elsewhere(),
        Some(1_350 * NANOS_PER_MS),
        "requested at 2.3 s, granted at 2.35 s"
    );
}

#[test]
fn no_grants_until_the_server_is_back_are_found() {
    served_during_fault(Some(500), SERVING_BOUND + 2_000, SERVING_BOUND + 2_000).assert_broken(Recovery, 1);
    // No violation if the fault ended before the other servers had to grant a lock.
    served_during_fault(Some(500), SERVING_BOUND, SERVING_BOUND).assert_kept(Recovery);
    // No violation if the other servers could serve only from 3 s after the fault's beginning on.
    served_during_fault(Some(3_000), SERVING_BOUND + 2_000, SERVING_BOUND + 2_000).assert_kept(Recovery);
    // No violation if there are no other servers.
    served_during_fault(None, SERVING_BOUND + 2_000, SERVING_BOUND + 2_000).assert_kept(Recovery);
}

/// After a fault worker 1 acquires and releases the lock `a` all the time, and worker 2 waits in
/// the queue of the lock `b`. It is granted `b` at `granted`; `None`: never.
fn waiter_beside_busy_worker(fair: bool, granted: Option<u64>) -> HistoryBuilder {
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    for event in &mut history.events {
        if let Event::Run(header) = event {
            header.fair = fair;
        }
    }
    history.add_fault((500, 1_000), 1, FaultKind::Cut, &[]);
    let (mut token, mut waiting) = (0, history.begin(600, 2, exclusive_request("b")));
    for begin in (1_000..16_000_u64).step_by(100) {
        token += 1;
        let op = history.acquire((begin, begin + 10), 1, token);
        history.release((begin + 20, begin + 30), op);
        if granted == Some(begin) {
            history.end(begin + 40, waiting, Outcome::Granted { token, deadline: (begin + TTL) * NANOS_PER_MS });
            history.release((begin + 50, begin + 60), waiting);
            waiting = history.begin(begin + 70, 2, exclusive_request("b"));
        } else if begin % 2_000 == 0 {
            history.end(begin + 40, waiting, Outcome::TimedOut);
            waiting = history.begin(begin + 50, 2, exclusive_request("b"));
        }
    }
    history.end(16_000, waiting, Outcome::TimedOut);
    history
}

/// The workers that are reported as starved. Other violations, such as that no worker at all was
/// granted `b`, are ignored.
fn starved_workers(history: &HistoryBuilder) -> Vec<WorkerId> {
    let verdict = check(&history.events);
    let of = verdict.violations.iter().filter(|one| one.title.contains("after fault 1"));
    of.flat_map(|one| one.workers.clone()).collect()
}

#[test]
fn a_waiter_that_is_never_served_while_others_are_is_found() {
    assert_eq!(starved_workers(&waiter_beside_busy_worker(true, None)), [2]);
    assert_eq!(starved_workers(&waiter_beside_busy_worker(true, Some(5_000))), Vec::<WorkerId>::new());
    // No violation on an engine that does not serve waiters in the order of a queue.
    assert_eq!(starved_workers(&waiter_beside_busy_worker(false, None)), Vec::<WorkerId>::new());
}

#[test]
fn the_time_until_every_worker_was_served_is_reported() {
    let verdict = check(&waiter_beside_busy_worker(true, Some(5_000)).events);
    assert_eq!(verdict.recovered[0].recovery_time(), Some(10 * NANOS_PER_MS));
    assert_eq!(verdict.recovered[0].recovery_time_of_all_workers(), Some(4_040 * NANOS_PER_MS));
    assert_eq!(check(&waiter_beside_busy_worker(true, None).events).recovered[0].recovery_time_of_all_workers(), None);
}
