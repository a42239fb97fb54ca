//! Re-entry into a hold of an enclosing run. It depends on that hold itself, never on the
//! environment alone.
//!
//! ```text
//! does the engine list an enclosing run as a holder?
//!     no  -> claim with a fresh owner, and wait in the queue
//!     yes -> claim with that run's owner; then ask again while holding that claim
//! ```
//! The second question makes this atomic, because the new claim keeps the hold from ending. If the
//! engine *then* lists the enclosing hold, it was held when we entered, and we are inside it. If
//! not, we release the claim before any command starts. Processes that a command leaves behind (a
//! daemon) therefore exclude each other: two runs that the daemon starts may both enter for a
//! moment, and neither stays.

use std::time::Duration;

use leasehold::engine::PartyView;
use leasehold::{Error, ErrorKind, Guard, Locks, Mode, Owner};

use super::acquire::try_take;
use super::held::Ancestors;
use super::plan::{How, Patience, Plan};
use super::report::Report;
use crate::exit::Failure;
use crate::view;

/// How often to try to enter an enclosing hold: a quorum engine may fail by chance.
const TRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(50);

/// How long to wait before asking the engine who holds the lock.
const FIRST_LOOK: Duration = Duration::from_millis(100);

/// Enters a hold of an enclosing run. `None`: none of them holds the lock now.
pub(super) async fn enter(locks: &Locks, plan: &Plan, around: &Ancestors) -> Result<Option<(Guard, Owner)>, Error> {
    if !locks.capabilities().reentry || !around.may_be_joined() {
        return Ok(None);
    }
    for _ in 0..TRIES {
        let view = locks.inspect(&plan.name).await?;
        let Some((hold, owner)) = around.holding(&view).and_then(|(hold, _)| Some((hold, hold.owner?))) else {
            return Ok(None);
        };
        match try_take(locks, plan, Some(&owner)).await {
            Ok(Some(guard)) if guard.token().0 == hold.token && is_held(locks, plan, around).await? => {
                return Ok(Some((guard, owner)));
            }
            Ok(Some(guard)) => {
                let _ = guard.release().await?;
                return Ok(None);
            }
            Ok(None) if plan.patience == Patience::None => return Ok(None),
            Ok(None) => tokio::time::sleep(PAUSE).await,
            // The enclosing hold covers less than the request, unless it has ended meanwhile.
            Err(error) if error.kind() != ErrorKind::Conflict || is_held(locks, plan, around).await? => {
                return Err(error);
            }
            Err(_) => return Ok(None),
        }
    }
    Ok(None)
}

async fn is_held(locks: &Locks, plan: &Plan, around: &Ancestors) -> Result<bool, Error> {
    Ok(around.holding(&locks.inspect(&plan.name).await?).is_some())
}

/// Refuses, on an engine that cannot list holders, to wait for a lock that an enclosing run holds.
pub(super) fn refuse_unseen(locks: &Locks, plan: &Plan, around: &Ancestors) -> Result<(), Failure> {
    let waits = plan.patience == Patience::Forever && !locks.capabilities().inspection;
    if waits && around.may_hold(&locks.url(), plan.name.as_str()) {
        return Err(would_wait_for_itself(
            locks,
            plan,
            "a command around this one holds it",
            "this engine has no re-entry",
        ));
    }
    Ok(())
}

/// Returns when an enclosing run holds the lock that we wait for: it would wait for us, and we for
/// it.
pub(super) async fn waits_for_itself(locks: &Locks, plan: &Plan, around: &Ancestors) -> Failure {
    let looks = plan.patience == Patience::Forever && locks.capabilities().inspection && !around.is_empty();
    if !looks {
        return std::future::pending().await;
    }
    loop {
        tokio::time::sleep(FIRST_LOOK).await;
        let Ok(view) = locks.inspect(&plan.name).await else { continue };
        let Some((hold, party)) = around.holding(&view).filter(|(_, party)| shuts_out(party, plan.how)) else {
            return std::future::pending().await;
        };
        let holds = format!("{} holds it with token {} around this command", view::process(party), hold.token);
        let why = if hold.owner.is_none() { "a job's lock has no re-entry" } else { "LEASEHOLD_OWNER is not set" };
        return would_wait_for_itself(locks, plan, &holds, why);
    }
}

/// Warns once, on an engine that cannot list holders, if the wait may be for an enclosing run whose
/// URL is another one. It may also be another server's lock, so the wait goes on.
pub(super) async fn may_wait_for_itself(
    locks: &Locks,
    plan: &Plan,
    around: &Ancestors,
    report: &Report,
) -> std::convert::Infallible {
    if plan.patience != Patience::None && !locks.capabilities().inspection {
        let (name, url) = (&plan.name, locks.url());
        if let Some(other) = around.may_hold_elsewhere(&url, name.as_str()) {
            // A lock that is free needs no warning.
            tokio::time::sleep(FIRST_LOOK).await;
            report.warning(&format!(
                "lock {name} on {url}: this run may wait for its own ancestor: a command around this one holds {name} on {other}; if both are \
                 one server, bound the wait with -w, run it outside, or give both the same URL, which is refused at once"
            ));
        }
    }
    std::future::pending().await
}

/// Whether this holder alone blocks our request.
fn shuts_out(party: &PartyView, how: How) -> bool {
    match (party.mode, how) {
        (Mode::Shared, How::Shared) => false,
        (Mode::Permits { n, limit }, How::Slots(slots)) => n >= limit.min(slots),
        _ => true,
    }
}

fn would_wait_for_itself(locks: &Locks, plan: &Plan, holds: &str, why: &str) -> Failure {
    let (name, url) = (&plan.name, locks.url());
    Failure::usage(format!(
        "lock {name} on {url}: {holds}, and {why}: this run would wait for itself; give a time with -w, or run it outside"
    ))
}
