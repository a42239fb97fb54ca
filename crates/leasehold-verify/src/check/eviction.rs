//! Checks that an evicted holder is notified soon, that its token is fenced off, and that no other
//! holder's is.
//!
//! Other holders may acquire the lock once the eviction has begun. That is no violation of
//! exclusion, but its stated exception. A graceful eviction has no such exception: the next grant
//! must not come before the holder released or its deadline passed, which the exclusion check
//! covers. This check requires that its holder learns of the request as soon.

use super::exclusion::capital;
use super::story::{Hold, Made, Story};
use super::words::{at, count, counted, fault_at, long, who};
use super::{Bench, Judged};
use crate::history::{Call, Nanos, OpId, Outcome};
use crate::verdict::Promise;

/// The time limit for notifying a holder, also where the engine polls.
const TOLD: Nanos = 500_000_000;
/// How long a running worker may take to wake up.
const WAKING: Nanos = 100_000_000;

/// An eviction that the engine answered.
struct Eviction<'a> {
    made: &'a Made<'a>,
    lock: &'a str,
    hold: Option<OpId>,
    /// The evicted holder's token.
    token: u64,
    graceful: bool,
    /// The fence token for the resource.
    fence: Option<u64>,
    gone: bool,
    end: Nanos,
}

pub(crate) fn check(story: &Story<'_>) -> Judged {
    let mut bench = Bench::new(Promise::Eviction);
    let (locks, mut gone) = (story.by_lock(), 0);
    for made in &story.calls {
        let (
            Call::Evict { lock, hold, token, graceful },
            Some((end, Outcome::Evicted { token: fence, gone: had_gone })),
        ) = (made.call, made.end)
        else {
            continue;
        };
        let (hold, token, graceful) = (*hold, *token, *graceful);
        let one = Eviction { made, lock, hold, token, graceful, fence: *fence, gone: *had_gone, end };
        bench.checked += 1;
        gone += u64::from(one.gone);
        let holds = locks.get(one.lock).map_or(&[][..], Vec::as_slice);
        if story.header.fencing {
            fences(story, &one, holds, &mut bench);
        }
        let hold = one.hold.and_then(|hold| story.hold(hold)).filter(|hold| !one.gone && hold.token == one.token);
        if let Some(hold) = hold {
            told(story, &one, hold, &mut bench);
        }
    }
    let figure = match bench.checked {
        0 => "nobody was evicted".to_owned(),
        n => format!("{}, {} of a claim that had gone", counted(n, "eviction"), count(gone)),
    };
    bench.judged(figure)
}

/// Checks the fence token: above the evicted holder's token, and below every other's.
fn fences(story: &Story<'_>, one: &Eviction<'_>, holds: &[&Hold<'_>], bench: &mut Bench) {
    let Some(fence) = one.fence else { return };
    if !one.gone && fence <= one.token {
        let title = format!("the eviction of token {} of {:?} does not fence it off", one.token, one.lock);
        report(story, one, None, title, &format!("It answered token {fence}, which is not higher."), bench);
    }
    for hold in holds.iter().filter(|hold| Some(hold.op) != one.hold && hold.token <= fence) {
        let stays = hold.granted < one.made.begin && hold.until > one.end;
        let next = hold.asked > one.end;
        let (title, how) = match (stays, next) {
            (true, _) => ("fences off a holder that stays", "held it all the time"),
            (_, true) => ("fences off the next holder", "asked for it after that"),
            _ => continue,
        };
        let title = format!("the eviction of token {} of {:?} {title}", one.token, one.lock);
        let how = format!(
            "It answered token {fence}. {} {how}, with token {}.",
            capital(&who(story, hold.worker)),
            hold.token
        );
        report(story, one, Some(hold), title, &how, bench);
        return;
    }
}

/// Checks that the evicted holder is notified, if it runs and is reachable.
fn told(story: &Story<'_>, one: &Eviction<'_>, hold: &Hold<'_>, bench: &mut Bench) {
    let from = one.end.max(hold.granted);
    let by = from.saturating_add(TOLD).saturating_add(WAKING);
    let began = one.made.begin.min(hold.granted);
    let released = hold.release.is_some_and(|release| release <= by);
    if released || story.last < by || !story.life(hold.worker).awake(began, by) || story.disturbed(began, by) {
        return;
    }
    let lost = hold.lost.map(|(lost, _)| lost);
    let told = if one.graceful { hold.requested.or(lost) } else { lost };
    match told {
        Some(told) if told <= by => {}
        Some(lost) => {
            let title = format!("an evicted holder of {:?} was told {} later", hold.lock, long(lost - from));
            let how = format!("It was told so only at {}, though it ran all the time.", at(lost));
            late(story, one, hold, (title, how), lost, bench);
        }
        None => {
            let title = format!("an evicted holder of {:?} was never told", hold.lock);
            let how = format!("It was not told by {}, though it ran all the time.", at(by));
            late(story, one, hold, (title, how), by, bench);
        }
    }
}

fn late(
    story: &Story<'_>,
    one: &Eviction<'_>,
    hold: &Hold<'_>,
    (title, how): (String, String),
    to: Nanos,
    bench: &mut Bench,
) {
    let words = words(story, one, &how);
    bench.late((one.made.begin, to), &[one.made.worker, hold.worker], &[one.made.op, hold.op], title, words);
}

fn report(
    story: &Story<'_>,
    one: &Eviction<'_>,
    other: Option<&Hold<'_>>,
    title: String,
    how: &str,
    bench: &mut Bench,
) {
    let mut workers = vec![one.made.worker];
    let mut ops = vec![one.made.op];
    if let Some(hold) = other {
        workers.push(hold.worker);
        ops.push(hold.op);
    }
    bench.broken((one.made.begin, one.end), &workers, &ops, title, words(story, one, how));
}

fn words(story: &Story<'_>, one: &Eviction<'_>, how: &str) -> String {
    format!(
        "{} {} the holder of {:?} with token {} from {} to {}{}. {how} {}",
        capital(&who(story, one.made.worker)),
        if one.graceful { "gracefully evicted" } else { "evicted" },
        one.lock,
        one.token,
        at(one.made.begin),
        at(one.end),
        if one.gone { "; that claim had gone" } else { "" },
        fault_at(story, one.made.begin),
    )
}
