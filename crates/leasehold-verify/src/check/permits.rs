//! Checks that never are more permits out than the limit.

use std::collections::BTreeMap;

use super::story::{Hold, Story};
use super::words::{at, count, counted, fault_at};
use super::{Bench, Judged};
use crate::history::{Mode, Nanos};
use crate::verdict::Promise;

pub(crate) fn check(story: &Story<'_>) -> Judged {
    let mut bench = Bench::new(Promise::Permits);
    let (mut most, mut limit) = (0, 0);
    for holds in story.by_lock().values() {
        let out = sweep(story, holds, &mut bench);
        if out.1 > 0 && (limit == 0 || out.0.saturating_mul(limit) > most * out.1) {
            (most, limit) = out;
        }
    }
    let figure = match bench.checked {
        0 => "no permits were asked for".to_owned(),
        n => format!("{} of permits, at most {} of {} out at once", counted(n, "grant"), count(most), count(limit)),
    };
    bench.judged(figure)
}

/// The maximum of permits that were out at once, and the limit.
fn sweep(story: &Story<'_>, holds: &[&Hold<'_>], bench: &mut Bench) -> (u64, u64) {
    let permits = |hold: &Hold<'_>| if let Mode::Permits { n, limit } = hold.mode { Some((n, limit)) } else { None };
    // If the limits disagree, only exceeding the highest is certainly a violation.
    let limit = holds.iter().filter_map(|hold| permits(hold)).map(|(_, limit)| u64::from(limit)).max().unwrap_or(0);
    let mut out: BTreeMap<(Nanos, u64), (&Hold<'_>, u64)> = BTreeMap::new();
    let mut most = 0;
    for &hold in holds {
        let Some((n, _)) = permits(hold) else { continue };
        bench.checked += 1;
        if hold.valid <= hold.granted {
            continue;
        }
        while out.first_key_value().is_some_and(|(key, _)| key.0 <= hold.granted) {
            out.pop_first();
        }
        let before = sum(&out);
        out.insert((hold.valid, hold.op), (hold, u64::from(n)));
        let sum = sum(&out);
        most = most.max(sum);
        if sum > limit && sum > before {
            // A few examples suffice.
            let others = out.values().map(|(hold, _)| *hold).filter(|other| other.op != hold.op).take(7);
            let with: Vec<&Hold<'_>> = others.chain([hold]).collect();
            report(story, hold, &with, (sum, limit, out.len() - 1), bench);
        }
    }
    (most, limit)
}

/// How many permits are out. A re-entry needs no further permits: of the holds of one owner with
/// one token, the largest counts.
fn sum(out: &BTreeMap<(Nanos, u64), (&Hold<'_>, u64)>) -> u64 {
    let mut owned: BTreeMap<(&str, u64), u64> = BTreeMap::new();
    let mut sum = 0_u64;
    for (hold, n) in out.values() {
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

fn report(
    story: &Story<'_>,
    last: &Hold<'_>,
    with: &[&Hold<'_>],
    (sum, limit, others): (u64, u64, usize),
    bench: &mut Bench,
) {
    let to = with.iter().map(|hold| hold.valid).min().unwrap_or(last.granted);
    let tokens: Vec<String> = with.iter().map(|hold| hold.token.to_string()).collect();
    let title = format!("{} of {} permits of {:?} were out", count(sum), count(limit), last.lock);
    let words = format!(
        "At {} worker {} was granted permits of {:?} with token {}. With those of {} that could be relied on then, {} were out, and there are {}. \
         Among the tokens are {}. {}",
        at(last.granted),
        last.worker,
        last.lock,
        last.token,
        counted(others as u64, "other hold"),
        count(sum),
        count(limit),
        tokens.join(", "),
        fault_at(story, last.granted),
    );
    let workers: Vec<_> = with.iter().map(|hold| hold.worker).collect();
    let ops: Vec<_> = with.iter().map(|hold| hold.op).collect();
    bench.broken((last.granted, to), &workers, &ops, title, words);
}
