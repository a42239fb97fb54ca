//! What a fault of one server must not cause: lost locks on others, and a storm of connections.

use leasehold_verify::history::{Event, FaultKind, State, Workload};
use leasehold_verify::verdict::Promise::{Load, Loss};

use crate::check::build::{History, alone, header};

/// A master hangs from 1 s to 3 s, and these locks are on others; worker 1 loses "a" at 2.5 s.
fn hung(spares: &[&str]) -> History {
    let mut history = History::of(Workload::Mutex);
    history.fault((1_000, 3_000), 1, FaultKind::Hang, &[]);
    for event in &mut history.events {
        if let Event::FaultBegin { spares: it, .. } = event {
            *it = spares.iter().map(|lock| (*lock).to_owned()).collect();
        }
    }
    let hold = history.lock((1_400, 1_500), 1, alone("a"), 1);
    history.held(1_600, hold);
    history.lost(2_500, hold, 2_600);
    history.done(9_000);
    history
}

#[test]
fn a_lock_on_a_healthy_server_is_not_lost() {
    let verdict = hung(&["b", "a"]).breaks(Loss, 1);
    assert!(verdict.violations[0].title.contains("did not hit its server"), "{:?}", verdict.violations);
    assert!(verdict.violations[0].about_time, "a machine that is busy renews late");
    // It was on the hanging server.
    hung(&["b"]).keeps(Loss);
}

#[test]
fn but_by_a_worker_that_did_not_run_or_by_another_fault() {
    let mut history = hung(&["a"]);
    history.worker(1_700, 1, State::Stalled { from: 1_650 * 1_000_000 });
    history.keeps(Loss);
    let mut history = hung(&["a"]);
    history.fault((500, 800), 2, FaultKind::Cut, &[]);
    history.keeps(Loss);
}

/// A server refuses writes for two seconds, and accepts this many connections of four clients in
/// that time.
fn refused(kind: FaultKind, connections: Option<u64>) -> History {
    let mut history = History::with(header(Workload::Mutex));
    history.fault((1_000, 3_000), 1, kind, &[]);
    for event in &mut history.events {
        if let Event::FaultEnd { connections: it, .. } = event {
            *it = connections;
        }
    }
    let hold = history.take((0, 10), 1, 1);
    history.release((20, 30), hold);
    history
}

#[test]
fn clients_that_are_refused_do_not_connect_again_and_again() {
    refused(FaultKind::ReadOnly, Some(120)).keeps(Load);
    let verdict = refused(FaultKind::ReadOnly, Some(1_092)).breaks(Load, 1);
    assert!(verdict.violations[0].title.contains("1,092 connections during fault 1"), "{:?}", verdict.violations);
    assert!(!verdict.violations[0].about_time);
    // The connections were not counted; or the test cuts connections itself.
    refused(FaultKind::ReadOnly, None).leaves(Load);
    refused(FaultKind::Cut, Some(1_092)).leaves(Load);
}
