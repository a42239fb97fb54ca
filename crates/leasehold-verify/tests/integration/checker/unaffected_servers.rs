//! Tests the checks that a fault of one server loses no locks on others, and causes no connection
//! storm.

use leasehold_verify::history::{Event, FaultKind, WorkerState, Workload};
use leasehold_verify::verdict::Guarantee::{Load, Loss};

use crate::checker::history_builder::{HistoryBuilder, exclusive_request, header};

/// A master hangs from 1 s to 3 s while `unaffected_locks` are on other masters. Worker 1 loses the
/// lock `a` at 2.5 s.
fn lost_during_hang(unaffected_locks: &[&str]) -> HistoryBuilder {
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    history.add_fault((1_000, 3_000), 1, FaultKind::Hang, &[]);
    for event in &mut history.events {
        if let Event::FaultBegin { spares, .. } = event {
            *spares = unaffected_locks.iter().map(|lock| (*lock).to_owned()).collect();
        }
    }
    let hold = history.add_grant((1_400, 1_500), 1, exclusive_request("a"), 1);
    history.add_held_check(1_600, hold);
    history.add_loss(2_500, hold, 2_600);
    history.add_last_line(9_000);
    history
}

#[test]
fn a_lock_on_a_healthy_server_is_not_lost() {
    let verdict = lost_during_hang(&["b", "a"]).assert_broken(Loss, 1);
    assert!(verdict.violations[0].title.contains("did not hit its server"), "{:?}", verdict.violations);
    assert!(verdict.violations[0].is_time_bound, "a busy machine may renew late");
    // No violation if the lock was on the hanging server.
    lost_during_hang(&["b"]).assert_kept(Loss);
}

#[test]
fn a_lock_on_a_healthy_server_may_be_lost_by_a_stopped_worker_or_another_fault() {
    let mut history = lost_during_hang(&["a"]);
    history.add_worker_state(1_700, 1, WorkerState::Stalled { from: 1_650 * 1_000_000 });
    history.assert_kept(Loss);
    let mut history = lost_during_hang(&["a"]);
    history.add_fault((500, 800), 2, FaultKind::Cut, &[]);
    history.assert_kept(Loss);
}

/// A fault of this kind lasts for two seconds, in which the servers accept this many connections of
/// four clients (`None`: not counted).
fn refused_writes(kind: FaultKind, connections: Option<u64>) -> HistoryBuilder {
    let mut history = HistoryBuilder::with_header(header(Workload::Mutex));
    history.add_fault((1_000, 3_000), 1, kind, &[]);
    for event in &mut history.events {
        if let Event::FaultEnd { connections: recorded, .. } = event {
            *recorded = connections;
        }
    }
    let hold = history.acquire((0, 10), 1, 1);
    history.release((20, 30), hold);
    history
}

#[test]
fn refused_clients_do_not_reconnect_in_a_tight_loop() {
    refused_writes(FaultKind::ReadOnly, Some(120)).assert_kept(Load);
    let verdict = refused_writes(FaultKind::ReadOnly, Some(1_092)).assert_broken(Load, 1);
    assert!(verdict.violations[0].title.contains("1,092 connections during fault 1"), "{:?}", verdict.violations);
    assert!(!verdict.violations[0].is_time_bound);
    // Untested if the connections were not counted, or the fault itself cuts connections.
    refused_writes(FaultKind::ReadOnly, None).assert_untested(Load);
    refused_writes(FaultKind::Cut, Some(1_092)).assert_untested(Load);
}
