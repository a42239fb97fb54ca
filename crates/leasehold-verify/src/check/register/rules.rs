//! Describes plain violations in a fenced register's history. Each rule follows from the
//! register's. A violation that only the exact decision finds is described in general terms.

use std::collections::{BTreeMap, HashMap};

use super::{Did, Op};
use crate::check::Bench;
use crate::check::exclusion::capital;
use crate::check::story::Story;
use crate::check::words::{at, fault_at, who};
use crate::history::Nanos;

/// Operations accepted after a higher token, or after the same token from another holder; returns
/// how many.
pub(super) fn stale(story: &Story<'_>, name: &str, ops: &[Op<'_>], bench: &mut Bench) -> u64 {
    let before = bench.wrong();
    let mut begun: Vec<&Op<'_>> = ops.iter().filter(|op| op.accepted()).collect();
    let mut ended = begun.clone();
    begun.sort_by_key(|op| (op.begin, op.op));
    ended.sort_by_key(|op| (op.end, op.op));
    let mut ended = ended.into_iter().peekable();
    let mut highest: Option<&Op<'_>> = None;
    let mut first_of: HashMap<u64, &Op<'_>> = HashMap::new();
    for op in begun {
        while let Some(one) = ended.next_if(|one| one.end < op.begin) {
            if highest.is_none_or(|highest| highest.token < one.token) {
                highest = Some(one);
            }
        }
        let first = *first_of.entry(op.token).or_insert(op);
        let (other, how) = match highest {
            Some(highest) if highest.token > op.token => (highest, "the lower"),
            _ if first.holder != op.holder => (first, "the same"),
            _ => continue,
        };
        let title = format!("register {name:?} accepted token {} after {}", op.token, other.token);
        let words = format!(
            "{} {} register {name:?} with token {} from {} to {}. {} {} it from {} to {} with {how} token {} of another hold, and was not refused. {}",
            capital(&who(story, other.worker)),
            verb(other),
            other.token,
            at(other.begin),
            at(other.end),
            capital(&who(story, op.worker)),
            verb(op),
            at(op.begin),
            at(op.end),
            op.token,
            fault_at(story, op.begin),
        );
        let span = (other.begin.min(op.begin), op.end.max(other.end));
        bench.broken(span, &[other.worker, op.worker], &[other.op, op.op], title, words);
    }
    bench.wrong() - before
}

/// Refusals without a reason, and impossible values; returns how many.
pub(super) fn others(story: &Story<'_>, name: &str, ops: &[Op<'_>], bench: &mut Bench) -> u64 {
    let before = bench.wrong();
    // The operations that presented each token, in the order of their beginnings.
    let mut shown: BTreeMap<u64, Vec<&Op<'_>>> = BTreeMap::new();
    let mut writes: HashMap<u64, Vec<&Op<'_>>> = HashMap::new();
    let mut accepted: Vec<(u64, &Op<'_>)> = Vec::new();
    for op in ops {
        if op.accepted() || op.maybe() {
            shown.entry(op.token).or_default().push(op);
        }
        if let Some(value) = op.writes() {
            writes.entry(value).or_default().push(op);
        }
        if let Did::Wrote(_) = op.did {
            accepted.push((op.token, op));
        }
    }
    for list in shown.values_mut() {
        list.sort_by_key(|op| op.begin);
    }
    accepted.sort_by_key(|&(token, op)| (token, op.begin));
    for op in ops {
        match op.did {
            Did::Refused { seen } => {
                let list = shown.get(&seen).map_or(&[][..], Vec::as_slice);
                let begun = list.iter().take_while(|one| one.begin <= op.end);
                let mut reasons = begun.filter(|one| seen > op.token || (seen == op.token && one.holder != op.holder));
                if reasons.next().is_none() {
                    refused(story, name, op, seen, bench);
                }
            }
            Did::Read(value) => {
                let below = accepted.partition_point(|&(token, _)| token < op.token);
                let newest = below.checked_sub(1).and_then(|last| accepted.get(last)).map(|&(_, op)| op);
                read(story, name, op, value, value.and_then(|value| writes.get(&value)), newest, bench);
            }
            _ => {}
        }
    }
    bench.wrong() - before
}

fn refused(story: &Story<'_>, name: &str, op: &Op<'_>, seen: u64, bench: &mut Bench) {
    let title = format!("register {name:?} refused token {} without a reason", op.token);
    let words = format!(
        "{} showed token {} to register {name:?} from {} to {} and was refused, as token {seen} had been there. But nobody else can have shown \
         a token by then for which this one had to be refused. {}",
        capital(&who(story, op.worker)),
        op.token,
        at(op.begin),
        at(op.end),
        fault_at(story, op.begin),
    );
    bench.broken((op.begin, op.end), &[op.worker], &[op.op], title, words);
}

fn read(
    story: &Story<'_>,
    name: &str,
    op: &Op<'_>,
    value: Option<u64>,
    writes: Option<&Vec<&Op<'_>>>,
    newest: Option<&Op<'_>>,
    bench: &mut Bench,
) {
    let possible = |write: &&&Op<'_>| write.token <= op.token && write.begin <= op.end;
    let source = writes.and_then(|writes| writes.iter().filter(possible).max_by_key(|write| write.token));
    let said = value.map_or_else(|| "nothing".to_owned(), |value| value.to_string());
    let reader = capital(&who(story, op.worker));
    let (from, to) = (at(op.begin), at(op.end));
    let fault = fault_at(story, op.begin);
    if value.is_some() && source.is_none() {
        let title = format!("register {name:?} had a value that nobody had written");
        let words = format!(
            "{reader} read {said} from register {name:?} with token {} from {from} to {to}. Nobody with such a token or a lower one can have \
             written that by then. {fault}",
            op.token
        );
        bench.broken((op.begin, op.end), &[op.worker], &[op.op], title, words);
        return;
    }
    // An operation that only began later is a stale one, and reported as such.
    let newer = |newest: &&Op<'_>| newest.begin <= op.end && source.is_none_or(|source| source.token < newest.token);
    let Some(newest) = newest.filter(newer) else { return };
    let title = format!("register {name:?} lost a write");
    let words = format!(
        "{} wrote to register {name:?} with token {} from {} to {}, and that was accepted. {reader} read it with the higher token {} from {from} \
         to {to} and got {said}, which is older. {fault}",
        capital(&who(story, newest.worker)),
        newest.token,
        at(newest.begin),
        at(newest.end),
        op.token,
    );
    let span = (newest.begin.min(op.begin), op.end.max(newest.end));
    bench.broken(span, &[newest.worker, op.worker], &[newest.op, op.op], title, words);
}

/// Reports that no order fits, and no single rule explains why.
pub(super) fn unexplained(story: &Story<'_>, name: &str, ops: &[Op<'_>], token: u64, bench: &mut Bench) {
    let within = |op: &&Op<'_>| op.token == token || matches!(op.did, Did::Refused { seen } if seen == token);
    let with: Vec<&Op<'_>> = ops.iter().filter(within).collect();
    let from = with.iter().map(|op| op.begin).min().unwrap_or(0);
    let ends = with.iter().map(|op| op.end).filter(|&end| end != Nanos::MAX);
    let to = ends.max().unwrap_or(from);
    let workers: Vec<_> = with.iter().map(|op| op.worker).collect();
    let numbers: Vec<_> = with.iter().map(|op| op.op).take(20).collect();
    let title = format!("register {name:?} is not linearizable at token {token}");
    let words = format!(
        "No order of the operations on register {name:?} fits their times, their tokens and what they answered. Up to token {token} there is \
         one; with what was done under that token, between {} and {}, there is none. {}",
        at(from),
        at(to),
        fault_at(story, from),
    );
    bench.broken((from, to), &workers, &numbers, title, words);
}

fn verb(op: &Op<'_>) -> &'static str {
    if op.writes().is_some() { "wrote to" } else { "read" }
}
