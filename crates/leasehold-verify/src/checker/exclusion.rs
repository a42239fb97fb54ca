//! Checks that no two holders with conflicting modes hold a lock at once.

use super::format::{describe_fault_at, format_count, format_duration, format_quantity, format_time, format_worker};
use super::timeline::{Hold, Timeline};
use super::{GuaranteeResult, ViolationLog};
use crate::history::Mode;
use crate::verdict::Guarantee;

/// Checks the holds of every lock.
pub(crate) fn check(timeline: &Timeline<'_>) -> GuaranteeResult {
    let mut log = ViolationLog::new(Guarantee::Exclusion);
    let locks = timeline.holds_by_lock();
    for holds in locks.values() {
        check_lock(timeline, holds, &mut log);
    }
    let figure = match log.checked_count {
        0 => "no holds".to_owned(),
        n => {
            let overlapping = format_count(log.violation_count());
            format!(
                "{} of {}, {overlapping} overlapping another",
                format_quantity(n, "hold"),
                format_quantity(locks.len() as u64, "lock")
            )
        }
    };
    log.into_result(figure)
}

/// Checks the holds of one lock, which are ordered by the time of the grant.
fn check_lock(timeline: &Timeline<'_>, holds: &[&Hold<'_>], log: &mut ViolationLog) {
    // The earlier holds that their holders can still rely on. Shared ones are separate, because
    // they need not be compared with each other.
    let mut exclusive_holds: Vec<&Hold<'_>> = Vec::new();
    let mut shared_holds: Vec<&Hold<'_>> = Vec::new();
    for &hold in holds {
        if matches!(hold.mode, Mode::Permits { .. }) {
            continue;
        }
        log.checked_count += 1;
        if hold.relied_on_until <= hold.granted_at {
            continue;
        }
        exclusive_holds.retain(|other| other.relied_on_until > hold.granted_at);
        let exclusive = hold.mode == Mode::Exclusive;
        if exclusive {
            shared_holds.retain(|other| other.relied_on_until > hold.granted_at);
        }
        let others = exclusive_holds.iter().chain(shared_holds.iter().filter(|_| exclusive));
        let worst = others.filter(|other| other.conflicts_with(hold)).max_by_key(|other| other.relied_on_until);
        if let Some(other) = worst {
            report_overlap(timeline, other, hold, log);
        }
        if exclusive { exclusive_holds.push(hold) } else { shared_holds.push(hold) }
    }
}

fn report_overlap(timeline: &Timeline<'_>, first: &Hold<'_>, second: &Hold<'_>, log: &mut ViolationLog) {
    let to = first.relied_on_until.min(second.relied_on_until);
    let from = second.granted_at;
    let title = format!("two held {:?} for {}", first.lock, format_duration(to - from));
    let details = format!(
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
    log.add_violation((from, to), &[first.worker, second.worker], &[first.op, second.op], title, details);
}

/// The text with its first letter capitalized.
pub(crate) fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
