//! Checks that no increment of a counter is lost.

use std::collections::{BTreeMap, HashMap};

use super::exclusion::capitalized;
use super::format::{describe_fault_at, format_count, format_quantity, format_time, format_worker};
use super::timeline::{Invocation, Timeline};
use super::{GuaranteeResult, ViolationLog};
use crate::history::{Call, OpId, Outcome, RunNanos, Workload};
use crate::verdict::Guarantee;

/// What the calls so far show about one counter.
#[derive(Default)]
struct Counter<'a> {
    /// The accepted writes, by value.
    writes_by_value: HashMap<u64, &'a Invocation<'a>>,
    /// How many writes were accepted.
    accepted_count: u64,
    /// Whether there are writes with an unknown outcome.
    has_unknown_writes: bool,
    /// The highest value that was read or written.
    highest_value: u64,
    /// When the last accepted write ended.
    last_write_at: RunNanos,
    /// The last value that each holder read and has not overwritten yet.
    read_values: HashMap<OpId, u64>,
    /// Whether a value was written twice.
    has_duplicate: bool,
}

/// Checks the counters of the workload `counter`.
pub(crate) fn check(timeline: &Timeline<'_>) -> GuaranteeResult {
    let mut log = ViolationLog::new(Guarantee::Counter);
    if timeline.header.workload != Workload::Counter {
        return log.into_result("no counter was used".to_owned());
    }
    let mut counters: BTreeMap<&str, Counter<'_>> = BTreeMap::new();
    for invocation in effect_order(timeline) {
        let (Call::Write { register, .. } | Call::Read { register, .. }) = invocation.call else { continue };
        apply_call(timeline, register, counters.entry(register).or_default(), invocation, &mut log);
    }
    let (mut accepted, mut highest) = (0, 0);
    for (name, counter) in &counters {
        accepted += counter.accepted_count;
        highest += counter.highest_value;
        check_total(timeline, name, counter, &mut log);
    }
    let figure = match accepted {
        0 => "no increments".to_owned(),
        _ => format!("{}, counted up to {}", format_quantity(accepted, "increment"), format_count(highest)),
    };
    log.into_result(figure)
}

/// All calls, reads ordered by their end and the others by their beginning, so that a holder's read
/// comes before its write. Calls at the same time are in the order of their numbers.
fn effect_order<'a>(timeline: &'a Timeline<'a>) -> Vec<&'a Invocation<'a>> {
    let key = |invocation: &&Invocation<'_>| match (invocation.call, invocation.ended) {
        (Call::Read { .. }, Some((end, _))) => (end, invocation.op),
        _ => (invocation.began_at, invocation.op),
    };
    let mut calls: Vec<&Invocation<'_>> = timeline.calls.iter().collect();
    calls.sort_by_key(key);
    calls
}

/// Adds a read or write to the counter, and reports a write that is not one more than was read, or
/// that repeats a value.
fn apply_call<'a>(
    timeline: &Timeline<'_>,
    name: &str,
    counter: &mut Counter<'a>,
    invocation: &'a Invocation<'a>,
    log: &mut ViolationLog,
) {
    let outcome = invocation.ended.map(|(_, outcome)| outcome);
    match (invocation.call, outcome) {
        (Call::Read { hold, .. }, Some(Outcome::Value { value })) => {
            let value = value.unwrap_or(0);
            counter.highest_value = counter.highest_value.max(value);
            counter.read_values.insert(*hold, value);
        }
        (Call::Write { hold, value, .. }, Some(Outcome::Accepted)) => {
            log.checked_count += 1;
            counter.accepted_count += 1;
            counter.highest_value = counter.highest_value.max(*value);
            counter.last_write_at =
                invocation.ended.map_or(invocation.began_at, |(end, _)| end).max(counter.last_write_at);
            if let Some(read) = counter.read_values.remove(hold).filter(|read| read.checked_add(1) != Some(*value)) {
                let title = format!("counter {name:?} went from {} to {}", format_count(read), format_count(*value));
                let details = format!(
                    "{} read {} and wrote {} at {}, and the register accepted it. It should have written one more than it read. {}",
                    capitalized(&format_worker(timeline, invocation.worker_id)),
                    format_count(read),
                    format_count(*value),
                    format_time(invocation.began_at),
                    describe_fault_at(timeline, invocation.began_at),
                );
                log.add_violation(
                    (invocation.began_at, invocation.began_at),
                    &[invocation.worker_id],
                    &[invocation.op],
                    title,
                    details,
                );
            }
            if let Some(first) = counter.writes_by_value.get(value).copied() {
                counter.has_duplicate = true;
                report_duplicate(timeline, name, first, invocation, *value, log);
            } else {
                counter.writes_by_value.insert(*value, invocation);
            }
        }
        (Call::Write { .. }, Some(Outcome::Refused { .. } | Outcome::Failed { .. })) | (Call::Read { .. }, _) => {}
        _ => counter.has_unknown_writes = true,
    }
}

fn report_duplicate(
    timeline: &Timeline<'_>,
    name: &str,
    first: &Invocation<'_>,
    second: &Invocation<'_>,
    value: u64,
    log: &mut ViolationLog,
) {
    let title = format!("counter {name:?} lost an increment: {} written twice", format_count(value));
    let details = format!(
        "{} wrote {} at {}, and {} wrote the same at {}. The register accepted both, so two increments count as one. {}",
        capitalized(&format_worker(timeline, first.worker_id)),
        format_count(value),
        format_time(first.began_at),
        format_worker(timeline, second.worker_id),
        format_time(second.began_at),
        describe_fault_at(timeline, second.began_at),
    );
    log.add_violation(
        (first.began_at, second.began_at),
        &[first.worker_id, second.worker_id],
        &[first.op, second.op],
        title,
        details,
    );
}

/// Checks that the counter's highest value is the number of its accepted increments.
fn check_total(timeline: &Timeline<'_>, name: &str, counter: &Counter<'_>, log: &mut ViolationLog) {
    // If a value was written twice, that has been reported, and explains a total that is too low.
    let short = counter.highest_value < counter.accepted_count && !counter.has_duplicate;
    let long = counter.highest_value > counter.accepted_count && !counter.has_unknown_writes;
    if !short && !long {
        return;
    }
    let title = format!(
        "counter {name:?} reached {} after {}",
        format_count(counter.highest_value),
        format_quantity(counter.accepted_count, "increment")
    );
    let details = format!(
        "Counter {name:?} accepted {} by {}, and its highest value is {}. {} {}",
        format_quantity(counter.accepted_count, "increment"),
        format_time(counter.last_write_at),
        format_count(counter.highest_value),
        if short { "At least one was lost." } else { "No other write can explain that." },
        describe_fault_at(timeline, counter.last_write_at),
    );
    log.add_violation((counter.last_write_at, counter.last_write_at), &[], &[], title, details);
}
