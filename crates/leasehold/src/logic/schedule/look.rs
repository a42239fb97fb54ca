//! Whether there is work, before a node requests the lock.

use super::state::State;
use super::ticks::Ticks;
use super::{Crash, Policy};

/// What a node does next about a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Something is due: acquire the lock and decide.
    Now,
    /// A run in progress must be taken over if its holder dies: wait for the lock.
    Watch,
    /// Nothing before this tick, if there is one.
    Idle(Option<i64>),
}

/// Nothing up to this tick is due for a node that has had its schedule since `since`.
pub(super) fn floor(state: &State, schedule: &str, zone: &str, since: i64) -> i64 {
    // Ticks of another schedule never belonged to this one.
    if state.schedule == schedule && state.zone == zone { state.watermark } else { state.watermark.max(since) }
}

/// The work at `now`, according to the record.
pub fn look(
    state: &State,
    timetable: &dyn Ticks,
    (schedule, zone): (&str, &str),
    policy: &Policy,
    since: i64,
    now: i64,
) -> Work {
    if state.paused.is_some() {
        return if state.wanted.is_empty() { Work::Idle(None) } else { Work::Now };
    }
    if !state.wanted.is_empty() || !state.queue.is_empty() {
        return Work::Now;
    }
    let next = timetable.next(floor(state, schedule, zone, since));
    if next.is_some_and(|next| next <= now) {
        return Work::Now;
    }
    match policy.crash {
        Crash::Retry { .. } if !state.running.is_empty() => Work::Watch,
        _ => Work::Idle(next),
    }
}
