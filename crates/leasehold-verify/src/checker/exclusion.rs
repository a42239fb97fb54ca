//! Checks that no two claims whose modes conflict hold a lock at once.

use super::format::{describe_fault_at, format_count, format_duration, format_quantity, format_time, format_worker};
use super::timeline::{Hold, Timeline};
use super::{GuaranteeResult, ViolationLog};
use crate::history::Mode;
use crate::verdict::Guarantee;

pub(crate) fn check(timeline: &Timeline<'_>) -> GuaranteeResult {
    let mut log = ViolationLog::new(Guarantee::Exclusion);
    let locks = timeline.holds_by_lock();
    for holds in locks.values() {
        check_lock(timeline, holds, &mut log);
    }
    let figure = match log.checked_count {
        0 => "no holds".to_owned(),
        n => {
            let at_once = format_count(log.violation_count());
            format!(
                "{} of {}, {at_once} at once with another",
                format_quantity(n, "hold"),
                format_quantity(locks.len() as u64, "lock")
            )
        }
    };
    log.into_result(figure)
}

fn check_lock(timeline: &Timeline<'_>, holds: &[&Hold<'_>], log: &mut ViolationLog) {
    // The holds that are still active. Readers are stored separately: they need not be compared
    // with each other.
    let mut alone: Vec<&Hold<'_>> = Vec::new();
    let mut shared: Vec<&Hold<'_>> = Vec::new();
    for &hold in holds {
        if matches!(hold.mode, Mode::Permits { .. }) {
            continue;
        }
        log.checked_count += 1;
        if hold.relied_on_until <= hold.granted_at {
            continue;
        }
        alone.retain(|other| other.relied_on_until > hold.granted_at);
        let exclusive = hold.mode == Mode::Exclusive;
        if exclusive {
            shared.retain(|other| other.relied_on_until > hold.granted_at);
        }
        let others = alone.iter().chain(shared.iter().filter(|_| exclusive));
        let worst = others.filter(|other| other.conflicts_with(hold)).max_by_key(|other| other.relied_on_until);
        if let Some(other) = worst {
            report(timeline, other, hold, log);
        }
        if exclusive { alone.push(hold) } else { shared.push(hold) }
    }
}

fn report(timeline: &Timeline<'_>, first: &Hold<'_>, second: &Hold<'_>, log: &mut ViolationLog) {
    let to = first.relied_on_until.min(second.relied_on_until);
    let from = second.granted_at;
    let title = format!("two held {:?} for {}", first.lock, format_duration(to - from));
    let words = format!(
        "{} was granted {:?} at {} with token {} and could rely on it until {}. {} was granted it at {} with token {} and could rely on it \
         until {}. {}",
        capitalized(&format_worker(timeline, first.worker)),
        first.lock,
        format_time(first.granted_at),
        first.token,
        format_time(first.relied_on_until),
        capitalized(&format_worker(timeline, second.worker)),
        format_time(second.granted_at),
        second.token,
        format_time(second.relied_on_until),
        describe_fault_at(timeline, from),
    );
    log.add_violation((from, to), &[first.worker, second.worker], &[first.op, second.op], title, words);
}

/// Capitalizes the first letter.
pub(crate) fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
