//! Checks that no two claims whose modes conflict hold a lock at once.

use super::story::{Hold, Story};
use super::words::{at, count, counted, fault_at, long, who};
use super::{Bench, Judged};
use crate::history::Mode;
use crate::verdict::Promise;

pub(crate) fn check(story: &Story<'_>) -> Judged {
    let mut bench = Bench::new(Promise::Exclusion);
    let locks = story.by_lock();
    for holds in locks.values() {
        sweep(story, holds, &mut bench);
    }
    let figure = match bench.checked {
        0 => "nothing was held".to_owned(),
        n => {
            let at_once = count(bench.wrong());
            format!("{} of {}, {at_once} at once with another", counted(n, "hold"), counted(locks.len() as u64, "lock"))
        }
    };
    bench.judged(figure)
}

fn sweep(story: &Story<'_>, holds: &[&Hold<'_>], bench: &mut Bench) {
    // The holds that are still active. Readers are kept apart from writers, so that many readers
    // are not compared with each other.
    let mut alone: Vec<&Hold<'_>> = Vec::new();
    let mut shared: Vec<&Hold<'_>> = Vec::new();
    for &hold in holds {
        if matches!(hold.mode, Mode::Permits { .. }) {
            continue;
        }
        bench.checked += 1;
        if hold.valid <= hold.granted {
            continue;
        }
        alone.retain(|other| other.valid > hold.granted);
        let exclusive = hold.mode == Mode::Exclusive;
        if exclusive {
            shared.retain(|other| other.valid > hold.granted);
        }
        let others = alone.iter().chain(shared.iter().filter(|_| exclusive));
        let worst = others.filter(|other| other.conflicts(hold)).max_by_key(|other| other.valid);
        if let Some(other) = worst {
            report(story, other, hold, bench);
        }
        if exclusive { alone.push(hold) } else { shared.push(hold) }
    }
}

fn report(story: &Story<'_>, first: &Hold<'_>, second: &Hold<'_>, bench: &mut Bench) {
    let to = first.valid.min(second.valid);
    let from = second.granted;
    let title = format!("two held {:?} for {}", first.lock, long(to - from));
    let words = format!(
        "{} was granted {:?} at {} with token {} and could rely on it until {}. {} was granted it at {} with token {} and could rely on it \
         until {}. {}",
        capital(&who(story, first.worker)),
        first.lock,
        at(first.granted),
        first.token,
        at(first.valid),
        capital(&who(story, second.worker)),
        at(second.granted),
        second.token,
        at(second.valid),
        fault_at(story, from),
    );
    bench.broken((from, to), &[first.worker, second.worker], &[first.op, second.op], title, words);
}

/// Capitalizes the first letter.
pub(crate) fn capital(words: &str) -> String {
    let mut letters = words.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
