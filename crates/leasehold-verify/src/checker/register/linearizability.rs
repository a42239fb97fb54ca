//! Decides exactly whether a fenced register's history is linearizable.
//!
//! The register's rules: it keeps the highest token that it has seen, the holder that presented it,
//! and a value. It accepts a write or read with token `t` of holder `h` if `t` is higher than the
//! kept token, or equal and from the same holder; then it keeps `t` and `h`. Otherwise it refuses,
//! and returns the kept token.
//!
//! So in any order that fits, the operations come in *phases*, one per token, in the order of the
//! tokens. An accepted operation belongs to the phase of its own token, and a refused one to the
//! phase of the returned token. Only the order within a phase needs a search, and all operations of
//! a phase have one holder. From phase to phase the algorithm passes the possible values of the
//! register. Each has the earliest time at which all operations so far can be done.
//!
//! An operation with an unknown outcome, or without an end, may never have happened, so the search
//! uses it only where it explains a value or a refusal.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::phase::{Phase, search_phase};
use super::{OpEffect, Presenter, RegisterOp};
use crate::history::RunNanos;

/// The search gives up, undecided, after this many states.
const MAX_STATES: u64 = 1_000_000;

/// Whether an order of the operations fits their times and the register's rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Linearizability {
    /// Some order fits.
    Linearizable,
    /// No order fits. The operations with tokens below this one have an order, those up to it have
    /// none.
    NotLinearizable(u64),
    /// The search reached its limit of states.
    Undecided,
}

/// The values that the register may have (`None`: nothing written yet), each with the earliest time
/// at which it may have it.
pub(super) type ValueTimes = HashMap<Option<u64>, RunNanos>;

/// Adds a possible value at time `t`, or lowers the time of a known one to `t`.
pub(super) fn add_value(values: &mut ValueTimes, value: Option<u64>, t: RunNanos) {
    let known = values.entry(value).or_insert(t);
    *known = t.min(*known);
}

/// The operations of one phase, which is all that belong to one token.
#[derive(Default)]
struct PhaseOps<'a> {
    accepted: Vec<&'a RegisterOp<'a>>,
    refused: Vec<&'a RegisterOp<'a>>,
    /// Operations with an unknown outcome.
    uncertain: Vec<&'a RegisterOp<'a>>,
}

/// Decides whether some order of the operations of one register fits.
pub(crate) fn decide_linearizability(ops: &[RegisterOp<'_>]) -> Linearizability {
    let mut phases: BTreeMap<u64, PhaseOps<'_>> = BTreeMap::new();
    for op in ops {
        match op.effect {
            OpEffect::Refused { seen } if seen < op.token => return Linearizability::NotLinearizable(op.token),
            OpEffect::Refused { seen } => phases.entry(seen).or_default().refused.push(op),
            OpEffect::Written(_) | OpEffect::Read(_) => phases.entry(op.token).or_default().accepted.push(op),
            OpEffect::MaybeWritten(_) | OpEffect::MaybeRead => phases.entry(op.token).or_default().uncertain.push(op),
        }
    }
    let mut values = ValueTimes::from([(None, 0)]);
    // The earliest time of all values. It is passed along, so that a long series of uncertain
    // phases is visited only once.
    let mut earliest = 0;
    let mut budget = MAX_STATES;
    for (&token, phase_ops) in &phases {
        if phase_ops.accepted.is_empty() && phase_ops.refused.is_empty() {
            for op in &phase_ops.uncertain {
                if let OpEffect::MaybeWritten(value) = op.effect {
                    add_value(&mut values, Some(value), earliest.max(op.began_at));
                }
            }
            continue;
        }
        let Some(next) = values_after_phase(token, phase_ops, &values, &mut budget) else {
            return Linearizability::Undecided;
        };
        let Some(&first) = next.values().min() else { return Linearizability::NotLinearizable(token) };
        values = next;
        earliest = first;
    }
    Linearizability::Linearizable
}

/// The values that the register may have after this phase if it has one of `values` before it;
/// empty if no order of the phase fits. `None`: the search used up `budget`, the number of states
/// left.
fn values_after_phase(
    token: u64,
    phase_ops: &PhaseOps<'_>,
    values: &ValueTimes,
    budget: &mut u64,
) -> Option<ValueTimes> {
    let presenting = if phase_ops.accepted.is_empty() { &phase_ops.uncertain } else { &phase_ops.accepted };
    let holders: HashSet<Presenter<'_>> = presenting.iter().map(|op| op.holder).collect();
    let mut next = ValueTimes::new();
    if !phase_ops.accepted.is_empty() && holders.len() > 1 {
        return Some(next);
    }
    for holder in holders {
        // The register never refuses the token that it keeps to the holder that presented it.
        if phase_ops.refused.iter().any(|op| op.token == token && op.holder == holder) {
            continue;
        }
        let maybe = phase_ops.uncertain.iter().copied().filter(|op| op.holder == holder);
        let phase = Phase::new(&phase_ops.accepted, maybe, &phase_ops.refused);
        search_phase(&phase, values, &mut next, budget)?;
    }
    Some(next)
}
