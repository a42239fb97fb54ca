//! The operations of one holder with one token: the only part of a register's history that needs a
//! search.

use std::collections::HashSet;

use super::linearizability::{ValueTimes, add_value};
use super::{OpEffect, RegisterOp};
use crate::history::RunNanos;

/// A phase with one holder.
pub(super) struct Phase<'a> {
    /// The operations that certainly happened, ordered by their beginning.
    certain_ops: Vec<&'a RegisterOp<'a>>,
    /// The writes that may have happened, as value and beginning; ordered by beginning.
    uncertain_writes: Vec<(u64, RunNanos)>,
    /// The earliest beginning of a read that may have happened.
    first_uncertain_read: Option<RunNanos>,
    /// If other operations were refused in the phase: it began by the first time, and ended after
    /// the second.
    refusal_span: Option<(RunNanos, RunNanos)>,
}

/// The progress of an order.
#[derive(Clone, PartialEq, Eq, Hash)]
struct SearchPosition {
    /// All operations before this one are done, and these after it.
    done_count: usize,
    done_out_of_order: Vec<usize>,
    /// The possible writes that the order uses.
    used_writes: Vec<usize>,
    value: Option<u64>,
}

/// A search position, the earliest time at which it can be reached, and whether the token was
/// presented by then.
struct SearchState {
    position: SearchPosition,
    earliest: RunNanos,
    is_token_presented: bool,
}

impl<'a> Phase<'a> {
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

    /// The starting points of the search, for one previous value of the register.
    fn starts(&self, value: Option<u64>, t: RunNanos) -> Vec<SearchState> {
        let workspace =
            |value, used| SearchPosition { done_count: 0, done_out_of_order: Vec::new(), used_writes: used, value };
        let mut starts = Vec::new();
        if !self.certain_ops.is_empty() {
            starts.push(SearchState {
                position: workspace(value, Vec::new()),
                earliest: t,
                is_token_presented: self.refusal_span.is_none(),
            });
        }
        // An operation that may have happened can be the one that presented the token before the
        // first refusal.
        let Some((by, _)) = self.refusal_span else { return starts };
        if let Some(t) = self.first_uncertain_read.map(|begin| begin.max(t)).filter(|&t| t <= by) {
            starts.push(SearchState { position: workspace(value, Vec::new()), earliest: t, is_token_presented: true });
        }
        for (at, &(written, begin)) in self.uncertain_writes.iter().enumerate() {
            if begin.max(t) <= by {
                starts.push(SearchState {
                    position: workspace(Some(written), vec![at]),
                    earliest: begin.max(t),
                    is_token_presented: true,
                });
            }
        }
        starts
    }

    /// The operations that can come next, and the time by which the next one must have happened.
    fn next_candidates(&self, workspace: &SearchPosition) -> (Vec<usize>, RunNanos) {
        let (mut candidates, mut by) = (Vec::new(), RunNanos::MAX);
        for (at, op) in self.certain_ops.iter().enumerate().skip(workspace.done_count) {
            if op.began_at > by {
                break;
            }
            if !workspace.done_out_of_order.contains(&at) {
                by = by.min(op.ended_at);
                candidates.push(at);
            }
        }
        (candidates, by)
    }

    /// Adds one operation, if it can come next.
    fn step(&self, from: &SearchState, at: usize, by: RunNanos) -> Option<SearchState> {
        let op = self.certain_ops.get(at)?;
        let mut workspace = from.position.clone();
        let mut t = from.earliest;
        let mut token_presented = from.is_token_presented;
        let present_by = self.refusal_span.map_or(RunNanos::MAX, |(by, _)| by);
        match op.effect {
            OpEffect::Written(value) => workspace.value = Some(value),
            OpEffect::Read(value) if value == workspace.value => {}
            // Only a possible write just before can explain the value. The earliest one leaves the
            // most choices.
            OpEffect::Read(value) => {
                let free = |&(at, (written, _)): &(usize, &(u64, RunNanos))| {
                    Some(*written) == value && !workspace.used_writes.contains(&at)
                };
                let (write, &(_, begin)) = self.uncertain_writes.iter().enumerate().find(free)?;
                t = t.max(begin);
                if !token_presented && t > present_by {
                    return None;
                }
                token_presented = true;
                workspace.value = value;
                workspace.used_writes.push(write);
                workspace.used_writes.sort_unstable();
            }
            _ => return None,
        }
        t = t.max(op.began_at);
        if t > by || (!token_presented && t > present_by) {
            return None;
        }
        workspace.done_out_of_order.push(at);
        while let Some(next) = workspace.done_out_of_order.iter().position(|&beyond| beyond == workspace.done_count) {
            workspace.done_out_of_order.swap_remove(next);
            workspace.done_count += 1;
        }
        workspace.done_out_of_order.sort_unstable();
        Some(SearchState { position: workspace, earliest: t, is_token_presented: true })
    }
}

/// Adds the values that the register may have after the phase. `None`: the limit of states is
/// reached.
pub(super) fn search_phase(
    phase: &Phase<'_>,
    before: &ValueTimes,
    after: &mut ValueTimes,
    budget: &mut u64,
) -> Option<()> {
    // Operations here overwrite a previous value that none of them reads. Of such values only the
    // earliest matters.
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
        for start in phase.starts(value, t) {
            search(phase, start, after, budget)?;
        }
    }
    Some(())
}

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
            if let Some(next) = phase.step(&reached, at, by)
                && visited.insert(next.position.clone())
            {
                open.push(next);
            }
        }
    }
    Some(())
}
