//! Checks that an owner that re-enters its lock keeps its token.

use std::collections::BTreeMap;

use super::exclusion::capitalized;
use super::format::{describe_fault_at, format_count, format_time, format_worker};
use super::timeline::{Hold, Timeline};
use super::{GuaranteeResult, ViolationLog};
use crate::verdict::Guarantee;

/// Checks every re-entry.
pub(crate) fn check(timeline: &Timeline<'_>) -> GuaranteeResult {
    let mut log = ViolationLog::new(Guarantee::Reentry);
    let mut owners: BTreeMap<(&str, &str), Vec<&Hold<'_>>> = BTreeMap::new();
    for hold in &timeline.holds {
        if let Some(owner) = hold.owner {
            owners.entry((hold.lock, owner)).or_default().push(hold);
        }
    }
    for holds in owners.values() {
        let mut open: Vec<&Hold<'_>> = Vec::new();
        for &hold in holds {
            open.retain(|outer| outer.certainly_held_until > hold.granted_at);
            let around = open.iter().filter(|outer| outer.granted_at <= hold.requested_at && outer.mode == hold.mode);
            if let Some(outer) = around.max_by_key(|outer| (outer.token != hold.token, outer.certainly_held_until)) {
                log.checked_count += 1;
                if outer.token != hold.token {
                    report_other_token(timeline, outer, hold, &mut log);
                }
            }
            open.push(hold);
        }
    }
    let figure = match log.checked_count {
        0 => "no re-entries".to_owned(),
        1 => format!("1 re-entry, {} with another token", log.violation_count()),
        n => format!("{} re-entries, {} with another token", format_count(n), format_count(log.violation_count())),
    };
    log.into_result(figure)
}

fn report_other_token(timeline: &Timeline<'_>, outer: &Hold<'_>, hold: &Hold<'_>, log: &mut ViolationLog) {
    let title = format!("a re-entry of {:?} got token {} in place of {}", hold.lock, hold.token, outer.token);
    let details = format!(
        "{} certainly held {:?} with token {} from {} to {}. Meanwhile, at {}, the same owner requested it again and was granted it at {} with token {}. {}",
        capitalized(&format_worker(timeline, outer.worker)),
        hold.lock,
        outer.token,
        format_time(outer.granted_at),
        format_time(outer.certainly_held_until),
        format_time(hold.requested_at),
        format_time(hold.granted_at),
        hold.token,
        describe_fault_at(timeline, hold.granted_at),
    );
    log.add_violation(
        (hold.requested_at, hold.granted_at),
        &[outer.worker, hold.worker],
        &[outer.op, hold.op],
        title,
        details,
    );
}
