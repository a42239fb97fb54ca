//! Checks that no increment is lost.

use std::collections::{BTreeMap, HashMap};

use super::exclusion::capital;
use super::story::{Made, Story};
use super::words::{at, count, counted, fault_at, who};
use super::{Bench, Judged};
use crate::history::{Call, Nanos, OpId, Outcome, Workload};
use crate::verdict::Promise;

/// The state of one counter.
#[derive(Default)]
struct Counter<'a> {
    /// The accepted writes, by value.
    wrote: HashMap<u64, &'a Made<'a>>,
    accepted: u64,
    /// Whether there are writes with an unknown outcome.
    unsure: bool,
    highest: u64,
    last: Nanos,
    /// The last value that each hold read.
    read: HashMap<OpId, u64>,
    twice: bool,
}

pub(crate) fn check(story: &Story<'_>) -> Judged {
    let mut bench = Bench::new(Promise::Counter);
    if story.header.workload != Workload::Counter {
        return bench.judged("no counter was used".to_owned());
    }
    let mut counters: BTreeMap<&str, Counter<'_>> = BTreeMap::new();
    for made in in_order(story) {
        let (Call::Write { register, .. } | Call::Read { register, .. }) = made.call else { continue };
        add(story, register, counters.entry(register).or_default(), made, &mut bench);
    }
    let (mut accepted, mut highest) = (0, 0);
    for (name, counter) in &counters {
        accepted += counter.accepted;
        highest += counter.highest;
        total(story, name, counter, &mut bench);
    }
    let figure = match accepted {
        0 => "nothing was counted".to_owned(),
        _ => format!("{}, counted up to {}", counted(accepted, "increment"), count(highest)),
    };
    bench.judged(figure)
}

/// Orders reads by their end and writes by their beginning: the value that a hold read comes before
/// its write. Simultaneous calls of a worker are in the order of their numbers.
fn in_order<'a>(story: &'a Story<'a>) -> Vec<&'a Made<'a>> {
    let key = |made: &&Made<'_>| match (made.call, made.end) {
        (Call::Read { .. }, Some((end, _))) => (end, made.op),
        _ => (made.begin, made.op),
    };
    let mut calls: Vec<&Made<'_>> = story.calls.iter().collect();
    calls.sort_by_key(key);
    calls
}

fn add<'a>(story: &Story<'_>, name: &str, counter: &mut Counter<'a>, made: &'a Made<'a>, bench: &mut Bench) {
    let outcome = made.end.map(|(_, outcome)| outcome);
    match (made.call, outcome) {
        (Call::Read { hold, .. }, Some(Outcome::Value { value })) => {
            let value = value.unwrap_or(0);
            counter.highest = counter.highest.max(value);
            counter.read.insert(*hold, value);
        }
        (Call::Write { hold, value, .. }, Some(Outcome::Accepted)) => {
            bench.checked += 1;
            counter.accepted += 1;
            counter.highest = counter.highest.max(*value);
            counter.last = made.end.map_or(made.begin, |(end, _)| end).max(counter.last);
            if let Some(read) = counter.read.remove(hold).filter(|read| read.checked_add(1) != Some(*value)) {
                let title = format!("counter {name:?} went from {} to {}", count(read), count(*value));
                let words = format!(
                    "{} read {} and wrote {} at {}, and that was accepted. It should have written one more than it had read. {}",
                    capital(&who(story, made.worker)),
                    count(read),
                    count(*value),
                    at(made.begin),
                    fault_at(story, made.begin),
                );
                bench.broken((made.begin, made.begin), &[made.worker], &[made.op], title, words);
            }
            if let Some(first) = counter.wrote.get(value).copied() {
                counter.twice = true;
                twice(story, name, first, made, *value, bench);
            } else {
                counter.wrote.insert(*value, made);
            }
        }
        (Call::Write { .. }, Some(Outcome::Refused { .. } | Outcome::Failed { .. })) | (Call::Read { .. }, _) => {}
        _ => counter.unsure = true,
    }
}

fn twice(story: &Story<'_>, name: &str, first: &Made<'_>, second: &Made<'_>, value: u64, bench: &mut Bench) {
    let title = format!("counter {name:?} lost an increment: {} was written twice", count(value));
    let words = format!(
        "{} wrote {} at {}, and {} wrote the same at {}. Both were accepted, so that two increments count as one. {}",
        capital(&who(story, first.worker)),
        count(value),
        at(first.begin),
        who(story, second.worker),
        at(second.begin),
        fault_at(story, second.begin),
    );
    bench.broken((first.begin, second.begin), &[first.worker, second.worker], &[first.op, second.op], title, words);
}

fn total(story: &Story<'_>, name: &str, counter: &Counter<'_>, bench: &mut Bench) {
    // A value that was written twice is a violation already.
    let short = counter.highest < counter.accepted && !counter.twice;
    let long = counter.highest > counter.accepted && !counter.unsure;
    if !short && !long {
        return;
    }
    let title =
        format!("counter {name:?} came to {} after {}", count(counter.highest), counted(counter.accepted, "increment"));
    let words = format!(
        "{} of counter {name:?} were accepted by {}, and its highest value is {}. {} {}",
        counted(counter.accepted, "increment"),
        at(counter.last),
        count(counter.highest),
        if short { "So at least one was lost." } else { "No other write can explain that." },
        fault_at(story, counter.last),
    );
    bench.broken((counter.last, counter.last), &[], &[], title, words);
}
