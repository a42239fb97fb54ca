//! From the wish for a lock to a guard, or to a reason why not.

use leasehold::{Error, ErrorKind, Guard, Locks, Owner};
use rustix::process::Signal;

use super::plan::{How, Patience, Plan};
use super::report::Report;
use super::signals::Signals;
use super::waiting::Waiting;
use crate::exit::Failure;

/// How the wish ended.
pub(super) enum Acquired {
    Held(Guard),
    /// Somebody else has it.
    Conflict,
    /// A signal ended the waiting; we have left the queue.
    Interrupted(Signal),
}

/// Waits for the lock as long as the plan says, and shows on the terminal for whom.
pub(super) async fn acquire(
    locks: &Locks,
    plan: &Plan,
    owner: Option<&Owner>,
    signals: &mut Signals,
    report: &Report,
) -> Result<Acquired, Failure> {
    let started = locks.clock().now();
    let waiting = Waiting::new(&plan.name, report);
    let taken = tokio::select! {
        biased;
        taken = take(locks, plan, owner) => taken,
        // Dropping the request leaves the queue.
        signal = signals.next_end() => {
            waiting.clear();
            return Ok(Acquired::Interrupted(signal));
        }
        never = waiting.show(locks) => match never {},
    };
    let shown = waiting.clear();
    let waited = locks.clock().now().since(started);
    match taken {
        Ok(Some(guard)) => {
            report.acquired(&plan.name, guard.token(), waited);
            Ok(Acquired::Held(guard))
        }
        Ok(None) => {
            report.not_acquired(&plan.name, "somebody else holds it", waited);
            Ok(Acquired::Conflict)
        }
        Err(error) if error.kind() == ErrorKind::Timeout => {
            report.not_acquired(&plan.name, "not granted", waited);
            if shown && !report.is_talkative() {
                report.warning(&format!("{}: not granted in time", plan.name));
            }
            Ok(Acquired::Conflict)
        }
        Err(error) => Err(Failure { code: code(&error, plan), ..error.into() }),
    }
}

/// A lock that can never be granted beside what is there is a conflict, too.
fn code(error: &Error, plan: &Plan) -> u8 {
    if error.kind() == ErrorKind::Conflict { plan.conflict } else { Failure::code_of(error.kind()) }
}

/// The options that every primitive has, with the same names.
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

async fn take(locks: &Locks, plan: &Plan, owner: Option<&Owner>) -> Result<Option<Guard>, Error> {
    let at_once = plan.patience == Patience::None;
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
