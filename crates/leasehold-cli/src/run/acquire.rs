//! Acquires the lock, or finds out why it cannot be acquired.

use leasehold::{Error, ErrorKind, Guard, Locks, Owner};
use rustix::process::Signal;

use super::held::Ancestors;
use super::plan::{How, Patience, Plan};
use super::reentry;
use super::refusal::Refusal;
use super::report::Report;
use super::signals::Signals;
use super::waiting::Waiting;
use crate::exit::Failure;

/// The result of an attempt.
pub(super) enum Acquired {
    /// The lock is held. The owner may re-enter it.
    Held(Guard, Option<Owner>),
    /// Another holder has the lock.
    Conflict,
    /// A signal ended the wait; we have left the queue.
    Interrupted(Signal),
}

/// Waits for the lock as long as the plan allows, and shows the wait on the terminal.
pub(super) async fn acquire(
    locks: &Locks,
    plan: &Plan,
    around: &Ancestors,
    signals: &mut Signals,
    report: &Report,
) -> Result<Acquired, Failure> {
    let started = locks.clock().now();
    let waiting = Waiting::new(&plan.name, report);
    let taken = tokio::select! {
        biased;
        taken = enter_or_take(locks, plan, around) => taken,
        // Dropping the request leaves the queue.
        signal = signals.next_end() => {
            waiting.clear();
            return Ok(Acquired::Interrupted(signal));
        }
        failure = reentry::waits_for_itself(locks, plan, around) => {
            waiting.clear();
            return Err(failure);
        }
        never = reentry::may_wait_for_itself(locks, plan, around, report) => match never {},
        never = waiting.show(locks) => match never {},
    };
    waiting.clear();
    let waited = locks.clock().now().since(started);
    match taken {
        Ok(Some((guard, owner))) => {
            report.acquired(&plan.name, &locks.url(), guard.token(), waited);
            Ok(Acquired::Held(guard, owner))
        }
        Ok(None) => {
            report.not_acquired(&Refusal::find(locks, plan, None).await);
            Ok(Acquired::Conflict)
        }
        Err(error) if error.kind() == ErrorKind::Timeout => {
            report.not_acquired(&Refusal::find(locks, plan, Some(waited)).await);
            Ok(Acquired::Conflict)
        }
        Err(error) => Err(Failure { code: code(&error, plan), ..error.into() }),
    }
}

/// A request that can never be granted beside the existing lock is a conflict, too.
fn code(error: &Error, plan: &Plan) -> u8 {
    if error.kind() == ErrorKind::Conflict { plan.conflict } else { Failure::code_of(error.kind()) }
}

/// Applies the options that all primitives share.
macro_rules! with_options {
    ($lock:expr, $plan:expr, $owner:expr) => {{
        let mut lock = $lock.ttl($plan.ttl).describe(&$plan.describe);
        if let Some(most) = $plan.max_hold {
            lock = lock.max_hold(most);
        }
        if let Some(owner) = $owner {
            lock = lock.owner(owner);
        }
        if let Patience::For(wait) = $plan.patience {
            lock = lock.wait(wait);
        }
        lock
    }};
}

/// Re-enters a hold of an enclosing run, or claims the lock as a fresh owner.
async fn enter_or_take(
    locks: &Locks,
    plan: &Plan,
    around: &Ancestors,
) -> Result<Option<(Guard, Option<Owner>)>, Error> {
    if let Some((guard, owner)) = reentry::enter(locks, plan, around).await? {
        return Ok(Some((guard, Some(owner))));
    }
    let owner = locks.capabilities().reentry.then(|| around.chosen_owner().unwrap_or_else(Owner::new));
    let guard = take(locks, plan, owner.as_ref(), plan.patience == Patience::None).await?;
    Ok(guard.map(|guard| (guard, owner)))
}

/// Claims the lock without waiting.
pub(super) async fn try_take(locks: &Locks, plan: &Plan, owner: Option<&Owner>) -> Result<Option<Guard>, Error> {
    take(locks, plan, owner, true).await
}

async fn take(locks: &Locks, plan: &Plan, owner: Option<&Owner>, at_once: bool) -> Result<Option<Guard>, Error> {
    match plan.how {
        How::Exclusive => {
            let lock = with_options!(locks.mutex(&plan.name), plan, owner);
            if at_once { lock.try_lock().await } else { lock.lock().await.map(Some) }
        }
        How::Shared => {
            let lock = with_options!(locks.rwlock(&plan.name), plan, owner);
            if at_once { lock.try_read().await } else { lock.read().await.map(Some) }
        }
        How::Slots(slots) => {
            let lock = with_options!(locks.semaphore(&plan.name, slots), plan, owner);
            if at_once { lock.try_acquire(1).await } else { lock.acquire(1).await.map(Some) }
        }
    }
}
