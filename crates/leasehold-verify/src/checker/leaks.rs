//! Checks that no lock is held or awaited after all workers have ended.

use super::format::{describe_fault_at, format_count, format_quantity, format_time};
use super::timeline::Timeline;
use super::{GuaranteeResult, ViolationLog};
use crate::verdict::Guarantee;

/// Checks the inspection after the end of the workers.
pub(crate) fn check(timeline: &Timeline<'_>) -> GuaranteeResult {
    let mut log = ViolationLog::new(Guarantee::Leaks);
    let left = timeline.leftovers.len() as u64;
    log.checked_count = timeline.clean_lock_count.unwrap_or(0).saturating_add(left);
    for (t, lock, what) in &timeline.leftovers {
        let title = format!("{lock:?} was left behind");
        let details = format!(
            "At {}, some TTLs after all workers had ended, {lock:?} was left: {what}. {}",
            format_time(*t),
            describe_fault_at(timeline, *t)
        );
        log.add_violation((*t, *t), &[], &[], title, details);
    }
    let was_inspected = timeline.clean_lock_count.is_some() || left > 0;
    let figure = match was_inspected {
        true => format!("{} inspected, {} left", format_quantity(log.checked_count, "lock"), format_count(left)),
        false => "not inspected".to_owned(),
    };
    let mut result = log.into_result(figure);
    if timeline.clean_lock_count.is_some() && left == 0 {
        result.finding.state = crate::verdict::FindingStatus::Kept;
    }
    result
}
