//! Thins out a run with very many calls by omitting similar ones.

use std::collections::HashMap;

use super::{MarkStyle, RegisterMark, Span, SpanOutcome, TimelineModel};
use crate::history::{RunNanos, WorkerId};

/// Browsers open a page with more calls than this slowly. Of a longer run, only the most
/// informative calls are drawn.
pub(crate) const MAX_SPANS: usize = 20_000;

/// How informative a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Importance {
    /// It failed, or a violation involves it.
    Always,
    /// A fault is active, or ended shortly before.
    NearFault,
    /// Acquired and released normally.
    Normal,
}

impl TimelineModel {
    /// Omits calls until about `max_spans` are left: evenly, and uninteresting ones first. Calls
    /// within `near` after a fault are of interest. [`TimelineModel::omitted_calls`] then has the
    /// number of omitted calls.
    pub(crate) fn thin_out(&mut self, max_spans: usize, near: RunNanos) {
        if self.spans.len() <= max_spans {
            return;
        }
        let all = self.spans.len();
        let weights: Vec<Importance> = self.spans.iter().map(|span| self.importance(span, near)).collect();
        let count = |weight| weights.iter().filter(|one| **one == weight).count();
        let mut remaining = max_spans;
        let mut shares = HashMap::new();
        for (weight, part) in [(Importance::Always, 1), (Importance::NearFault, 2), (Importance::Normal, 1)] {
            let every = count(weight).div_ceil((remaining / part).max(1)).max(1);
            remaining = remaining.saturating_sub(count(weight) / every);
            shares.insert(weight as u8, (every, 0_usize));
        }
        let mut weights = weights.into_iter();
        self.spans.retain(|_| {
            let weight = weights.next().unwrap_or(Importance::Normal);
            let Some((every, seen)) = shares.get_mut(&(weight as u8)) else { return true };
            *seen += 1;
            (*seen - 1) % *every == 0
        });
        self.omitted_calls = (all - self.spans.len()) as u64;
        self.thin_marks();
    }

    fn importance(&self, span: &Span, near: RunNanos) -> Importance {
        let usual = matches!(
            span.outcome,
            SpanOutcome::Released | SpanOutcome::Busy | SpanOutcome::TimedOut | SpanOutcome::Done
        );
        let meets = |from: RunNanos, to: RunNanos| from <= span.done_at && to >= span.requested_at;
        if !usual || self.flags.iter().any(|flag| meets(flag.from, flag.to)) {
            Importance::Always
        } else if self.bands.iter().any(|band| meets(band.from, band.to.saturating_add(near))) {
            Importance::NearFault
        } else {
            Importance::Normal
        }
    }

    /// Omits the marks of omitted calls; refusals stay.
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
