//! Checks that clients of a server that refuses writes do not reconnect in a tight loop.

use super::story::{Fault, Story};
use super::words::{at, count, counted, long};
use super::{Bench, Judged, SECOND};
use crate::history::{FaultKind, Nanos};
use crate::verdict::Promise;

/// How often a client may connect at first, and in addition for each second of the fault. A client
/// whose backoff does not grow connects some hundred times a second.
const AT_FIRST: u64 = 10;
const PER_SECOND: u64 = 10;

pub(crate) fn check(story: &Story<'_>) -> Judged {
    let mut bench = Bench::new(Promise::Load);
    let mut most = 0;
    for fault in &story.faults {
        // During the other faults the test itself cuts connections.
        let (Some(connections), Some(to), FaultKind::ReadOnly) = (fault.connections, fault.to, fault.kind) else {
            continue;
        };
        bench.checked += 1;
        most = most.max(connections);
        let bound = bound(story, to - fault.from);
        if connections > bound {
            report(fault, (connections, bound), to, &mut bench);
        }
    }
    let figure = match bench.checked {
        0 => "no server refused writes".to_owned(),
        n => format!("{}, at most {}", counted(n, "fault"), counted(most, "connection")),
    };
    bench.judged(figure)
}

fn bound(story: &Story<'_>, lasted: Nanos) -> u64 {
    let each = AT_FIRST + PER_SECOND.saturating_mul(lasted.div_ceil(SECOND));
    each.saturating_mul(u64::from(story.header.lanes.max(1)))
}

fn report(fault: &Fault<'_>, (connections, bound): (u64, u64), to: Nanos, bench: &mut Bench) {
    let title = format!("{} during fault {} ({})", counted(connections, "connection"), fault.number, fault.kind);
    let words = format!(
        "Fault {} ({} of {}) went on from {} for {}. The servers accepted {} meanwhile; {} would have been enough for clients whose pauses grow.",
        fault.number,
        fault.kind,
        fault.target,
        at(fault.from),
        long(to - fault.from),
        counted(connections, "connection"),
        count(bound),
    );
    bench.broken((fault.from, to), &[], &[], title, words);
}
