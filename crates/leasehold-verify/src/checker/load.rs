//! Checks that clients of a server that refuses writes do not reconnect in a tight loop.

use super::format::{format_count, format_duration, format_quantity, format_time};
use super::timeline::{Fault, Timeline};
use super::{GuaranteeResult, SECOND, ViolationLog};
use crate::history::{FaultKind, RunNanos};
use crate::verdict::Guarantee;

/// How many connections a client may open in addition to those of `CONNECTIONS_PER_SECOND`.
const INITIAL_CONNECTIONS: u64 = 10;
/// How many connections a client may open for each second of the fault. A client whose back-off
/// does not grow opens hundreds.
const CONNECTIONS_PER_SECOND: u64 = 10;

/// Checks the connections during every fault `read-only`.
pub(crate) fn check(timeline: &Timeline<'_>) -> GuaranteeResult {
    let mut log = ViolationLog::new(Guarantee::Load);
    let mut most = 0;
    for fault in &timeline.faults {
        // During other faults the test itself cuts connections, so that clients must reconnect.
        let (Some(connections), Some(to), FaultKind::ReadOnly) = (fault.connection_count, fault.to, fault.kind) else {
            continue;
        };
        log.checked_count += 1;
        most = most.max(connections);
        let bound = max_connections(timeline, to - fault.from);
        if connections > bound {
            report_connections(fault, (connections, bound), to, &mut log);
        }
    }
    let figure = match log.checked_count {
        0 => "no server refused writes".to_owned(),
        n => format!("{}, at most {}", format_quantity(n, "fault"), format_quantity(most, "connection")),
    };
    log.into_result(figure)
}

/// The most connections that all clients together may open during a fault of this duration.
fn max_connections(timeline: &Timeline<'_>, duration: RunNanos) -> u64 {
    let each = INITIAL_CONNECTIONS + CONNECTIONS_PER_SECOND.saturating_mul(duration.div_ceil(SECOND));
    each.saturating_mul(u64::from(timeline.header.lanes.max(1)))
}

fn report_connections(fault: &Fault<'_>, (connections, bound): (u64, u64), to: RunNanos, log: &mut ViolationLog) {
    let title =
        format!("{} during fault {} ({})", format_quantity(connections, "connection"), fault.number, fault.kind);
    let details = format!(
        "Fault {} ({} of {}) began at {} and lasted {}. The servers accepted {} meanwhile; clients that back off open at most {}.",
        fault.number,
        fault.kind,
        fault.target,
        format_time(fault.from),
        format_duration(to - fault.from),
        format_quantity(connections, "connection"),
        format_count(bound),
    );
    log.add_violation((fault.from, to), &[], &[], title, details);
}
