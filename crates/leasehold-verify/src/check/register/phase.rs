//! The operations of one holder with one token: the only part of a register's history that needs a
//! search.

use std::collections::HashSet;

use super::exact::{Values, offer};
use super::{Did, Op};
use crate::history::Nanos;

/// A phase with one holder.
pub(super) struct Phase<'a> {
    /// The operations that certainly happened, by their beginning.
    sure: Vec<&'a Op<'a>>,
    /// The writes that may have happened, by their beginning: value and beginning.
    writes: Vec<(u64, Nanos)>,
    /// The earliest beginning of a read that may have happened.
    read: Option<Nanos>,
    /// If others were refused in the phase: it must have begun by the first time, and cannot end
    /// before the second.
    refusals: Option<(Nanos, Nanos)>,
}

/// The progress of an order.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Place {
    /// All operations before this one are done, and these after it.
    done: usize,
    beyond: Vec<usize>,
    /// The possible writes that the order uses.
    used: Vec<usize>,
    value: Option<u64>,
}

/// A place, the earliest time at which it can be reached, and whether the token was presented by
/// then.
struct Reached {
    place: Place,
    t: Nanos,
    shown: bool,
}

impl<'a> Phase<'a> {
    pub(super) fn new(accepted: &[&'a Op<'a>], maybe: impl Iterator<Item = &'a Op<'a>>, refused: &[&Op<'_>]) -> Self {
        let mut sure = accepted.to_vec();
        sure.sort_by_key(|op| op.begin);
        let (mut writes, mut read) = (Vec::new(), None);
        for op in maybe {
            match op.did {
                Did::MayWrite(value) => writes.push((value, op.begin)),
                _ => read = Some(read.map_or(op.begin, |read: Nanos| read.min(op.begin))),
            }
        }
        writes.sort_by_key(|&(_, begin)| begin);
        let first_end = refused.iter().map(|op| op.end).min();
        let last_begin = refused.iter().map(|op| op.begin).max();
        Self { sure, writes, read, refusals: first_end.zip(last_begin) }
    }

    /// The starting points of the search, for one previous value of the register.
    fn starts(&self, value: Option<u64>, t: Nanos) -> Vec<Reached> {
        let place = |value, used| Place { done: 0, beyond: Vec::new(), used, value };
        let mut starts = Vec::new();
        if !self.sure.is_empty() {
            starts.push(Reached { place: place(value, Vec::new()), t, shown: self.refusals.is_none() });
        }
        // An operation that may have happened can be the one that presented the token before the
        // first refusal.
        let Some((by, _)) = self.refusals else { return starts };
        if let Some(t) = self.read.map(|begin| begin.max(t)).filter(|&t| t <= by) {
            starts.push(Reached { place: place(value, Vec::new()), t, shown: true });
        }
        for (at, &(written, begin)) in self.writes.iter().enumerate() {
            if begin.max(t) <= by {
                starts.push(Reached { place: place(Some(written), vec![at]), t: begin.max(t), shown: true });
            }
        }
        starts
    }

    /// The operations that can come next, and the time by which the next one must have happened.
    fn candidates(&self, place: &Place) -> (Vec<usize>, Nanos) {
        let (mut candidates, mut by) = (Vec::new(), Nanos::MAX);
        for (at, op) in self.sure.iter().enumerate().skip(place.done) {
            if op.begin > by {
                break;
            }
            if !place.beyond.contains(&at) {
                by = by.min(op.end);
                candidates.push(at);
            }
        }
        (candidates, by)
    }

    /// Adds one operation, if it can come next.
    fn step(&self, from: &Reached, at: usize, by: Nanos) -> Option<Reached> {
        let op = self.sure.get(at)?;
        let mut place = from.place.clone();
        let mut t = from.t;
        let mut shown = from.shown;
        let show_by = self.refusals.map_or(Nanos::MAX, |(by, _)| by);
        match op.did {
            Did::Wrote(value) => place.value = Some(value),
            Did::Read(value) if value == place.value => {}
            // Only a possible write just before can explain the value; the earliest one leaves the
            // most for later.
            Did::Read(value) => {
                let free =
                    |&(at, (written, _)): &(usize, &(u64, Nanos))| Some(*written) == value && !place.used.contains(&at);
                let (write, &(_, begin)) = self.writes.iter().enumerate().find(free)?;
                t = t.max(begin);
                if !shown && t > show_by {
                    return None;
                }
                shown = true;
                place.value = value;
                place.used.push(write);
                place.used.sort_unstable();
            }
            _ => return None,
        }
        t = t.max(op.begin);
        if t > by || (!shown && t > show_by) {
            return None;
        }
        place.beyond.push(at);
        while let Some(next) = place.beyond.iter().position(|&beyond| beyond == place.done) {
            place.beyond.swap_remove(next);
            place.done += 1;
        }
        place.beyond.sort_unstable();
        Some(Reached { place, t, shown: true })
    }
}

/// Adds the values that the register may have after the phase. `None`: too many states to visit.
pub(super) fn run(phase: &Phase<'_>, before: &Values, after: &mut Values, budget: &mut u64) -> Option<()> {
    // A previous value that no operation here reads is overwritten here: of those only the earliest
    // matters.
    let reads: HashSet<Option<u64>> =
        phase.sure.iter().filter_map(|op| if let Did::Read(value) = op.did { Some(value) } else { None }).collect();
    let earliest = before.iter().min_by_key(|&(value, t)| (*t, *value)).map(|(value, _)| *value);
    for (&value, &t) in before {
        if !phase.sure.is_empty() && !reads.contains(&value) && earliest != Some(value) {
            continue;
        }
        for start in phase.starts(value, t) {
            search(phase, start, after, budget)?;
        }
    }
    Some(())
}

fn search(phase: &Phase<'_>, start: Reached, after: &mut Values, budget: &mut u64) -> Option<()> {
    let mut visited: HashSet<Place> = HashSet::new();
    let mut open = vec![start];
    while let Some(reached) = open.pop() {
        *budget = budget.checked_sub(1)?;
        if reached.place.done == phase.sure.len() {
            let t = phase.refusals.map_or(reached.t, |(_, last)| reached.t.max(last));
            offer(after, reached.place.value, t);
            for (at, &(value, begin)) in phase.writes.iter().enumerate() {
                if !reached.place.used.contains(&at) {
                    offer(after, Some(value), t.max(begin));
                }
            }
            continue;
        }
        let (candidates, by) = phase.candidates(&reached.place);
        for at in candidates {
            if let Some(next) = phase.step(&reached, at, by)
                && visited.insert(next.place.clone())
            {
                open.push(next);
            }
        }
    }
    Some(())
}
