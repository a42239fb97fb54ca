//! Finds the stale writes that a register without token checks accepted.

use std::collections::HashMap;

use super::RegisterCalls;
use crate::checker::ViolationLog;
use crate::checker::exclusion::capitalized;
use crate::checker::format::{describe_fault_at, format_time, format_worker};
use crate::checker::timeline::{Hold, Invocation, Timeline};
use crate::history::{Call, Mode, Outcome, RunNanos};

/// A write that an unfenced register accepted, and the hold under which it was made.
struct AcceptedWrite<'a> {
    invocation: &'a Invocation<'a>,
    ended_at: RunNanos,
    hold: &'a Hold<'a>,
    /// Higher for later holders: the hold's token if the engine guarantees rising tokens, otherwise
    /// the time of its grant.
    rank: u64,
}

/// Reports each accepted write that began after a write of a later holder of the same lock had
/// ended; returns how many.
pub(super) fn check(timeline: &Timeline<'_>, name: &str, register: &RegisterCalls<'_>, log: &mut ViolationLog) -> u64 {
    let mut locks: HashMap<&str, Vec<AcceptedWrite<'_>>> = HashMap::new();
    for &invocation in &register.calls {
        let (Call::Write { hold, .. }, Some((end, Outcome::Accepted))) = (invocation.call, invocation.ended) else {
            continue;
        };
        let Some(hold) = timeline.hold(*hold).filter(|hold| hold.mode == Mode::Exclusive) else { continue };
        let rank = if timeline.header.fencing { hold.token } else { hold.granted_at };
        locks.entry(hold.lock).or_default().push(AcceptedWrite { invocation, ended_at: end, hold, rank });
    }
    let before = log.violation_count();
    for writes in locks.values() {
        let mut begun: Vec<&AcceptedWrite<'_>> = writes.iter().collect();
        let mut ended = begun.clone();
        begun.sort_by_key(|write| (write.invocation.began_at, write.invocation.op));
        ended.sort_by_key(|write| (write.ended_at, write.invocation.op));
        let mut ended = ended.into_iter().peekable();
        let mut latest: Option<&AcceptedWrite<'_>> = None;
        for write in begun {
            while let Some(one) = ended.next_if(|one| one.ended_at < write.invocation.began_at) {
                if latest.is_none_or(|latest| latest.rank < one.rank) {
                    latest = Some(one);
                }
            }
            if let Some(later) =
                latest.filter(|later| later.rank > write.rank && !later.hold.has_same_owner(write.hold))
            {
                report_stale_write(timeline, name, later, write, log);
            }
        }
    }
    log.violation_count() - before
}

fn report_stale_write(
    timeline: &Timeline<'_>,
    name: &str,
    later: &AcceptedWrite<'_>,
    stale: &AcceptedWrite<'_>,
    log: &mut ViolationLog,
) {
    let title = format!("register {name:?} accepted a stale write of token {}", stale.hold.token);
    let details = format!(
        "{} was granted {:?} at {} with token {}. {} was granted it at {} with token {} and wrote to register {name:?}, which ended at {}. After that, from {} to {}, the first wrote to it, too, and the register accepted it. {}",
        capitalized(&format_worker(timeline, stale.hold.worker)),
        stale.hold.lock,
        format_time(stale.hold.granted_at),
        stale.hold.token,
        capitalized(&format_worker(timeline, later.hold.worker)),
        format_time(later.hold.granted_at),
        later.hold.token,
        format_time(later.ended_at),
        format_time(stale.invocation.began_at),
        format_time(stale.ended_at),
        describe_fault_at(timeline, stale.invocation.began_at),
    );
    let span = (later.invocation.began_at, stale.ended_at);
    log.add_violation(
        span,
        &[later.invocation.worker_id, stale.invocation.worker_id],
        &[later.invocation.op, stale.invocation.op],
        title,
        details,
    );
}
