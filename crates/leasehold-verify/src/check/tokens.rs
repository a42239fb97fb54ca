//! Checks that tokens are unique, and rise in the order of the grants.
//!
//! A re-entering owner keeps its token. A call with an unknown outcome may hold the lock: its owner
//! may re-enter that hold with a later request.

use std::collections::{HashMap, HashSet};

use super::exclusion::capital;
use super::story::{Hold, Made, Story};
use super::words::{at, count, counted, fault_at, who};
use super::{Bench, Judged, SECOND};
use crate::history::{Call, Class, Mode, Nanos, OpId};
use crate::verdict::Promise;

pub(crate) fn check(story: &Story<'_>) -> Judged {
    let mut bench = Bench::new(Promise::Tokens);
    for holds in story.by_lock().values() {
        bench.checked += holds.len() as u64;
        let mut asked: Vec<&Hold<'_>> = holds.clone();
        asked.sort_by_key(|hold| (hold.asked, hold.op));
        let again = unique(story, &asked, &mut bench);
        let mut wrong = rising(story, holds, &asked, &again, &mut bench);
        wrong.extend(&again);
        if story.header.exclusion {
            in_turn(story, holds, &wrong, &mut bench);
        }
    }
    let seen = format!("{}, {} out of order", counted(bench.checked, "grant"), count(bench.wrong()));
    match bench.checked {
        0 => bench.judged("nothing was granted".to_owned()),
        _ => bench.judged(seen),
    }
}

/// No token occurs twice; returns the re-entries.
fn unique<'a>(story: &Story<'_>, asked: &[&'a Hold<'a>], bench: &mut Bench) -> HashSet<OpId> {
    let mut again = HashSet::new();
    let mut seen: HashMap<u64, Vec<&Hold<'_>>> = HashMap::new();
    for &hold in asked {
        let same = seen.entry(hold.token).or_default();
        let open = |one: &&&Hold<'_>| {
            one.same_owner(hold) && one.maybe_held_at(hold.asked.max(one.granted)) && !over(story, one, hold.asked)
        };
        // Another holder in between would have had to wait for the possible hold.
        let between = |one: &Hold<'_>| {
            // Under exclusion, a hold that was granted later, and could be relied on then, came
            // later.
            let after =
                |other: &Hold<'_>| if story.header.exclusion { other.granted } else { other.asked } > one.granted;
            let mut others = asked.iter().filter(|other| other.conflicts(hold));
            others.any(|other| after(other) && other.until > other.granted && other.granted < hold.asked)
        };
        let rides = |one: &&Hold<'_>| one.same_owner(hold) && may_hold(story, hold);
        if same.iter().any(|one| (open(&one) || rides(one)) && !between(one)) {
            again.insert(hold.op);
        } else if let Some(first) = same.last() {
            let title = format!("token {} of {:?} was given twice", hold.token, hold.lock);
            let words = format!(
                "{} was granted {:?} at {} with token {}. {} asked for it at {} and was granted it at {} with the same token, and that was no \
                 re-entry. {}",
                capital(&who(story, first.worker)),
                hold.lock,
                at(first.granted),
                hold.token,
                capital(&who(story, hold.worker)),
                at(hold.asked),
                at(hold.granted),
                fault_at(story, hold.granted),
            );
            let span = (first.granted.min(hold.granted), hold.granted.max(first.granted));
            bench.broken(span, &[first.worker, hold.worker], &[first.op, hold.op], title, words);
        }
        same.push(hold);
    }
    again
}

/// Whether its loss was reported so long ago that the servers' lease has expired, too.
fn over(story: &Story<'_>, one: &Hold<'_>, t: Nanos) -> bool {
    let left = story.header.ttl.saturating_add(story.header.ttl / 5).saturating_add(SECOND);
    let long_ago = one.lost.is_some_and(|(lost, _)| lost.saturating_add(left) < t);
    long_ago && !story.disturbed(one.granted, t)
}

/// Whether the same owner requested the lock before with an unknown outcome: then it may hold the
/// lock all the time.
fn may_hold(story: &Story<'_>, hold: &Hold<'_>) -> bool {
    let unknown = |made: &&Made<'_>| made.end.is_none_or(|(_, outcome)| outcome.class() == Class::Unknown);
    let before = story.calls.iter().take_while(|made| made.begin < hold.asked);
    let mut unclear = before.filter(unknown);
    unclear.any(|made| {
        matches!(made.call, Call::Lock { lock, owner, .. } if lock == hold.lock && owner.as_deref() == hold.owner)
    })
}

/// A hold that was granted before another was requested has the lower token; returns the
/// violations.
fn rising(
    story: &Story<'_>,
    granted: &[&Hold<'_>],
    asked: &[&Hold<'_>],
    again: &HashSet<OpId>,
    bench: &mut Bench,
) -> HashSet<OpId> {
    let mut wrong = HashSet::new();
    let mut before = granted.iter().peekable();
    let mut highest: Option<&Hold<'_>> = None;
    for hold in asked {
        while let Some(one) = before.next_if(|one| one.granted < hold.asked) {
            if highest.is_none_or(|highest| highest.token < one.token) {
                highest = Some(one);
            }
        }
        let Some(first) = highest.filter(|first| first.token > hold.token) else { continue };
        if again.contains(&hold.op) {
            continue;
        }
        wrong.insert(hold.op);
        let how = format!("asked for it after that, at {}, and was granted it", at(hold.asked));
        report(story, first, hold, (&how, ""), bench);
    }
    wrong
}

/// The highest token so far, and the highest of any other owner.
#[derive(Default)]
struct Top<'a> {
    first: Option<&'a Hold<'a>>,
    other: Option<&'a Hold<'a>>,
}

impl<'a> Top<'a> {
    fn add(&mut self, hold: &'a Hold<'a>) {
        let higher = |than: Option<&Hold<'_>>| than.is_none_or(|than| hold.token > than.token);
        let same = self.first.is_some_and(|first| first.same_owner(hold));
        if higher(self.first) {
            if !same {
                self.other = self.first;
            }
            self.first = Some(hold);
        } else if !same && higher(self.other) {
            self.other = Some(hold);
        }
    }

    fn of_others(&self, than: &Hold<'_>) -> Option<&'a Hold<'a>> {
        self.first.filter(|first| !first.same_owner(than)).or(self.other)
    }
}

/// Compares waiters: of two that conflict, the one that was granted the lock later has the higher
/// token, if it could rely on it then. If it had come first, it would have held the lock during the
/// other's grant.
fn in_turn<'a>(story: &Story<'_>, granted: &[&'a Hold<'a>], known: &HashSet<OpId>, bench: &mut Bench) {
    let (mut alone, mut shared) = (Top::default(), Top::default());
    for &hold in granted {
        if matches!(hold.mode, Mode::Permits { .. }) {
            continue;
        }
        let exclusive = hold.mode == Mode::Exclusive;
        let before = [alone.of_others(hold), shared.of_others(hold).filter(|_| exclusive)];
        let highest = before.into_iter().flatten().max_by_key(|before| before.token);
        let higher = highest.filter(|before| before.token > hold.token && before.granted < hold.granted);
        if let Some(first) = higher.filter(|_| hold.valid > hold.granted && !known.contains(&hold.op)) {
            let why = ", and could rely on it then: had it come before, two would have held the lock";
            report(story, first, hold, ("was granted it after that,", why), bench);
        }
        if exclusive { alone.add(hold) } else { shared.add(hold) }
    }
}

/// Describes a lower token after a higher one: how its holder got the lock, and why that was later.
fn report(story: &Story<'_>, first: &Hold<'_>, hold: &Hold<'_>, (how, why): (&str, &str), bench: &mut Bench) {
    let title = format!("token {} of {:?} came after {}", hold.token, hold.lock, first.token);
    let words = format!(
        "{} was granted {:?} at {} with token {}. {} {how} at {} with the lower token {}{why}. {}",
        capital(&who(story, first.worker)),
        hold.lock,
        at(first.granted),
        first.token,
        capital(&who(story, hold.worker)),
        at(hold.granted),
        hold.token,
        fault_at(story, hold.granted),
    );
    bench.broken((first.granted, hold.granted), &[first.worker, hold.worker], &[first.op, hold.op], title, words);
}
