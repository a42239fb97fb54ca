//! Other servers serve while one is hit, and every worker is served again.

use leasehold_verify::check::check;
use leasehold_verify::history::{Event, FaultKind, Outcome, Worker, Workload};
use leasehold_verify::verdict::Promise::Recovery;

use crate::check::build::{History, MS, TTL, alone};

/// The bound once others can serve: two TTLs and three seconds.
const BOUND: u64 = 2 * TTL + 3_000;

/// A fault from 1 s on that lasts for `lasts`; others can serve after `served`. Worker 1 retries
/// all the time, and is granted from `granted` on.
fn hit(served: Option<u64>, lasts: u64, granted: u64) -> History {
    let mut history = History::of(Workload::Mutex);
    history.fault((1_000, 1_000 + lasts), 1, FaultKind::Leader, &[]);
    for event in &mut history.events {
        if let Event::FaultBegin { served: it, .. } = event {
            *it = served.map(|served| (1_000 + served) * MS);
        }
    }
    let mut token = 0;
    for begin in (100..1_000 + lasts + 500).step_by(200) {
        if begin < 1_000 || begin >= 1_000 + granted {
            token += 1;
            let op = history.take((begin, begin + 50), 1, token);
            history.release((begin + 60, begin + 70), op);
        } else {
            let op = history.begin(begin, 1, alone("a"));
            history.end(begin + 190, op, Outcome::TimedOut);
        }
    }
    history
}

#[test]
fn others_serve_while_a_server_is_away() {
    let history = hit(Some(500), BOUND + 2_000, 1_200);
    history.keeps(Recovery);
    let verdict = check(&history.events);
    assert_eq!(verdict.recovered[0].took_meanwhile(), Some(1_350 * MS), "asked at 2.3 s, granted at 2.35 s");
}

#[test]
fn nobody_serves_until_the_server_is_back() {
    hit(Some(500), BOUND + 2_000, BOUND + 2_000).breaks(Recovery, 1);
    // The fault ended before others had to serve.
    hit(Some(500), BOUND, BOUND).keeps(Recovery);
    // They could not serve before.
    hit(Some(3_000), BOUND + 2_000, BOUND + 2_000).keeps(Recovery);
    // There are no others.
    hit(None, BOUND + 2_000, BOUND + 2_000).keeps(Recovery);
}

/// After a fault worker 1 acquires and releases all the time, and worker 2 waits in the queue; it
/// is granted at `granted`, if ever.
fn one_of_two(fair: bool, granted: Option<u64>) -> History {
    let mut history = History::of(Workload::Mutex);
    for event in &mut history.events {
        if let Event::Run(header) = event {
            header.fair = fair;
        }
    }
    history.fault((500, 1_000), 1, FaultKind::Cut, &[]);
    let (mut token, mut waiting) = (0, history.begin(600, 2, alone("b")));
    for begin in (1_000..16_000_u64).step_by(100) {
        token += 1;
        let op = history.take((begin, begin + 10), 1, token);
        history.release((begin + 20, begin + 30), op);
        if granted == Some(begin) {
            history.end(begin + 40, waiting, Outcome::Granted { token, deadline: (begin + TTL) * MS });
            history.release((begin + 50, begin + 60), waiting);
            waiting = history.begin(begin + 70, 2, alone("b"));
        } else if begin % 2_000 == 0 {
            history.end(begin + 40, waiting, Outcome::TimedOut);
            waiting = history.begin(begin + 50, 2, alone("b"));
        }
    }
    history.end(16_000, waiting, Outcome::TimedOut);
    history
}

/// Another rule covers that no worker at all has "b".
fn left_behind(history: &History) -> Vec<Worker> {
    let verdict = check(&history.events);
    let of = verdict.violations.iter().filter(|one| one.title.contains("after fault 1"));
    of.flat_map(|one| one.workers.clone()).collect()
}

#[test]
fn one_that_waits_in_line_in_vain_while_others_are_served_was_left_behind() {
    assert_eq!(left_behind(&one_of_two(true, None)), [2]);
    assert_eq!(left_behind(&one_of_two(true, Some(5_000))), Vec::<Worker>::new());
    // Without a queue no waiter is guaranteed a turn.
    assert_eq!(left_behind(&one_of_two(false, None)), Vec::<Worker>::new());
}

#[test]
fn until_when_everybody_was_served() {
    let verdict = check(&one_of_two(true, Some(5_000)).events);
    assert_eq!(verdict.recovered[0].took(), Some(10 * MS));
    assert_eq!(verdict.recovered[0].took_everybody(), Some(4_040 * MS));
    assert_eq!(check(&one_of_two(true, None).events).recovered[0].took_everybody(), None);
}
