//! After all lines are read: computes when each hold ended, and its row on its lane.

use super::build::{Reader, Seen};
use super::{Fate, Kind, MOST_ROWS, Run, Span};
use crate::history::{Nanos, Outcome};

pub(super) fn run(mut reader: Reader) -> Run {
    reader.close();
    let seen = std::mem::take(&mut reader.seen);
    let deaths: Vec<(Nanos, bool)> = reader.run.spans.iter().map(|span| reader.death(span.worker)).collect();
    let mut run = reader.run;
    for ((span, seen), death) in run.spans.iter_mut().zip(seen).zip(deaths) {
        last(span, seen, death);
    }
    let rows = rows(&mut run);
    for mark in &mut run.marks {
        // The builder stored the hold's index here.
        mark.row = rows.get(mark.row).copied().unwrap_or(0);
    }
    run.spans.sort_by_key(|span| (span.lane, span.row, span.begin, span.op));
    run.marks.sort_by_key(|mark| (mark.lane, mark.row, mark.t));
    run.bands.sort_by_key(|band| (band.from, band.fault));
    run.lives.sort_by_key(|life| (life.lane, life.from));
    let ends = run.flags.iter().map(|flag| flag.to);
    run.end = ends.chain([run.end]).max().unwrap_or(1);
    run
}

/// Computes how a span ends. `death` is when its process last did anything, and whether it was
/// killed.
fn last(span: &mut Span, seen: Seen, death: (Nanos, bool)) {
    let (gone, killed) = death;
    let open = || if killed { Fate::Killed } else { Fate::Open };
    let Some(granted) = span.granted else {
        let (end, fate) = match seen.ended {
            Some((t, Outcome::Busy)) => (t, Fate::Busy),
            Some((t, Outcome::TimedOut)) => (t, Fate::TimedOut),
            Some((t, Outcome::Unknown { error })) => (t, Fate::Unknown(error)),
            Some((t, Outcome::Failed { error })) => (t, Fate::Failed(error)),
            Some((t, other)) => (t, Fate::Failed(format!("{other:?} is no answer to this"))),
            None => (gone, open()),
        };
        span.end = end.max(span.begin);
        (span.to, span.sure, span.fate) = (span.begin, span.begin, fate);
        return;
    };
    let tick = matches!(span.kind, Kind::Tick(..));
    let ended = seen.ended;
    let (to, sure, fate) = match (seen.lost, seen.release, &ended) {
        (Some((t, deadline, reason)), release, _) => {
            span.deadline = deadline;
            let t = release.map_or(t, |release| t.min(release));
            (t, t.min(deadline.max(seen.held)), Fate::Lost(reason))
        }
        (None, Some(t), Some((_, Outcome::WasLost { reason }))) => {
            (t, t.min(span.deadline.max(seen.held)), Fate::Lost(reason.clone()))
        }
        (None, Some(t), Some((_, Outcome::Released))) => (t, t, Fate::Released),
        (None, Some(t), Some((_, Outcome::Failed { error } | Outcome::Unknown { error }))) => {
            (t, t, Fate::ReleaseFailed(error.clone()))
        }
        (None, Some(t), _) => (t, t, open()),
        (None, None, Some((t, Outcome::Failed { error } | Outcome::Unknown { error }))) if tick => {
            (*t, *t, Fate::Unknown(error.clone()))
        }
        (None, None, Some((t, _))) if tick => (*t, *t, Fate::Done),
        (None, None, _) => (gone, gone, open()),
    };
    span.to = to.max(granted);
    span.sure = sure.clamp(granted, span.to);
    span.fate = fate;
    let done = match ended {
        // After it learns of the loss, its actions are not part of the hold.
        _ if matches!(span.fate, Fate::Lost(_)) => span.to,
        Some((t, _)) => t,
        None if seen.release.is_some() => gone,
        None => span.to,
    };
    span.end = done.max(span.to);
}

/// Assigns each span a free row on its lane; returns the rows in the order of the spans.
fn rows(run: &mut Run) -> Vec<usize> {
    let mut order: Vec<usize> = (0..run.spans.len()).collect();
    order.sort_by_key(|at| run.spans.get(*at).map(|span| (span.begin, span.op)));
    let mut taken: Vec<Vec<Nanos>> = run.lanes.iter().map(|_| Vec::new()).collect();
    for at in order {
        let Some(span) = run.spans.get_mut(at) else { continue };
        let Some(ends) = taken.get_mut(span.lane) else { continue };
        let free = ends.iter().position(|end| *end <= span.begin);
        span.row = free.unwrap_or(ends.len()).min(MOST_ROWS - 1);
        match ends.get_mut(span.row) {
            Some(end) => *end = (*end).max(span.end),
            None => ends.push(span.end),
        }
    }
    for (lane, ends) in run.lanes.iter_mut().zip(&taken) {
        lane.rows = ends.len().max(1);
    }
    run.spans.iter().map(|span| span.row).collect()
}
