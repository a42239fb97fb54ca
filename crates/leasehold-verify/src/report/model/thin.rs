//! Thins out a run of very many calls by omitting similar ones.

use std::collections::HashMap;

use super::{Fate, Look, Mark, Run, Span};
use crate::history::{Nanos, Worker};

/// A browser takes long to open a page with more calls than this. Of a longer run, only the most
/// informative calls are drawn.
pub(crate) const MOST_SPANS: usize = 20_000;

/// How informative a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weight {
    /// It failed, or a violation involves it.
    Always,
    /// A fault is active, or ended shortly before.
    AtFaults,
    /// Acquired and released normally.
    Usual,
}

impl Run {
    /// Omits calls until about `most` are left: evenly, and uninteresting ones first. Calls within
    /// `near` after a fault are of interest. [`Run::left_out`] then has the number of omitted
    /// calls.
    pub(crate) fn thin(&mut self, most: usize, near: Nanos) {
        if self.spans.len() <= most {
            return;
        }
        let all = self.spans.len();
        let weights: Vec<Weight> = self.spans.iter().map(|span| self.weight(span, near)).collect();
        let count = |weight| weights.iter().filter(|one| **one == weight).count();
        let mut room = most;
        let mut shares = HashMap::new();
        for (weight, part) in [(Weight::Always, 1), (Weight::AtFaults, 2), (Weight::Usual, 1)] {
            let every = count(weight).div_ceil((room / part).max(1)).max(1);
            room = room.saturating_sub(count(weight) / every);
            shares.insert(weight as u8, (every, 0_usize));
        }
        let mut weights = weights.into_iter();
        self.spans.retain(|_| {
            let weight = weights.next().unwrap_or(Weight::Usual);
            let Some((every, seen)) = shares.get_mut(&(weight as u8)) else { return true };
            *seen += 1;
            (*seen - 1) % *every == 0
        });
        self.left_out = (all - self.spans.len()) as u64;
        self.thin_marks();
    }

    fn weight(&self, span: &Span, near: Nanos) -> Weight {
        let usual = matches!(span.fate, Fate::Released | Fate::Busy | Fate::TimedOut | Fate::Done);
        let meets = |from: Nanos, to: Nanos| from <= span.end && to >= span.begin;
        if !usual || self.flags.iter().any(|flag| meets(flag.from, flag.to)) {
            Weight::Always
        } else if self.bands.iter().any(|band| meets(band.from, band.to.saturating_add(near))) {
            Weight::AtFaults
        } else {
            Weight::Usual
        }
    }

    /// Omits the marks of omitted calls; refusals stay.
    fn thin_marks(&mut self) {
        let mut kept: HashMap<Worker, Vec<(Nanos, Nanos)>> = HashMap::new();
        for span in &self.spans {
            kept.entry(span.worker).or_default().push((span.begin, span.end));
        }
        for spans in kept.values_mut() {
            spans.sort_unstable();
        }
        let under = |mark: &Mark| {
            let spans = kept.get(&mark.worker).map_or(&[][..], Vec::as_slice);
            let before = spans.partition_point(|(begin, _)| *begin <= mark.from);
            // The calls of one worker follow each other, except for a few nested ones.
            spans[..before].iter().rev().take(4).any(|(_, end)| *end >= mark.from)
        };
        self.marks.retain(|mark| mark.look() == Look::Refused || under(mark));
    }
}
