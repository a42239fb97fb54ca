//! A register that checks no token: counts the stale writes that it accepts.

use std::collections::HashMap;

use super::Register;
use crate::check::Bench;
use crate::check::exclusion::capital;
use crate::check::story::{Hold, Made, Story};
use crate::check::words::{at, fault_at, who};
use crate::history::{Call, Mode, Nanos, Outcome};

struct Write<'a> {
    made: &'a Made<'a>,
    end: Nanos,
    hold: &'a Hold<'a>,
    /// Rises with later holders: the token if the engine guarantees rising tokens, else the time of
    /// the grant. An exclusive holder that wrote before another one's grant was granted the lock
    /// before it.
    rank: u64,
}

/// Returns how many.
pub(super) fn check(story: &Story<'_>, name: &str, register: &Register<'_>, bench: &mut Bench) -> u64 {
    let mut locks: HashMap<&str, Vec<Write<'_>>> = HashMap::new();
    for &made in &register.calls {
        let (Call::Write { hold, .. }, Some((end, Outcome::Accepted))) = (made.call, made.end) else { continue };
        let Some(hold) = story.hold(*hold).filter(|hold| hold.mode == Mode::Exclusive) else { continue };
        let rank = if story.header.fencing { hold.token } else { hold.granted };
        locks.entry(hold.lock).or_default().push(Write { made, end, hold, rank });
    }
    let before = bench.wrong();
    for writes in locks.values() {
        let mut begun: Vec<&Write<'_>> = writes.iter().collect();
        let mut ended = begun.clone();
        begun.sort_by_key(|write| (write.made.begin, write.made.op));
        ended.sort_by_key(|write| (write.end, write.made.op));
        let mut ended = ended.into_iter().peekable();
        let mut latest: Option<&Write<'_>> = None;
        for write in begun {
            while let Some(one) = ended.next_if(|one| one.end < write.made.begin) {
                if latest.is_none_or(|latest| latest.rank < one.rank) {
                    latest = Some(one);
                }
            }
            if let Some(later) = latest.filter(|later| later.rank > write.rank && !later.hold.same_owner(write.hold)) {
                report(story, name, later, write, bench);
            }
        }
    }
    bench.wrong() - before
}

fn report(story: &Story<'_>, name: &str, later: &Write<'_>, stale: &Write<'_>, bench: &mut Bench) {
    let title = format!("register {name:?} accepted a stale write of token {}", stale.hold.token);
    let words = format!(
        "{} was granted {:?} at {} with token {}. {} was granted it at {} with token {} and wrote to register {name:?}, which ended at {}. After \
         that, from {} to {}, the first wrote to it, too, and was not refused. {}",
        capital(&who(story, stale.hold.worker)),
        stale.hold.lock,
        at(stale.hold.granted),
        stale.hold.token,
        capital(&who(story, later.hold.worker)),
        at(later.hold.granted),
        later.hold.token,
        at(later.end),
        at(stale.made.begin),
        at(stale.end),
        fault_at(story, stale.made.begin),
    );
    let span = (later.made.begin, stale.end);
    bench.broken(span, &[later.made.worker, stale.made.worker], &[later.made.op, stale.made.op], title, words);
}
