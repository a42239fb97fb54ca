//! Re-entry into a hold of an enclosing run. It depends on that hold itself, never on the
//! environment alone.
//!
//! ```text
//! does the engine list an enclosing run as a holder?
//!     no  -> claim with a fresh owner, and wait in the queue
//!     yes -> claim with that run's owner; then list the holders again while holding that claim
//! ```
//! The second listing makes this atomic, because the new claim keeps the hold from ending. If the
//! engine *then* lists the enclosing hold, it was held when this run entered, and this run is
//! inside it. If not, this run releases the claim before any command starts. Processes that a
//! command leaves behind (a daemon) therefore exclude each other. Two runs that the daemon starts
//! may both enter for a moment, but neither stays.

use std::time::Duration;

use leasehold::engine::ContenderView;
use leasehold::{Error, ErrorKind, Guard, Locks, Mode, Owner};

use super::acquire::try_acquire;
use super::ancestors::Ancestors;
use super::plan::{Plan, RunMode, WaitLimit};
use super::report::Report;
use crate::exit::Failure;
use crate::view;

/// How often to try to re-enter an enclosing hold: on a quorum engine an attempt may fail by
/// chance.
const MAX_ATTEMPTS: usize = 20;
/// How long to wait between two attempts to re-enter an enclosing hold.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// How long a wait lasts before the engine is asked whether an enclosing run holds the lock.
const INSPECT_INTERVAL: Duration = Duration::from_millis(100);

/// Re-enters the hold of an enclosing run; returns the hold and its owner. `None` if no enclosing
/// run holds the lock now, or it could not be re-entered.
pub(super) async fn reenter(
    locks: &Locks,
    plan: &Plan,
    ancestors: &Ancestors,
) -> Result<Option<(Guard, Owner)>, Error> {
    if !locks.capabilities().reentrancy || !ancestors.can_be_reentered() {
        return Ok(None);
    }
    for _ in 0..MAX_ATTEMPTS {
        let view = locks.inspect(&plan.name).await?;
        let Some((hold, owner)) = ancestors.find_live_hold(&view).and_then(|(hold, _)| Some((hold, hold.owner?)))
        else {
            return Ok(None);
        };
        match try_acquire(locks, plan, Some(&owner)).await {
            Ok(Some(guard)) if guard.token().0 == hold.token && is_held_by_ancestor(locks, plan, ancestors).await? => {
                return Ok(Some((guard, owner)));
            }
            Ok(Some(guard)) => {
                let _ = guard.release().await?;
                return Ok(None);
            }
            Ok(None) if plan.wait_limit == WaitLimit::NoWait => return Ok(None),
            Ok(None) => tokio::time::sleep(RETRY_PAUSE).await,
            // A conflict: the enclosing hold is weaker than the request, unless it has ended
            // meanwhile.
            Err(error)
                if error.kind() != ErrorKind::Conflict || is_held_by_ancestor(locks, plan, ancestors).await? =>
            {
                return Err(error);
            }
            Err(_) => return Ok(None),
        }
    }
    Ok(None)
}

/// Whether the engine lists an enclosing run as a holder of the lock now.
async fn is_held_by_ancestor(locks: &Locks, plan: &Plan, ancestors: &Ancestors) -> Result<bool, Error> {
    Ok(ancestors.find_live_hold(&locks.inspect(&plan.name).await?).is_some())
}

/// Refuses, on an engine that cannot list holders, to wait for a lock that an enclosing run holds.
pub(super) fn refuse_possible_deadlock(locks: &Locks, plan: &Plan, ancestors: &Ancestors) -> Result<(), Failure> {
    let waits = plan.wait_limit == WaitLimit::Unlimited && !locks.capabilities().inspection;
    if waits && ancestors.may_hold(&locks.url(), plan.name.as_str()) {
        return Err(deadlock_error(locks, plan, "an enclosing run holds it", "this engine has no re-entry"));
    }
    Ok(())
}

/// Returns the error when an enclosing run holds the lock that this run waits for: each would wait
/// for the other. Only warns if the wait is bounded. Otherwise never returns.
pub(super) async fn detect_deadlock(locks: &Locks, plan: &Plan, ancestors: &Ancestors, report: &Report) -> Failure {
    let waits = plan.wait_limit != WaitLimit::NoWait;
    if !waits || !locks.capabilities().inspection || ancestors.is_empty() {
        return std::future::pending().await;
    }
    loop {
        tokio::time::sleep(INSPECT_INTERVAL).await;
        let Ok(view) = locks.inspect(&plan.name).await else { continue };
        let Some((hold, contender)) =
            ancestors.find_live_hold(&view).filter(|(_, contender)| is_blocking(contender, plan.mode))
        else {
            return std::future::pending().await;
        };
        let holds = format!("the enclosing run {} holds it with token {}", view::format_process(contender), hold.token);
        let why = if hold.owner.is_none() { "a job's lock has no re-entry" } else { "LEASEHOLD_OWNER is not set" };
        if plan.wait_limit == WaitLimit::Unlimited {
            return deadlock_error(locks, plan, &holds, why);
        }
        report.warn(&self_wait_message(locks, plan, &holds, why));
        return std::future::pending().await;
    }
}

/// Warns once, on an engine that cannot list holders, if the wait may be for an enclosing run that
/// names the engine by another URL. It may also be another server's lock, so the wait continues.
/// Never returns.
pub(super) async fn warn_of_possible_deadlock(
    locks: &Locks,
    plan: &Plan,
    ancestors: &Ancestors,
    report: &Report,
) -> std::convert::Infallible {
    if plan.wait_limit != WaitLimit::NoWait && !locks.capabilities().inspection {
        let (name, url) = (&plan.name, locks.url());
        if ancestors.may_hold(&url, name.as_str()) {
            report.warn(&self_wait_message(locks, plan, "an enclosing run holds it", "this engine has no re-entry"));
        } else if let Some(other) = ancestors.may_hold_elsewhere(&url, name.as_str()) {
            // A lock that is free needs no warning.
            tokio::time::sleep(INSPECT_INTERVAL).await;
            report.warn(&format!(
                "lock {name} on {url}: this run may wait for its own ancestor: an enclosing run holds {name} on {other}; if both are one \
                 server, bound the wait with -w, run it outside, or give both the same URL, which is refused at once"
            ));
        }
    }
    std::future::pending().await
}

/// Whether this holder alone keeps a request in this mode from being granted.
fn is_blocking(contender: &ContenderView, mode: RunMode) -> bool {
    match (contender.mode, mode) {
        (Mode::Shared, RunMode::Shared) => false,
        (Mode::Permits { n, limit }, RunMode::Slots(slots)) => n >= limit.min(slots),
        _ => true,
    }
}

/// The error for a run that would wait for itself: `holds` says which run holds the lock, and `why`
/// says why that hold cannot be re-entered.
fn deadlock_error(locks: &Locks, plan: &Plan, holds: &str, why: &str) -> Failure {
    let message = self_wait_message(locks, plan, holds, why);
    Failure::usage(format!("{message}; give a time with -w, or run it outside"))
}

/// That a run waits for its own ancestor.
fn self_wait_message(locks: &Locks, plan: &Plan, holds: &str, why: &str) -> String {
    format!("lock {} on {}: {holds}, and {why}: this run would wait for itself", plan.name, locks.url())
}
