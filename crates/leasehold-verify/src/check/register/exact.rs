//! Whether a fenced register's history is linearizable, decided exactly.
//!
//! The register's rule: it keeps the highest token that it was shown, who showed it, and a value. A write or read with token `t` of holder
//! `h` is accepted if `t` is higher, or the same of the same holder; then `t` and `h` are kept. Else it is refused, and the token that is
//! kept is told.
//!
//! So in any order that fits, the operations come in *phases*, one for each token, in the order of the tokens: what was accepted belongs
//! to the phase of its own token, and what was refused to that of the token that it was told. Only within a phase is there anything to
//! search, and a phase is what one holder did. From phase to phase we carry which values the register may have, and for each the earliest
//! time by which everything so far may have been done.
//!
//! What may have been done (an unknown outcome, or none) has no end: it can be put after everything, which is the same as never. So it is
//! only put in where it is needed.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::phase::{Phase, run};
use super::{Did, Holder, Op};
use crate::history::Nanos;

/// How many states are looked at before it is left undecided.
const BUDGET: u64 = 1_000_000;

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// There is an order that fits.
    Fits,
    /// There is none; it fails in the phase of this token.
    Broken(u64),
    /// There was too much to look at.
    Undecided,
}

/// Which values the register may have, with the earliest time for each.
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

/// Decides.
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
    // The earliest of them all, so that a long row of phases that may never have been is gone through once.
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

/// What the register may have after this phase; nothing if the phase cannot have been. `None`: too much to look at.
fn through(token: u64, parts: &Parts<'_>, values: &Values, budget: &mut u64) -> Option<Values> {
    let showed = if parts.accepted.is_empty() { &parts.maybe } else { &parts.accepted };
    let holders: HashSet<Holder<'_>> = showed.iter().map(|op| op.holder).collect();
    let mut next = Values::new();
    if !parts.accepted.is_empty() && holders.len() > 1 {
        return Some(next);
    }
    for holder in holders {
        // Nobody is refused for its own token.
        if parts.refused.iter().any(|op| op.token == token && op.holder == holder) {
            continue;
        }
        let maybe = parts.maybe.iter().copied().filter(|op| op.holder == holder);
        let phase = Phase::new(&parts.accepted, maybe, &parts.refused);
        run(&phase, values, &mut next, budget)?;
    }
    Some(next)
}
