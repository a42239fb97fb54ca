//! Leaves out calls of a very long run, so that a browser can draw the rest.

use std::collections::HashMap;

use super::{MarkStyle, RegisterMark, Span, SpanOutcome, TimelineModel};
use crate::history::{RunNanos, WorkerId};

/// The maximum of calls on a page: browsers are slow with more. Of a longer run, only the most
/// informative calls are drawn.
pub(crate) const MAX_SPANS: usize = 20_000;

/// How informative a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Importance {
    /// It failed, or a violation involves it.
    Always,
    /// A fault is active during the call, or ended shortly before it.
    NearFault,
    /// It ended normally, away from faults and violations.
    Normal,
}

impl TimelineModel {
    /// Omits calls until about `max_spans` are left: the least important first, and evenly over the
    /// run. Calls up to `after_fault` after a fault count as near it. Sets
    /// [`omitted_calls`](Self::omitted_calls).
    pub(crate) fn thin_out(&mut self, max_spans: usize, after_fault: RunNanos) {
        if self.spans.len() <= max_spans {
            return;
        }
        let all = self.spans.len();
        let importances: Vec<Importance> = self.spans.iter().map(|span| self.importance(span, after_fault)).collect();
        let count = |importance| importances.iter().filter(|one| **one == importance).count();
        let mut remaining = max_spans;
        let mut shares = HashMap::new();
        // Calls near faults get at most half of what is left. One in `every` calls is kept.
        for (importance, divisor) in [(Importance::Always, 1), (Importance::NearFault, 2), (Importance::Normal, 1)] {
            let every = count(importance).div_ceil((remaining / divisor).max(1)).max(1);
            remaining = remaining.saturating_sub(count(importance) / every);
            shares.insert(importance as u8, (every, 0_usize));
        }
        let mut importances = importances.into_iter();
        self.spans.retain(|_| {
            let importance = importances.next().unwrap_or(Importance::Normal);
            let Some((every, seen)) = shares.get_mut(&(importance as u8)) else { return true };
            *seen += 1;
            (*seen - 1) % *every == 0
        });
        self.omitted_calls = (all - self.spans.len()) as u64;
        self.thin_marks();
    }

    /// How important it is to draw this call; `after_fault` is how long after a fault it counts as
    /// near it.
    fn importance(&self, span: &Span, after_fault: RunNanos) -> Importance {
        let usual = matches!(
            span.outcome,
            SpanOutcome::Released | SpanOutcome::Busy | SpanOutcome::TimedOut | SpanOutcome::Done
        );
        let meets = |from: RunNanos, to: RunNanos| from <= span.done_at && to >= span.requested_at;
        if !usual || self.flags.iter().any(|flag| meets(flag.from, flag.to)) {
            Importance::Always
        } else if self.bands.iter().any(|band| meets(band.from, band.to.saturating_add(after_fault))) {
            Importance::NearFault
        } else {
            Importance::Normal
        }
    }

    /// Omits the register accesses of omitted calls; refused ones stay.
    fn thin_marks(&mut self) {
        let mut kept: HashMap<WorkerId, Vec<(RunNanos, RunNanos)>> = HashMap::new();
        for span in &self.spans {
            kept.entry(span.worker).or_default().push((span.requested_at, span.done_at));
        }
        for spans in kept.values_mut() {
            spans.sort_unstable();
        }
        let under = |mark: &RegisterMark| {
            let spans = kept.get(&mark.worker).map_or(&[][..], Vec::as_slice);
            let before = spans.partition_point(|(begin, _)| *begin <= mark.from);
            // The calls of one worker follow each other, except for a few nested ones.
            spans[..before].iter().rev().take(4).any(|(_, end)| *end >= mark.from)
        };
        self.marks.retain(|mark| mark.style() == MarkStyle::Refused || under(mark));
    }
}
