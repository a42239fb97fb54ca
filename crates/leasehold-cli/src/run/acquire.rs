//! Acquires the lock, or finds out why it cannot be acquired.

use leasehold::{Error, ErrorKind, Guard, Locks, Owner};
use rustix::process::Signal;

use super::ancestors::Ancestors;
use super::plan::{Plan, RunMode, WaitLimit};
use super::reentry;
use super::refusal::Refusal;
use super::report::Report;
use super::signals::Signals;
use super::wait_display::WaitDisplay;
use crate::exit::Failure;

/// How the wait for the lock ended.
pub(super) enum AcquireResult {
    /// This run holds the lock. A nested run re-enters it with the owner; `None` if the engine has
    /// no re-entry.
    Held(Guard, Option<Owner>),
    /// Another holder kept the lock for as long as this run was to wait.
    Conflict,
    /// A signal ended the wait; this run has left the queue.
    Interrupted(Signal),
}

/// Waits for the lock as long as the plan allows, shows the wait on the terminal, and reports the
/// result.
pub(super) async fn acquire(
    locks: &Locks,
    plan: &Plan,
    ancestors: &Ancestors,
    signals: &mut Signals,
    report: &Report,
) -> Result<AcquireResult, Failure> {
    let started = locks.clock().now();
    let waiting = WaitDisplay::new(&plan.name, report);
    let result = tokio::select! {
        biased;
        result = reenter_or_acquire(locks, plan, ancestors) => result,
        // Dropping the request leaves the queue.
        signal = signals.next_end_signal() => {
            waiting.clear();
            return Ok(AcquireResult::Interrupted(signal));
        }
        failure = reentry::detect_deadlock(locks, plan, ancestors, report) => {
            waiting.clear();
            return Err(failure);
        }
        never = reentry::warn_of_possible_deadlock(locks, plan, ancestors, report) => match never {},
        never = waiting.show(locks) => match never {},
    };
    waiting.clear();
    let waited = locks.clock().now().duration_since(started);
    match result {
        Ok(Some((guard, owner))) => {
            report.report_acquired(&plan.name, &locks.url(), guard.token(), waited);
            Ok(AcquireResult::Held(guard, owner))
        }
        Ok(None) => {
            report.report_not_acquired(&Refusal::inspect(locks, plan, None).await);
            Ok(AcquireResult::Conflict)
        }
        Err(error) if error.kind() == ErrorKind::Timeout => {
            report.report_not_acquired(&Refusal::inspect(locks, plan, Some(waited)).await);
            Ok(AcquireResult::Conflict)
        }
        Err(error) => Err(Failure { code: exit_code(&error, plan), ..error.into() }),
    }
}

/// The exit code for an error of the wait. A request that can never be granted beside the existing
/// holders is a conflict, like a lock that is held.
fn exit_code(error: &Error, plan: &Plan) -> u8 {
    if error.kind() == ErrorKind::Conflict { plan.conflict_exit_code } else { Failure::exit_code(error.kind()) }
}

/// Applies the options of the plan that all kinds of locks have; with `owner`, the claim can be
/// re-entered.
macro_rules! with_options {
    ($lock:expr, $plan:expr, $owner:expr) => {{
        let mut lock = $lock.ttl($plan.ttl).describe(&$plan.description);
        if let Some(max_hold) = $plan.max_hold {
            lock = lock.max_hold(max_hold);
        }
        if let Some(owner) = $owner {
            lock = lock.owner(owner);
        }
        if let WaitLimit::AtMost(timeout) = $plan.wait_limit {
            lock = lock.timeout(timeout);
        }
        lock
    }};
}

/// Re-enters a hold of an enclosing run, or claims the lock with a new owner. Returns the hold and
/// its owner; `None` if the lock is not free and the plan does not wait.
async fn reenter_or_acquire(
    locks: &Locks,
    plan: &Plan,
    ancestors: &Ancestors,
) -> Result<Option<(Guard, Option<Owner>)>, Error> {
    if let Some((guard, owner)) = reentry::reenter(locks, plan, ancestors).await? {
        return Ok(Some((guard, Some(owner))));
    }
    let owner = locks.capabilities().reentrancy.then(|| ancestors.user_set_owner().unwrap_or_else(Owner::new));
    let guard = acquire_in_mode(locks, plan, owner.as_ref(), plan.wait_limit == WaitLimit::NoWait).await?;
    Ok(guard.map(|guard| (guard, owner)))
}

/// Claims the lock without waiting; `None` if it is not free.
pub(super) async fn try_acquire(locks: &Locks, plan: &Plan, owner: Option<&Owner>) -> Result<Option<Guard>, Error> {
    acquire_in_mode(locks, plan, owner, true).await
}

/// Claims the lock in the plan's mode; `None` only with `no_wait`, if it is not free.
async fn acquire_in_mode(
    locks: &Locks,
    plan: &Plan,
    owner: Option<&Owner>,
    no_wait: bool,
) -> Result<Option<Guard>, Error> {
    match plan.mode {
        RunMode::Exclusive => {
            let lock = with_options!(locks.mutex(&plan.name), plan, owner);
            if no_wait { lock.try_lock().await } else { lock.lock().await.map(Some) }
        }
        RunMode::Shared => {
            let lock = with_options!(locks.rwlock(&plan.name), plan, owner);
            if no_wait { lock.try_read().await } else { lock.read().await.map(Some) }
        }
        RunMode::Slots(slots) => {
            let lock = with_options!(locks.semaphore(&plan.name, slots), plan, owner);
            if no_wait { lock.try_acquire(1).await } else { lock.acquire(1).await.map(Some) }
        }
    }
}
