//! Checks that nothing is left behind.

use super::story::Story;
use super::words::{at, count, counted, fault_at};
use super::{Bench, Judged};
use crate::verdict::Promise;

pub(crate) fn check(story: &Story<'_>) -> Judged {
    let mut bench = Bench::new(Promise::Leaks);
    let left = story.leftovers.len() as u64;
    bench.checked = story.clean.unwrap_or(0).saturating_add(left);
    for (t, lock, what) in &story.leftovers {
        let title = format!("{lock:?} was left behind");
        let words = format!(
            "At {}, some TTLs after all had ended, {lock:?} was still there: {what}. {}",
            at(*t),
            fault_at(story, *t)
        );
        bench.broken((*t, *t), &[], &[], title, words);
    }
    let looked = story.clean.is_some() || left > 0;
    let figure = match looked {
        true => format!("{} looked at, {} left", counted(bench.checked, "lock"), count(left)),
        false => "nobody looked".to_owned(),
    };
    let mut judged = bench.judged(figure);
    if story.clean.is_some() && left == 0 {
        judged.finding.state = crate::verdict::State::Kept;
    }
    judged
}
