//! Checks that a re-entering owner keeps its token.

use std::collections::BTreeMap;

use super::exclusion::capital;
use super::story::{Hold, Story};
use super::words::{at, count, fault_at, who};
use super::{Bench, Judged};
use crate::verdict::Promise;

pub(crate) fn check(story: &Story<'_>) -> Judged {
    let mut bench = Bench::new(Promise::Reentry);
    let mut owners: BTreeMap<(&str, &str), Vec<&Hold<'_>>> = BTreeMap::new();
    for hold in &story.holds {
        if let Some(owner) = hold.owner {
            owners.entry((hold.lock, owner)).or_default().push(hold);
        }
    }
    for holds in owners.values() {
        let mut open: Vec<&Hold<'_>> = Vec::new();
        for &hold in holds {
            open.retain(|outer| outer.until > hold.granted);
            let around = open.iter().filter(|outer| outer.granted <= hold.asked && outer.mode == hold.mode);
            if let Some(outer) = around.max_by_key(|outer| (outer.token != hold.token, outer.until)) {
                bench.checked += 1;
                if outer.token != hold.token {
                    report(story, outer, hold, &mut bench);
                }
            }
            open.push(hold);
        }
    }
    let figure = match bench.checked {
        0 => "nobody re-entered".to_owned(),
        1 => format!("1 re-entry, {} with another token", bench.wrong()),
        n => format!("{} re-entries, {} with another token", count(n), count(bench.wrong())),
    };
    bench.judged(figure)
}

fn report(story: &Story<'_>, outer: &Hold<'_>, hold: &Hold<'_>, bench: &mut Bench) {
    let title = format!("a re-entry of {:?} got token {} in place of {}", hold.lock, hold.token, outer.token);
    let words = format!(
        "{} surely held {:?} with token {} from {} until {}. In that time, at {}, the same owner asked for it again and was granted it at {} \
         with token {}. {}",
        capital(&who(story, outer.worker)),
        hold.lock,
        outer.token,
        at(outer.granted),
        at(outer.until),
        at(hold.asked),
        at(hold.granted),
        hold.token,
        fault_at(story, hold.granted),
    );
    bench.broken((hold.asked, hold.granted), &[outer.worker, hold.worker], &[outer.op, hold.op], title, words);
}
