//! Computes when each hold ended, and its row on its lane, after all events are read.

use super::builder::{HoldEvents, ModelBuilder};
use super::{MAX_ROWS, Span, SpanKind, SpanOutcome, TimelineModel};
use crate::history::{Outcome, RunNanos};

/// Computes the ends and rows of all spans, and sorts the parts of the model.
pub(super) fn finish(mut reader: ModelBuilder) -> TimelineModel {
    reader.close_pauses();
    let seen = std::mem::take(&mut reader.hold_events);
    let process_ends: Vec<(RunNanos, bool)> =
        reader.model.spans.iter().map(|span| reader.process_end(span.worker)).collect();
    let mut model = reader.model;
    for ((span, seen), process_end) in model.spans.iter_mut().zip(seen).zip(process_ends) {
        finish_span(span, seen, process_end);
    }
    let rows = assign_rows(&mut model);
    for mark in &mut model.marks {
        // So far `row` was the index of the hold's span; now it becomes that span's row.
        mark.row = rows.get(mark.row).copied().unwrap_or(0);
    }
    model.spans.sort_by_key(|span| (span.lane, span.row, span.requested_at, span.op));
    model.marks.sort_by_key(|mark| (mark.lane, mark.row, mark.to));
    model.bands.sort_by_key(|band| (band.from, band.fault));
    model.lifetimes.sort_by_key(|life| (life.lane, life.from));
    let ends = model.flags.iter().map(|flag| flag.to);
    model.end = ends.chain([model.end]).max().unwrap_or(1);
    model
}

/// Computes how a span ends. `process_end` is when its process ended, and whether it was killed.
fn finish_span(span: &mut Span, events: HoldEvents, process_end: (RunNanos, bool)) {
    let (process_ended_at, killed) = process_end;
    let open = || if killed { SpanOutcome::Killed } else { SpanOutcome::Open };
    let Some(granted) = span.granted_at else {
        let (end, outcome) = match events.ended {
            Some((t, Outcome::Busy)) => (t, SpanOutcome::Busy),
            Some((t, Outcome::TimedOut)) => (t, SpanOutcome::TimedOut),
            Some((t, Outcome::Unknown { error })) => (t, SpanOutcome::Unknown(error)),
            Some((t, Outcome::Failed { error })) => (t, SpanOutcome::Failed(error)),
            Some((t, other)) => (t, SpanOutcome::Failed(format!("{other:?} is not an outcome of this call"))),
            None => (process_ended_at, open()),
        };
        span.done_at = end.max(span.requested_at);
        (span.held_until, span.relied_on_until, span.outcome) = (span.requested_at, span.requested_at, outcome);
        return;
    };
    let tick = matches!(span.kind, SpanKind::Tick(..));
    let ended = events.ended;
    let (to, sure, outcome) = match (events.lost, events.release_began_at, &ended) {
        (Some((t, deadline, reason)), release, _) => {
            span.deadline = deadline;
            let t = release.map_or(t, |release| t.min(release));
            (t, t.min(deadline.max(events.last_held_at)), SpanOutcome::Lost(reason))
        }
        (None, Some(t), Some((_, Outcome::WasLost { reason }))) => {
            (t, t.min(span.deadline.max(events.last_held_at)), SpanOutcome::Lost(reason.clone()))
        }
        (None, Some(t), Some((_, Outcome::Released))) => (t, t, SpanOutcome::Released),
        (None, Some(t), Some((_, Outcome::Failed { error } | Outcome::Unknown { error }))) => {
            (t, t, SpanOutcome::ReleaseFailed(error.clone()))
        }
        (None, Some(t), _) => (t, t, open()),
        (None, None, Some((t, Outcome::Failed { error } | Outcome::Unknown { error }))) if tick => {
            (*t, *t, SpanOutcome::Unknown(error.clone()))
        }
        (None, None, Some((t, _))) if tick => (*t, *t, SpanOutcome::Done),
        (None, None, _) => (process_ended_at, process_ended_at, open()),
    };
    span.held_until = to.max(granted);
    span.relied_on_until = sure.clamp(granted, span.held_until);
    span.outcome = outcome;
    let done = match ended {
        // After the holder learns of the loss, its actions are not part of the hold.
        _ if matches!(span.outcome, SpanOutcome::Lost(_)) => span.held_until,
        Some((t, _)) => t,
        None if events.release_began_at.is_some() => process_ended_at,
        None => span.held_until,
    };
    span.done_at = done.max(span.held_until);
}

/// Assigns each span a row of its lane that no earlier span still uses; returns the rows in the
/// order of the spans.
fn assign_rows(model: &mut TimelineModel) -> Vec<usize> {
    let mut order: Vec<usize> = (0..model.spans.len()).collect();
    order.sort_by_key(|at| model.spans.get(*at).map(|span| (span.requested_at, span.op)));
    let mut taken: Vec<Vec<RunNanos>> = model.lanes.iter().map(|_| Vec::new()).collect();
    for at in order {
        let Some(span) = model.spans.get_mut(at) else { continue };
        let Some(ends) = taken.get_mut(span.lane) else { continue };
        let free = ends.iter().position(|end| *end <= span.requested_at);
        span.row = free.unwrap_or(ends.len()).min(MAX_ROWS - 1);
        match ends.get_mut(span.row) {
            Some(end) => *end = (*end).max(span.done_at),
            None => ends.push(span.done_at),
        }
    }
    for (lane, ends) in model.lanes.iter_mut().zip(&taken) {
        lane.rows = ends.len().max(1);
    }
    model.spans.iter().map(|span| span.row).collect()
}
