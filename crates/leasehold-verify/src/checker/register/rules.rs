//! Finds violations in a fenced register's history that a single rule of the register explains, and
//! describes them. Any other violation gets a general description.

use std::collections::{BTreeMap, HashMap};

use super::{OpEffect, RegisterOp};
use crate::checker::ViolationLog;
use crate::checker::exclusion::capitalized;
use crate::checker::format::{describe_fault_at, format_time, format_worker};
use crate::checker::timeline::Timeline;
use crate::history::RunNanos;

/// Reports operations that the register accepted after a higher token, or after the same token from
/// another holder; returns how many.
pub(super) fn report_stale(timeline: &Timeline<'_>, name: &str, ops: &[RegisterOp<'_>], log: &mut ViolationLog) -> u64 {
    let before = log.violation_count();
    let mut begun: Vec<&RegisterOp<'_>> = ops.iter().filter(|op| op.is_accepted()).collect();
    let mut ended = begun.clone();
    begun.sort_by_key(|op| (op.began_at, op.op_id));
    ended.sort_by_key(|op| (op.ended_at, op.op_id));
    let mut ended = ended.into_iter().peekable();
    let mut highest: Option<&RegisterOp<'_>> = None;
    let mut first_of: HashMap<u64, &RegisterOp<'_>> = HashMap::new();
    for op in begun {
        while let Some(one) = ended.next_if(|one| one.ended_at < op.began_at) {
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
        let details = format!(
            "{} {} register {name:?} with token {} from {} to {}. {} {} it from {} to {} with {how} token {} of another hold, and the register accepted it. {}",
            capitalized(&format_worker(timeline, other.worker)),
            verb(other),
            other.token,
            format_time(other.began_at),
            format_time(other.ended_at),
            capitalized(&format_worker(timeline, op.worker)),
            verb(op),
            format_time(op.began_at),
            format_time(op.ended_at),
            op.token,
            describe_fault_at(timeline, op.began_at),
        );
        let span = (other.began_at.min(op.began_at), op.ended_at.max(other.ended_at));
        log.add_violation(span, &[other.worker, op.worker], &[other.op_id, op.op_id], title, details);
    }
    log.violation_count() - before
}

/// Reports refusals without a reason, and reads of values that the register cannot have had;
/// returns how many.
pub(super) fn report_impossible(
    timeline: &Timeline<'_>,
    name: &str,
    ops: &[RegisterOp<'_>],
    log: &mut ViolationLog,
) -> u64 {
    let before = log.violation_count();
    // The operations that presented each token, in the order of their beginnings.
    let mut presented: BTreeMap<u64, Vec<&RegisterOp<'_>>> = BTreeMap::new();
    let mut writes: HashMap<u64, Vec<&RegisterOp<'_>>> = HashMap::new();
    let mut accepted: Vec<(u64, &RegisterOp<'_>)> = Vec::new();
    for op in ops {
        if op.is_accepted() || op.is_uncertain() {
            presented.entry(op.token).or_default().push(op);
        }
        if let Some(value) = op.written_value() {
            writes.entry(value).or_default().push(op);
        }
        if let OpEffect::Written(_) = op.effect {
            accepted.push((op.token, op));
        }
    }
    for list in presented.values_mut() {
        list.sort_by_key(|op| op.began_at);
    }
    accepted.sort_by_key(|&(token, op)| (token, op.began_at));
    for op in ops {
        match op.effect {
            OpEffect::Refused { seen } => {
                let list = presented.get(&seen).map_or(&[][..], Vec::as_slice);
                let begun = list.iter().take_while(|one| one.began_at <= op.ended_at);
                let mut reasons = begun.filter(|one| seen > op.token || (seen == op.token && one.holder != op.holder));
                if reasons.next().is_none() {
                    report_refusal(timeline, name, op, seen, log);
                }
            }
            OpEffect::Read(value) => {
                let below = accepted.partition_point(|&(token, _)| token < op.token);
                let newest = below.checked_sub(1).and_then(|last| accepted.get(last)).map(|&(_, op)| op);
                check_read(timeline, name, op, value, value.and_then(|value| writes.get(&value)), newest, log);
            }
            _ => {}
        }
    }
    log.violation_count() - before
}

/// Reports a refusal because of token `seen`, which no operation can have presented by then.
fn report_refusal(timeline: &Timeline<'_>, name: &str, op: &RegisterOp<'_>, seen: u64, log: &mut ViolationLog) {
    let title = format!("register {name:?} refused token {} without a reason", op.token);
    let details = format!(
        "{} presented token {} to register {name:?} from {} to {} and was refused because of token {seen}. But no other hold can have presented a token by then that is a reason to refuse. {}",
        capitalized(&format_worker(timeline, op.worker)),
        op.token,
        format_time(op.began_at),
        format_time(op.ended_at),
        describe_fault_at(timeline, op.began_at),
    );
    log.add_violation((op.began_at, op.ended_at), &[op.worker], &[op.op_id], title, details);
}

/// Reports a read of a value that no allowed operation wrote, or that a newer accepted write had
/// replaced. `writes` are the writes of the value read, `newest` is the accepted write with the
/// highest token below the read's.
fn check_read(
    timeline: &Timeline<'_>,
    name: &str,
    op: &RegisterOp<'_>,
    value: Option<u64>,
    writes: Option<&Vec<&RegisterOp<'_>>>,
    newest: Option<&RegisterOp<'_>>,
    log: &mut ViolationLog,
) {
    let possible = |write: &&&RegisterOp<'_>| write.token <= op.token && write.began_at <= op.ended_at;
    let source = writes.and_then(|writes| writes.iter().filter(possible).max_by_key(|write| write.token));
    let value_read = value.map_or_else(|| "no value".to_owned(), |value| value.to_string());
    let reader = capitalized(&format_worker(timeline, op.worker));
    let (from, to) = (format_time(op.began_at), format_time(op.ended_at));
    let fault = describe_fault_at(timeline, op.began_at);
    if value.is_some() && source.is_none() {
        let title = format!("register {name:?} had a value that no operation wrote");
        let details = format!(
            "{reader} read {value_read} from register {name:?} with token {} from {from} to {to}. No hold with this token or a lower one can have written it by then. {fault}",
            op.token
        );
        log.add_violation((op.began_at, op.ended_at), &[op.worker], &[op.op_id], title, details);
        return;
    }
    // A write that began after the read ended is itself stale, because its token is lower. Another
    // rule reports it.
    let newer = |newest: &&RegisterOp<'_>| {
        newest.began_at <= op.ended_at && source.is_none_or(|source| source.token < newest.token)
    };
    let Some(newest) = newest.filter(newer) else { return };
    let title = format!("register {name:?} lost a write");
    let details = format!(
        "{} wrote to register {name:?} with token {} from {} to {}, and the register accepted it. {reader} read it with the higher token {} from {from} to {to} and got {value_read}, which is older. {fault}",
        capitalized(&format_worker(timeline, newest.worker)),
        newest.token,
        format_time(newest.began_at),
        format_time(newest.ended_at),
        op.token,
    );
    let span = (newest.began_at.min(op.began_at), op.ended_at.max(newest.ended_at));
    log.add_violation(span, &[newest.worker, op.worker], &[newest.op_id, op.op_id], title, details);
}

/// Reports that the operations up to `token` have no possible order, for which no single rule was
/// found.
pub(super) fn report_not_linearizable(
    timeline: &Timeline<'_>,
    name: &str,
    ops: &[RegisterOp<'_>],
    token: u64,
    log: &mut ViolationLog,
) {
    let within =
        |op: &&RegisterOp<'_>| op.token == token || matches!(op.effect, OpEffect::Refused { seen } if seen == token);
    let with: Vec<&RegisterOp<'_>> = ops.iter().filter(within).collect();
    let from = with.iter().map(|op| op.began_at).min().unwrap_or(0);
    let ends = with.iter().map(|op| op.ended_at).filter(|&end| end != RunNanos::MAX);
    let to = ends.max().unwrap_or(from);
    let workers: Vec<_> = with.iter().map(|op| op.worker).collect();
    let numbers: Vec<_> = with.iter().map(|op| op.op_id).take(20).collect();
    let title = format!("register {name:?} is not linearizable at token {token}");
    let details = format!(
        "No order of the operations on register {name:?} fits their times, tokens and results. The operations below token {token} have one; with those under it, between {} and {}, there is none. {}",
        format_time(from),
        format_time(to),
        describe_fault_at(timeline, from),
    );
    log.add_violation((from, to), &workers, &numbers, title, details);
}

fn verb(op: &RegisterOp<'_>) -> &'static str {
    if op.written_value().is_some() { "wrote to" } else { "read" }
}
