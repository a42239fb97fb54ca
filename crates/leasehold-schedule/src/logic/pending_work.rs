//! Whether there is work, before a node requests the lock.

use super::job_record::JobRecord;
use super::ticks::Ticks;
use super::{Crash, Policy};

/// What a node does next about a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PendingWork {
    /// A tick or a manual run is due: acquire the lock and decide.
    Due,
    /// A run in progress must be taken over if its holder dies: wait for the lock.
    WatchRun,
    /// There is no work before this tick; `None`: until the record changes.
    Idle(Option<i64>),
}

/// No tick up to this one is due for a node that has had its schedule since `since`.
pub(super) fn last_settled_tick(state: &JobRecord, schedule: &str, zone: &str, since: i64) -> i64 {
    // Ticks of another schedule never belonged to this one.
    if state.schedule == schedule && state.zone == zone { state.watermark } else { state.watermark.max(since) }
}

/// Whether there is work at the engine's time `now`, according to the record. `since`: when this
/// node first had the schedule.
pub fn pending_work(
    state: &JobRecord,
    ticks: &dyn Ticks,
    (schedule, zone): (&str, &str),
    policy: &Policy,
    since: i64,
    now: i64,
) -> PendingWork {
    if state.paused.is_some() {
        return if state.wanted.is_empty() { PendingWork::Idle(None) } else { PendingWork::Due };
    }
    if !state.wanted.is_empty() || !state.queue.is_empty() {
        return PendingWork::Due;
    }
    let next = ticks.next(last_settled_tick(state, schedule, zone, since));
    if next.is_some_and(|next| next <= now) {
        return PendingWork::Due;
    }
    match policy.crash {
        Crash::Retry { .. } if !state.running.is_empty() => PendingWork::WatchRun,
        _ => PendingWork::Idle(next),
    }
}
