//! Shutdown: releases all locks of this run, with a time limit.

use std::time::Duration;

use leasehold::engine::Expiry;
use leasehold::{Guard, Locks, ReleaseOutcome};

use super::RunContext;
use super::report::Report;
use super::signals::Signals;

/// How long to wait for the engine's confirmation of a release.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// Releases the lock, within a time limit. `None` if the engine did not confirm it in time, or a
/// signal ended the wait.
pub(super) async fn release(run: &RunContext<'_>, guard: Guard, signals: &mut Signals) -> Option<ReleaseOutcome> {
    let bound = run.locks.clock().now().saturating_add(RELEASE_TIMEOUT);
    let released = tokio::select! {
        released = guard.release() => released,
        _ = signals.next_end_signal() => return None,
        () = run.locks.clock().sleep_until(bound) => {
            let (name, engine) = (&run.plan.name, run.locks.url());
            run.report.warn(&format!("the release of lock {name} on {engine} was not confirmed; it expires at its TTL"));
            return None;
        }
    };
    match released {
        Ok(outcome) => {
            run.report.report_released(&run.plan.name, &run.locks.url(), outcome);
            Some(outcome)
        }
        Err(error) => {
            run.report.warn(&format!("{error}; the lock expires at its TTL"));
            None
        }
    }
}

/// Closes the engine, which releases what is left, such as a queue position. Waits only briefly
/// where the kernel does that for an ended process; a signal to end also stops the wait.
pub(super) async fn close(locks: Locks, signals: &mut Signals, report: &Report) {
    let by_kernel = locks.capabilities().expiry == Expiry::LeaseOrProcessDeath;
    let timeout = if by_kernel { Duration::from_millis(250) } else { RELEASE_TIMEOUT };
    tokio::select! {
        biased;
        closed = locks.close() => {
            if let Err(error) = closed {
                report.warn(&error.to_string());
            }
        }
        _ = signals.next_end_signal() => {}
        () = tokio::time::sleep(timeout) => {}
    }
}
