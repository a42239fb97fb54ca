//! Checks that tokens are unique, and rise in the order of the grants.
//!
//! An owner that re-enters its lock keeps its token. A call with an unknown outcome may hold the
//! lock, so a later request of its owner may be a re-entry.

use std::collections::{HashMap, HashSet};

use super::exclusion::capitalized;
use super::format::{describe_fault_at, format_count, format_quantity, format_time, format_worker};
use super::timeline::{Hold, Invocation, Timeline};
use super::{GuaranteeResult, SECOND, ViolationLog};
use crate::history::{Call, Mode, OpId, OutcomeClass, RunNanos};
use crate::verdict::Guarantee;

/// Checks the tokens of every lock.
pub(crate) fn check(timeline: &Timeline<'_>) -> GuaranteeResult {
    let mut log = ViolationLog::new(Guarantee::Tokens);
    for holds in timeline.holds_by_lock().values() {
        log.checked_count += holds.len() as u64;
        let mut by_request: Vec<&Hold<'_>> = holds.clone();
        by_request.sort_by_key(|hold| (hold.requested_at, hold.op));
        let reentries = check_unique(timeline, &by_request, &mut log);
        let mut excluded = check_rising(timeline, holds, &by_request, &reentries, &mut log);
        excluded.extend(&reentries);
        if timeline.header.exclusion {
            check_conflicting_grants(timeline, holds, &excluded, &mut log);
        }
    }
    let seen = format!(
        "{}, {} out of order",
        format_quantity(log.checked_count, "grant"),
        format_count(log.violation_count())
    );
    match log.checked_count {
        0 => log.into_result("no grants".to_owned()),
        _ => log.into_result(seen),
    }
}

/// Reports each token that occurs twice without a re-entry; returns the calls that were re-entries.
fn check_unique<'a>(timeline: &Timeline<'_>, by_request: &[&'a Hold<'a>], log: &mut ViolationLog) -> HashSet<OpId> {
    let mut reentries = HashSet::new();
    let mut seen: HashMap<u64, Vec<&Hold<'_>>> = HashMap::new();
    for &hold in by_request {
        let same = seen.entry(hold.token).or_default();
        let open = |one: &&&Hold<'_>| {
            one.has_same_owner(hold)
                && one.may_be_held_at(hold.requested_at.max(one.granted_at))
                && !has_expired(timeline, one, hold.requested_at)
        };
        // Another holder in between would have had to wait for the possible hold.
        let between = |one: &Hold<'_>| {
            // Under exclusion, a hold that was granted later, and could be relied on then, came
            // later.
            let after =
                |other: &Hold<'_>| if timeline.header.exclusion { other.granted_at } else { other.requested_at } > one.granted_at;
            let mut others = by_request.iter().filter(|other| other.conflicts_with(hold));
            others.any(|other| {
                after(other) && other.certainly_held_until > other.granted_at && other.granted_at < hold.requested_at
            })
        };
        let may_repeat = |one: &&Hold<'_>| one.has_same_owner(hold) && may_reenter(timeline, hold);
        if same.iter().any(|one| (open(&one) || may_repeat(one)) && !between(one)) {
            reentries.insert(hold.op);
        } else if let Some(first) = same.last() {
            let title = format!("token {} of {:?} was granted twice", hold.token, hold.lock);
            let details = format!(
                "{} was granted {:?} at {} with token {}. {} requested it at {} and was granted it at {} with the same token, which was no re-entry. {}",
                capitalized(&format_worker(timeline, first.worker)),
                hold.lock,
                format_time(first.granted_at),
                hold.token,
                capitalized(&format_worker(timeline, hold.worker)),
                format_time(hold.requested_at),
                format_time(hold.granted_at),
                describe_fault_at(timeline, hold.granted_at),
            );
            let span = (first.granted_at.min(hold.granted_at), hold.granted_at.max(first.granted_at));
            log.add_violation(span, &[first.worker, hold.worker], &[first.op, hold.op], title, details);
        }
        same.push(hold);
    }
    reentries
}

/// Whether the hold's loss was notified so long before `t` that its lease has expired on the
/// servers, too.
fn has_expired(timeline: &Timeline<'_>, hold: &Hold<'_>, t: RunNanos) -> bool {
    let left = timeline.header.ttl.saturating_add(timeline.header.ttl / 5).saturating_add(SECOND);
    let long_ago = hold.lost.is_some_and(|(lost, _)| lost.saturating_add(left) < t);
    long_ago && !timeline.is_engine_disturbed(hold.granted_at, t)
}

/// Whether the same owner requested the lock before with an unknown outcome: then it may have held
/// the lock since, and this grant may be a re-entry.
fn may_reenter(timeline: &Timeline<'_>, hold: &Hold<'_>) -> bool {
    let unknown = |invocation: &&Invocation<'_>| {
        invocation.ended.is_none_or(|(_, outcome)| outcome.class() == OutcomeClass::Unknown)
    };
    let before = timeline.calls.iter().take_while(|invocation| invocation.began_at < hold.requested_at);
    let mut unclear = before.filter(unknown);
    unclear.any(|invocation| {
        matches!(invocation.call, Call::Lock { lock, owner, .. } if lock == hold.lock && owner.as_deref() == hold.owner)
    })
}

/// Reports each hold whose token is lower than that of a hold granted before it was requested;
/// returns the calls of the reported holds.
fn check_rising(
    timeline: &Timeline<'_>,
    by_grant: &[&Hold<'_>],
    by_request: &[&Hold<'_>],
    reentries: &HashSet<OpId>,
    log: &mut ViolationLog,
) -> HashSet<OpId> {
    let mut wrong = HashSet::new();
    let mut before = by_grant.iter().peekable();
    let mut highest: Option<&Hold<'_>> = None;
    for hold in by_request {
        while let Some(one) = before.next_if(|one| one.granted_at < hold.requested_at) {
            if highest.is_none_or(|highest| highest.token < one.token) {
                highest = Some(one);
            }
        }
        let Some(first) = highest.filter(|first| first.token > hold.token) else { continue };
        if reentries.contains(&hold.op) {
            continue;
        }
        wrong.insert(hold.op);
        let how = format!("requested it after that, at {}, and was granted it", format_time(hold.requested_at));
        report_lower_token(timeline, first, hold, (&how, ""), log);
    }
    wrong
}

/// Of the holds so far, the one with the highest token, and the highest one of any other owner.
#[derive(Default)]
struct HighestTokens<'a> {
    highest: Option<&'a Hold<'a>>,
    highest_of_another_owner: Option<&'a Hold<'a>>,
}

impl<'a> HighestTokens<'a> {
    /// Takes note of another hold.
    fn add(&mut self, hold: &'a Hold<'a>) {
        let higher = |than: Option<&Hold<'_>>| than.is_none_or(|than| hold.token > than.token);
        let same = self.highest.is_some_and(|first| first.has_same_owner(hold));
        if higher(self.highest) {
            if !same {
                self.highest_of_another_owner = self.highest;
            }
            self.highest = Some(hold);
        } else if !same && higher(self.highest_of_another_owner) {
            self.highest_of_another_owner = Some(hold);
        }
    }

    /// The hold with the highest token whose owner is not that of `hold`; `None`: there is none.
    fn highest_of_others(&self, hold: &Hold<'_>) -> Option<&'a Hold<'a>> {
        self.highest.filter(|first| !first.has_same_owner(hold)).or(self.highest_of_another_owner)
    }
}

/// Reports each hold with a lower token than a conflicting hold that was granted before it, if its
/// holder could rely on it when it was granted. Skips the calls in `excluded`.
fn check_conflicting_grants<'a>(
    timeline: &Timeline<'_>,
    by_grant: &[&'a Hold<'a>],
    excluded: &HashSet<OpId>,
    log: &mut ViolationLog,
) {
    let (mut exclusive_tokens, mut shared_tokens) = (HighestTokens::default(), HighestTokens::default());
    for &hold in by_grant {
        if matches!(hold.mode, Mode::Permits { .. }) {
            continue;
        }
        let exclusive = hold.mode == Mode::Exclusive;
        let before =
            [exclusive_tokens.highest_of_others(hold), shared_tokens.highest_of_others(hold).filter(|_| exclusive)];
        let highest = before.into_iter().flatten().max_by_key(|before| before.token);
        let higher = highest.filter(|before| before.token > hold.token && before.granted_at < hold.granted_at);
        if let Some(first) = higher.filter(|_| hold.relied_on_until > hold.granted_at && !excluded.contains(&hold.op)) {
            let why = ", and could rely on it then: if it had come first, two workers would have held the lock";
            report_lower_token(timeline, first, hold, ("was granted it after that,", why), log);
        }
        if exclusive { exclusive_tokens.add(hold) } else { shared_tokens.add(hold) }
    }
}

/// Reports a lower token after a higher one. `grant_phrase` says how the later holder got the lock,
/// and `reason` why its grant was certainly the later one.
fn report_lower_token(
    timeline: &Timeline<'_>,
    first: &Hold<'_>,
    hold: &Hold<'_>,
    (grant_phrase, reason): (&str, &str),
    log: &mut ViolationLog,
) {
    let title = format!("token {} of {:?} came after {}", hold.token, hold.lock, first.token);
    let details = format!(
        "{} was granted {:?} at {} with token {}. {} {grant_phrase} at {} with the lower token {}{reason}. {}",
        capitalized(&format_worker(timeline, first.worker)),
        hold.lock,
        format_time(first.granted_at),
        first.token,
        capitalized(&format_worker(timeline, hold.worker)),
        format_time(hold.granted_at),
        hold.token,
        describe_fault_at(timeline, hold.granted_at),
    );
    log.add_violation(
        (first.granted_at, hold.granted_at),
        &[first.worker, hold.worker],
        &[first.op, hold.op],
        title,
        details,
    );
}
