//! Checks that the holders of a semaphore never have more permits than its limit.

use std::collections::BTreeMap;

use super::format::{describe_fault_at, format_count, format_quantity, format_time};
use super::timeline::{Hold, Timeline};
use super::{GuaranteeResult, ViolationLog};
use crate::history::{Mode, RunNanos};
use crate::verdict::Guarantee;

/// Checks the holds of every semaphore.
pub(crate) fn check(timeline: &Timeline<'_>) -> GuaranteeResult {
    let mut log = ViolationLog::new(Guarantee::Permits);
    let (mut most, mut limit) = (0, 0);
    for holds in timeline.holds_by_lock().values() {
        let out = check_lock(timeline, holds, &mut log);
        if out.1 > 0 && (limit == 0 || out.0.saturating_mul(limit) > most * out.1) {
            (most, limit) = out;
        }
    }
    let figure = match log.checked_count {
        0 => "no permits were requested".to_owned(),
        n => format!(
            "{} of permits, at most {} of {} in use at once",
            format_quantity(n, "grant"),
            format_count(most),
            format_count(limit)
        ),
    };
    log.into_result(figure)
}

/// Checks one semaphore; returns the most permits that were in use at once, and the limit.
fn check_lock(timeline: &Timeline<'_>, holds: &[&Hold<'_>], log: &mut ViolationLog) -> (u64, u64) {
    let permits = |hold: &Hold<'_>| if let Mode::Permits { n, limit } = hold.mode { Some((n, limit)) } else { None };
    // If the limits disagree, only a sum above the highest is certainly a violation.
    let limit = holds.iter().filter_map(|hold| permits(hold)).map(|(_, limit)| u64::from(limit)).max().unwrap_or(0);
    let mut out: BTreeMap<(RunNanos, u64), (&Hold<'_>, u64)> = BTreeMap::new();
    let mut most = 0;
    for &hold in holds {
        let Some((n, _)) = permits(hold) else { continue };
        log.checked_count += 1;
        if hold.relied_on_until <= hold.granted_at {
            continue;
        }
        while out.first_key_value().is_some_and(|(key, _)| key.0 <= hold.granted_at) {
            out.pop_first();
        }
        let before = permits_in_use(&out);
        out.insert((hold.relied_on_until, hold.op), (hold, u64::from(n)));
        let sum = permits_in_use(&out);
        most = most.max(sum);
        if sum > limit && sum > before {
            // The report names at most seven of the other holds.
            let others = out.values().map(|(hold, _)| *hold).filter(|other| other.op != hold.op).take(7);
            let with: Vec<&Hold<'_>> = others.chain([hold]).collect();
            report_excess(timeline, hold, &with, (sum, limit, out.len() - 1), log);
        }
    }
    (most, limit)
}

/// The number of permits that these holds use. A re-entry needs no further permits, so of the holds
/// of one owner with one token only the largest counts.
fn permits_in_use(holds: &BTreeMap<(RunNanos, u64), (&Hold<'_>, u64)>) -> u64 {
    let mut owned: BTreeMap<(&str, u64), u64> = BTreeMap::new();
    let mut sum = 0_u64;
    for (hold, n) in holds.values() {
        match hold.owner {
            Some(owner) => {
                let most = owned.entry((owner, hold.token)).or_default();
                *most = (*most).max(*n);
            }
            None => sum += n,
        }
    }
    sum + owned.values().sum::<u64>()
}

/// Reports that the grant of `last` put `sum` permits into use, above the limit. `holds` are
/// examples of the holds, and `others` is how many there are beside `last`.
fn report_excess(
    timeline: &Timeline<'_>,
    last: &Hold<'_>,
    holds: &[&Hold<'_>],
    (sum, limit, others): (u64, u64, usize),
    log: &mut ViolationLog,
) {
    let to = holds.iter().map(|hold| hold.relied_on_until).min().unwrap_or(last.granted_at);
    let tokens: Vec<String> = holds.iter().map(|hold| hold.token.to_string()).collect();
    let title = format!("{} of {} permits of {:?} were in use", format_count(sum), format_count(limit), last.lock);
    let details = format!(
        "At {} worker {} was granted permits of {:?} with token {}. With those of {} that could be relied on then, {} were in use; the limit is {}. The tokens include {}. {}",
        format_time(last.granted_at),
        last.worker,
        last.lock,
        last.token,
        format_quantity(others as u64, "other hold"),
        format_count(sum),
        format_count(limit),
        tokens.join(", "),
        describe_fault_at(timeline, last.granted_at),
    );
    let workers: Vec<_> = holds.iter().map(|hold| hold.worker).collect();
    let ops: Vec<_> = holds.iter().map(|hold| hold.op).collect();
    log.add_violation((last.granted_at, to), &workers, &ops, title, details);
}
