//! Whether there is something to do, before the lock is asked for.

use super::state::State;
use super::ticks::Ticks;
use super::{Crash, Policy};

/// What a node does next about a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Something is due: take the lock and decide.
    Now,
    /// A run goes on that must be taken over if its holder dies: stand in the lock's line.
    Watch,
    /// Nothing before this tick, if there is any.
    Idle(Option<i64>),
}

/// Below this tick nothing is due for a node that has known its timetable since `since`.
pub(super) fn floor(state: &State, schedule: &str, zone: &str, since: i64) -> i64 {
    // Ticks of another timetable were never this one's to run.
    if state.schedule == schedule && state.zone == zone { state.watermark } else { state.watermark.max(since) }
}

/// What there is to do at `now`, as the record has it.
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
