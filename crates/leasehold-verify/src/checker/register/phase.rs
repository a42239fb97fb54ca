//! Searches an order of the operations of one holder with one token: a phase. Only within a phase
//! is the order unknown.

use std::collections::HashSet;

use super::linearizability::{ValueTimes, add_value};
use super::{OpEffect, RegisterOp};
use crate::history::RunNanos;

/// The operations of one holder with one token, and the refusals of others because of that token.
pub(super) struct Phase<'a> {
    /// The operations that certainly happened, ordered by their beginning.
    certain_ops: Vec<&'a RegisterOp<'a>>,
    /// The writes with an unknown outcome: each value, and when the write began; ordered by the
    /// latter.
    uncertain_writes: Vec<(u64, RunNanos)>,
    /// When the first read with an unknown outcome began; `None`: there is none.
    first_uncertain_read: Option<RunNanos>,
    /// If other operations were refused because of this token: the phase began by the first time,
    /// and ended after the second. `None`: none was refused.
    refusal_span: Option<(RunNanos, RunNanos)>,
}

/// Which operations a partial order contains, and the register's value after them.
#[derive(Clone, PartialEq, Eq, Hash)]
struct SearchPosition {
    /// The first so many certain operations are in the order.
    done_count: usize,
    /// The indices of the later certain operations that are in the order, too; sorted.
    done_out_of_order: Vec<usize>,
    /// The indices of the uncertain writes that the order uses; sorted.
    used_writes: Vec<usize>,
    value: Option<u64>,
}

/// A partial order during the search.
struct SearchState {
    position: SearchPosition,
    /// The earliest time at which all its operations can have happened.
    earliest: RunNanos,
    /// Whether the phase's token was presented to the register by then.
    is_token_presented: bool,
}

impl<'a> Phase<'a> {
    /// A phase of accepted operations, operations with an unknown outcome (`maybe`), and refused
    /// ones.
    pub(super) fn new(
        accepted: &[&'a RegisterOp<'a>],
        maybe: impl Iterator<Item = &'a RegisterOp<'a>>,
        refused: &[&RegisterOp<'_>],
    ) -> Self {
        let mut certain = accepted.to_vec();
        certain.sort_by_key(|op| op.began_at);
        let (mut writes, mut read) = (Vec::new(), None);
        for op in maybe {
            match op.effect {
                OpEffect::MaybeWritten(value) => writes.push((value, op.began_at)),
                _ => read = Some(read.map_or(op.began_at, |read: RunNanos| read.min(op.began_at))),
            }
        }
        writes.sort_by_key(|&(_, begin)| begin);
        let first_end = refused.iter().map(|op| op.ended_at).min();
        let last_begin = refused.iter().map(|op| op.began_at).max();
        Self {
            certain_ops: certain,
            uncertain_writes: writes,
            first_uncertain_read: read,
            refusal_span: first_end.zip(last_begin),
        }
    }

    /// The states from which the search starts, if the register has `value` from time `t` on.
    fn start_states(&self, value: Option<u64>, t: RunNanos) -> Vec<SearchState> {
        let position =
            |value, used| SearchPosition { done_count: 0, done_out_of_order: Vec::new(), used_writes: used, value };
        let mut starts = Vec::new();
        if !self.certain_ops.is_empty() {
            starts.push(SearchState {
                position: position(value, Vec::new()),
                earliest: t,
                is_token_presented: self.refusal_span.is_none(),
            });
        }
        // An operation with an unknown outcome may have presented the token before the first
        // refusal.
        let Some((by, _)) = self.refusal_span else { return starts };
        if let Some(t) = self.first_uncertain_read.map(|begin| begin.max(t)).filter(|&t| t <= by) {
            starts.push(SearchState { position: position(value, Vec::new()), earliest: t, is_token_presented: true });
        }
        for (at, &(written, begin)) in self.uncertain_writes.iter().enumerate() {
            if begin.max(t) <= by {
                starts.push(SearchState {
                    position: position(Some(written), vec![at]),
                    earliest: begin.max(t),
                    is_token_presented: true,
                });
            }
        }
        starts
    }

    /// The indices of the certain operations that can come next, and the time by which the next one
    /// must have happened.
    fn next_candidates(&self, position: &SearchPosition) -> (Vec<usize>, RunNanos) {
        let (mut candidates, mut by) = (Vec::new(), RunNanos::MAX);
        for (at, op) in self.certain_ops.iter().enumerate().skip(position.done_count) {
            if op.began_at > by {
                break;
            }
            if !position.done_out_of_order.contains(&at) {
                by = by.min(op.ended_at);
                candidates.push(at);
            }
        }
        (candidates, by)
    }

    /// Extends the order by the operation with index `at`, which must happen by time `by`; `None`:
    /// it cannot come next.
    fn extend_order(&self, from: &SearchState, at: usize, by: RunNanos) -> Option<SearchState> {
        let op = self.certain_ops.get(at)?;
        let mut position = from.position.clone();
        let mut t = from.earliest;
        let mut token_presented = from.is_token_presented;
        let present_by = self.refusal_span.map_or(RunNanos::MAX, |(by, _)| by);
        match op.effect {
            OpEffect::Written(value) => position.value = Some(value),
            OpEffect::Read(value) if value == position.value => {}
            // Only an uncertain write just before this read can explain its value. The earliest
            // such write leaves the most choices.
            OpEffect::Read(value) => {
                let free = |&(at, (written, _)): &(usize, &(u64, RunNanos))| {
                    Some(*written) == value && !position.used_writes.contains(&at)
                };
                let (write, &(_, begin)) = self.uncertain_writes.iter().enumerate().find(free)?;
                t = t.max(begin);
                if !token_presented && t > present_by {
                    return None;
                }
                token_presented = true;
                position.value = value;
                position.used_writes.push(write);
                position.used_writes.sort_unstable();
            }
            _ => return None,
        }
        t = t.max(op.began_at);
        if t > by || (!token_presented && t > present_by) {
            return None;
        }
        position.done_out_of_order.push(at);
        while let Some(next) = position.done_out_of_order.iter().position(|&beyond| beyond == position.done_count) {
            position.done_out_of_order.swap_remove(next);
            position.done_count += 1;
        }
        position.done_out_of_order.sort_unstable();
        Some(SearchState { position, earliest: t, is_token_presented: true })
    }
}

/// Adds to `after` the values that the register may have after the phase, if it has one of the
/// values `before` it. `None`: the search used up `budget`, the number of states left.
pub(super) fn search_phase(
    phase: &Phase<'_>,
    before: &ValueTimes,
    after: &mut ValueTimes,
    budget: &mut u64,
) -> Option<()> {
    // A previous value that no operation of the phase reads is overwritten. Of such values only the
    // one with the earliest time matters.
    let reads: HashSet<Option<u64>> = phase
        .certain_ops
        .iter()
        .filter_map(|op| if let OpEffect::Read(value) = op.effect { Some(value) } else { None })
        .collect();
    let earliest = before.iter().min_by_key(|&(value, t)| (*t, *value)).map(|(value, _)| *value);
    for (&value, &t) in before {
        if !phase.certain_ops.is_empty() && !reads.contains(&value) && earliest != Some(value) {
            continue;
        }
        for start in phase.start_states(value, t) {
            search(phase, start, after, budget)?;
        }
    }
    Some(())
}

/// Searches all orders of the phase from one start, and adds the resulting values to `after`.
/// `None`: the search used up `budget`.
fn search(phase: &Phase<'_>, start: SearchState, after: &mut ValueTimes, budget: &mut u64) -> Option<()> {
    let mut visited: HashSet<SearchPosition> = HashSet::new();
    let mut open = vec![start];
    while let Some(reached) = open.pop() {
        *budget = budget.checked_sub(1)?;
        if reached.position.done_count == phase.certain_ops.len() {
            let t = phase.refusal_span.map_or(reached.earliest, |(_, last)| reached.earliest.max(last));
            add_value(after, reached.position.value, t);
            for (at, &(value, begin)) in phase.uncertain_writes.iter().enumerate() {
                if !reached.position.used_writes.contains(&at) {
                    add_value(after, Some(value), t.max(begin));
                }
            }
            continue;
        }
        let (candidates, by) = phase.next_candidates(&reached.position);
        for at in candidates {
            if let Some(next) = phase.extend_order(&reached, at, by)
                && visited.insert(next.position.clone())
            {
                open.push(next);
            }
        }
    }
    Some(())
}
