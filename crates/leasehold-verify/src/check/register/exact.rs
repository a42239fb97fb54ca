//! Decides exactly whether a fenced register's history is linearizable.
//!
//! The register's rule: it keeps the highest token that it has seen, the holder that presented it,
//! and a value. It accepts a write or read with token `t` of holder `h` if `t` is higher, or the
//! same from the same holder; then it keeps `t` and `h`. Otherwise it refuses, and answers the
//! token that it keeps.
//!
//! So in any order that fits, the operations come in *phases*, one per token, in the order of the
//! tokens. An accepted operation belongs to the phase of its own token, and a refused one to the
//! phase of the token in the answer. Only the order within a phase needs a search, and one holder
//! does everything in a phase. From phase to phase the algorithm carries the values that the
//! register may have, and for each the earliest time at which everything so far can be done.
//!
//! An operation with an unknown outcome, or without an end, can be placed after everything else,
//! which is the same as never. So it is used only where it is needed.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::phase::{Phase, run};
use super::{Did, Holder, Op};
use crate::history::Nanos;

/// How many states to visit before the result is undecided.
const BUDGET: u64 = 1_000_000;

/// The result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// An order fits.
    Fits,
    /// No order fits; the search fails in the phase of this token.
    Broken(u64),
    /// There were too many states to visit.
    Undecided,
}

/// The values that the register may have, with the earliest time for each.
pub(super) type Values = HashMap<Option<u64>, Nanos>;

/// Adds a value, or an earlier time for it.
pub(super) fn offer(values: &mut Values, value: Option<u64>, t: Nanos) {
    let known = values.entry(value).or_insert(t);
    *known = t.min(*known);
}

#[derive(Default)]
struct Parts<'a> {
    accepted: Vec<&'a Op<'a>>,
    refused: Vec<&'a Op<'a>>,
    maybe: Vec<&'a Op<'a>>,
}

/// Decides whether an order fits.
pub(crate) fn decide(ops: &[Op<'_>]) -> Decision {
    let mut phases: BTreeMap<u64, Parts<'_>> = BTreeMap::new();
    for op in ops {
        match op.did {
            Did::Refused { seen } if seen < op.token => return Decision::Broken(op.token),
            Did::Refused { seen } => phases.entry(seen).or_default().refused.push(op),
            Did::Wrote(_) | Did::Read(_) => phases.entry(op.token).or_default().accepted.push(op),
            Did::MayWrite(_) | Did::MayRead => phases.entry(op.token).or_default().maybe.push(op),
        }
    }
    let mut values = Values::from([(None, 0)]);
    // The earliest time of all values. It is carried along, so that a long row of phases that may
    // never have happened is visited only once.
    let mut earliest = 0;
    let mut budget = BUDGET;
    for (&token, parts) in &phases {
        if parts.accepted.is_empty() && parts.refused.is_empty() {
            for op in &parts.maybe {
                if let Did::MayWrite(value) = op.did {
                    offer(&mut values, Some(value), earliest.max(op.begin));
                }
            }
            continue;
        }
        let Some(next) = through(token, parts, &values, &mut budget) else { return Decision::Undecided };
        let Some(&first) = next.values().min() else { return Decision::Broken(token) };
        values = next;
        earliest = first;
    }
    Decision::Fits
}

/// The values that the register may have after this phase; none if the phase is impossible. `None`:
/// too many states to visit.
fn through(token: u64, parts: &Parts<'_>, values: &Values, budget: &mut u64) -> Option<Values> {
    let showed = if parts.accepted.is_empty() { &parts.maybe } else { &parts.accepted };
    let holders: HashSet<Holder<'_>> = showed.iter().map(|op| op.holder).collect();
    let mut next = Values::new();
    if !parts.accepted.is_empty() && holders.len() > 1 {
        return Some(next);
    }
    for holder in holders {
        // A holder's own token is never refused.
        if parts.refused.iter().any(|op| op.token == token && op.holder == holder) {
            continue;
        }
        let maybe = parts.maybe.iter().copied().filter(|op| op.holder == holder);
        let phase = Phase::new(&parts.accepted, maybe, &parts.refused);
        run(&phase, values, &mut next, budget)?;
    }
    Some(next)
}
