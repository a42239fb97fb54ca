//! Checks that no guard reports a lock as held after its deadline, and that its holder is notified
//! of the loss by then, and before anyone else holds the lock.

use super::exclusion::capital;
use super::story::{Fault, Hold, Story};
use super::words::{at, counted, fault_at, long, who};
use super::{Bench, Judged};
use crate::history::{Mode, Nanos};
use crate::verdict::Promise;

/// How long a running worker may take to wake up.
const WAKING: Nanos = 100_000_000;

/// A loss that is not reported within this time is never reported: workers wait twice as long
/// before they release a hold that they lost.
const NEVER: Nanos = 500_000_000;

pub(crate) fn check(story: &Story<'_>) -> Judged {
    let mut bench = Bench::new(Promise::Loss);
    let mut notices: Vec<i128> = Vec::new();
    for holds in story.by_lock().values() {
        let alone: Vec<&Hold<'_>> = holds.iter().copied().filter(|hold| hold.mode == Mode::Exclusive).collect();
        for hold in holds {
            let over = hold.lost.is_some() || hold.unheld.is_some();
            bench.checked += hold.held.len() as u64 + u64::from(over);
            held(story, hold, &mut bench);
            let Some((lost, deadline)) = hold.lost else {
                never(story, hold, &mut bench);
                continue;
            };
            // A holder that does not follow a release request loses the lock at its deadline.
            if hold.evicted.is_none() && hold.requested.is_none() {
                needless(story, hold, lost, &mut bench);
            }
            if ran(story, hold, lost, deadline) {
                notices.push(i128::from(lost) - i128::from(deadline));
            }
            // A reader conflicts only with exclusive holders.
            let others = if hold.mode == Mode::Exclusive { holds } else { &alone };
            // The eviction check covers the notification of evicted holders.
            let alone = story.header.exclusion && hold.evicted.is_none();
            let overtaken = alone && too_late(story, hold, lost, deadline, others, &mut bench);
            if !overtaken {
                late(story, hold, lost, deadline, &mut bench);
            }
        }
    }
    notices.sort_unstable();
    let figure = figure(story, &notices);
    bench.judged(figure)
}

/// How many losses hit holders that ran all the time. For any other holder, a late notification
/// proves nothing.
pub(super) fn told(story: &Story<'_>) -> u64 {
    let told = |hold: &&Hold<'_>| hold.lost.is_some_and(|(lost, deadline)| ran(story, hold, lost, deadline));
    story.holds.iter().filter(told).count() as u64
}

fn ran(story: &Story<'_>, hold: &Hold<'_>, lost: Nanos, deadline: Nanos) -> bool {
    story.life(hold.worker).awake(deadline.min(lost), lost)
}

/// How many checks there were, how many losses, and how many of these hit running holders, so that
/// the time of the notification counts.
fn figure(story: &Story<'_>, notices: &[i128]) -> String {
    let losses = story.holds.iter().filter(|hold| hold.lost.is_some()).count() as u64;
    let looks: u64 = story.holds.iter().map(|hold| hold.held.len() as u64).sum();
    let seen = format!("{}, {}", counted(looks, "look"), counted(losses, "loss").replace("losss", "losses"));
    match (notices.get(notices.len() / 2), notices.last()) {
        (Some(&median), Some(&latest)) => {
            let running = notices.len() as u64;
            let of = if running == losses { String::new() } else { format!(" ({running} running)") };
            format!("{seen}{of}: learned {} (median), at the latest {}", side(median), side(latest))
        }
        _ if looks == 0 && losses == 0 => "nothing was lost, and nobody looked".to_owned(),
        _ if losses == 0 => format!(
            "{looks_only}: none after a deadline; nobody had to be told of a loss",
            looks_only = counted(looks, "look")
        ),
        _ => format!("{seen}: none of them ran, so when they learned of it does not count"),
    }
}

/// The distance to the deadline, before or after.
fn side(by: i128) -> String {
    let far = long(u64::try_from(by.unsigned_abs()).unwrap_or(u64::MAX));
    if by > 0 { format!("{far} after the deadline") } else { format!("{far} before the deadline") }
}

/// Checks the hold's own lines: never held after the deadline, nor after the loss.
fn held(story: &Story<'_>, hold: &Hold<'_>, bench: &mut Bench) {
    let who = capital(&who(story, hold.worker));
    let ttl = story.header.ttl;
    for &(t, deadline) in &hold.held {
        let (title, why) = match hold.lost {
            _ if ttl > 0 && deadline > t.saturating_add(ttl) => (
                format!("{:?} was to last {}, longer than its TTL", hold.lock, long(deadline - t)),
                format!("its deadline was {}, though leases last {}", at(deadline), long(ttl)),
            ),
            _ if t > deadline => {
                let by = long(t - deadline);
                (
                    format!("{:?} was held {by} after its deadline", hold.lock),
                    format!("its deadline was {}", at(deadline)),
                )
            }
            Some((lost, _)) if t > lost => (
                format!("{:?} was held after it was lost", hold.lock),
                format!("it had learned of the loss at {}", at(lost)),
            ),
            _ => continue,
        };
        let words = format!(
            "{who} was granted {:?} at {} with token {}. At {} its guard said that it is held, and {why}. {}",
            hold.lock,
            at(hold.granted),
            hold.token,
            at(t),
            fault_at(story, t)
        );
        bench.broken((deadline.min(t), t), &[hold.worker], &[hold.op], title, words);
    }
}

/// Reports a loss while all faults hit servers that do not keep the lock, although its holder ran.
/// On a busy machine a renewal may be late.
fn needless(story: &Story<'_>, hold: &Hold<'_>, lost: Nanos, bench: &mut Bench) {
    let since = lost.saturating_sub(story.header.ttl.saturating_mul(2));
    let near = |fault: &&Fault<'_>| {
        let until = fault.until().saturating_add(story.header.ttl);
        !fault.kind.hits_workers() && fault.from <= lost && until >= since
    };
    let mut spared = None;
    for fault in story.faults.iter().filter(near) {
        if !fault.spares.iter().any(|lock| lock == hold.lock) {
            return;
        }
        spared = Some(fault);
    }
    let released = hold.release.is_some_and(|release| release <= lost);
    let Some(fault) = spared.filter(|_| !released && story.life(hold.worker).awake(since.max(hold.granted), lost))
    else {
        return;
    };
    let title = format!("{:?} was lost by fault {}, which did not hit its server", hold.lock, fault.number);
    let words = format!(
        "{} was granted {:?} at {} with token {}, and lost it at {}. Fault {} ({} of {}) had begun at {}, and the server of this lock was not hit.",
        capital(&who(story, hold.worker)),
        hold.lock,
        at(hold.granted),
        hold.token,
        at(lost),
        fault.number,
        fault.kind,
        fault.target,
        at(fault.from),
    );
    bench.late((fault.from, lost), &[hold.worker], &[hold.op], title, words);
}

/// Reports a loss without any notification: a holder that makes no checks of its own relies on it.
fn never(story: &Story<'_>, hold: &Hold<'_>, bench: &mut Bench) {
    let Some(unheld) = hold.unheld else { return };
    let by = unheld.saturating_add(NEVER);
    let end = hold.release.unwrap_or(story.last);
    if end >= by && story.life(hold.worker).awake(unheld, by) {
        let words = format!("A look at {} showed that it was not held any more, and it was never told", at(unheld));
        told_wrong(story, hold, (unheld, end), &words, "was never told", bench);
    }
}

/// Reports a notification that came later than the end of the hold.
fn late(story: &Story<'_>, hold: &Hold<'_>, lost: Nanos, deadline: Nanos, bench: &mut Bench) {
    let since = hold.unheld.map_or(deadline, |unheld| unheld.min(deadline));
    if lost > since.saturating_add(WAKING) && story.life(hold.worker).awake(since, lost) {
        let words = format!("It was not held any more at {}, and it was told so at {}", at(since), at(lost));
        let late = format!("was told {} late", long(lost - since));
        told_wrong(story, hold, (since, lost), &words, &late, bench);
    }
}

fn told_wrong(story: &Story<'_>, hold: &Hold<'_>, span: (Nanos, Nanos), how: &str, title: &str, bench: &mut Bench) {
    let words = format!(
        "{} was granted {:?} at {} with token {}. {how}, though it ran all the time. {}",
        capital(&who(story, hold.worker)),
        hold.lock,
        at(hold.granted),
        hold.token,
        fault_at(story, span.0),
    );
    bench.late(span, &[hold.worker], &[hold.op], format!("the loss of {:?} {title}", hold.lock), words);
}

/// Reports a notification that came only after another holder's grant, although the holder ran all
/// the time.
fn too_late(
    story: &Story<'_>,
    hold: &Hold<'_>,
    lost: Nanos,
    deadline: Nanos,
    others: &[&Hold<'_>],
    bench: &mut Bench,
) -> bool {
    let from = others.partition_point(|other| other.granted <= hold.granted);
    let after = others.iter().skip(from).take_while(|other| other.granted.saturating_add(WAKING) < lost);
    // A grant whose end was recorded late may have come before.
    let later = |other: &Hold<'_>| {
        let by_token = story.header.fencing && other.token > hold.token;
        by_token || other.asked >= hold.granted || other.until > other.granted
    };
    let Some(other) = after.copied().find(|other| other.conflicts(hold) && later(other)) else { return false };
    let given_back = hold.release.is_some_and(|release| release <= other.granted);
    if given_back || !story.life(hold.worker).awake(deadline.min(other.granted), lost) {
        return false;
    }
    let title = format!("the loss of {:?} was learned {} too late", hold.lock, long(lost - other.granted));
    let words = format!(
        "{} was granted {:?} at {} with token {}. {} was granted it at {} with token {}, and the first learned of its loss only at {}, though it ran \
         all the time. {}",
        capital(&who(story, hold.worker)),
        hold.lock,
        at(hold.granted),
        hold.token,
        capital(&who(story, other.worker)),
        at(other.granted),
        other.token,
        at(lost),
        fault_at(story, other.granted),
    );
    bench.late((other.granted, lost), &[hold.worker, other.worker], &[hold.op, other.op], title, words);
    true
}
