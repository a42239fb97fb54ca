//! Order, loss, recovery, leaks, deadlines: checks that depend on faults and on running workers.

use leasehold_verify::history::{Event, FaultKind, Outcome, State, Worker, Workload};
use leasehold_verify::verdict::Promise::{Deadlines, Leaks, Loss, Order, Recovery};

use crate::check::build::{History, MS, TTL, alone, failed, header, shared, unknown};

/// Worker 1 is queued at 20, worker 2 requests at 30; if `overtakes`, worker 2 is granted first.
fn line(overtakes: bool, fencing: bool) -> History {
    let mut head = header(Workload::Queue);
    head.fencing = fencing;
    let mut history = History::with(head);
    let (first, second) = if overtakes { (200, 100) } else { (100, 200) };
    let one = history.begin(10, 1, alone("a"));
    history.events.push(Event::Queued { t: 20 * MS, op: one });
    let two = history.begin(30, 2, alone("a"));
    for (op, t) in [(one, first), (two, second)] {
        let token = if fencing { t } else { 5 };
        history.end(t, op, Outcome::Granted { token, deadline: (t + TTL) * MS });
        history.release((t + 10, t + 20), op);
    }
    history
}

#[test]
fn the_line_is_kept() {
    for fencing in [true, false] {
        assert_eq!(line(false, fencing).keeps(Order).figure, "0 overtaken of 1");
    }
}

#[test]
fn who_overtakes_breaks_the_order() {
    for fencing in [true, false] {
        line(true, fencing).breaks(Order, 1);
    }
}

#[test]
fn who_was_not_seen_in_line_before_the_other_asked_cannot_be_overtaken() {
    let mut history = line(true, true);
    for event in &mut history.events {
        if let Event::Queued { t, .. } = event {
            *t = 30 * MS;
        }
    }
    history.keeps(Order);
}

#[test]
fn faults_and_stops_excuse_overtaking() {
    let mut history = line(true, true);
    history.fault((0, 1), 1, FaultKind::Cut, &[]);
    assert_eq!(history.keeps(Order).figure, "0 overtaken of 1; 1 while a fault went on");
    let mut history = line(true, true);
    history.worker(50, 1, State::Stopped);
    history.worker(60, 1, State::Resumed);
    history.keeps(Order);
    let mut history = line(true, true);
    history.worker(50, 1, State::Stalled { from: 40 * MS });
    history.keeps(Order);
}

/// Worker 1 is queued at 20 and times out at 500; worker 2 requests at 30 and is granted it at
/// `granted`.
fn starved(granted: u64) -> History {
    let mut history = History::of(Workload::Queue);
    let one = history.begin_due(10, 1, Some(500), alone("a"));
    history.events.push(Event::Queued { t: 20 * MS, op: one });
    let two = history.take((30, granted), 2, 1);
    history.release((granted + 10, granted + 20), two);
    history.end(510, one, Outcome::TimedOut);
    history
}

#[test]
fn who_is_overtaken_until_its_time_is_over_is_found_too() {
    starved(499).breaks(Order, 1);
    // From then on it has left the queue.
    assert_eq!(starved(501).keeps(Order).figure, "0 overtaken of 1");
    let mut history = starved(499);
    history.fault((0, 1), 1, FaultKind::Cut, &[]);
    history.keeps(Order);
}

#[test]
fn order_is_only_promised_by_fair_engines_and_seen_in_the_queue() {
    let mut head = header(Workload::Queue);
    head.fair = false;
    let mut history = line(true, true);
    history.events[0] = Event::Run(Box::new(head));
    assert_eq!(history.leaves(Order).figure, "the engine does not promise it");
    history.events[0] = Event::Run(Box::new(header(Workload::Mutex)));
    history.leaves(Order);
}

/// Worker 1 loses its lock, whose deadline is at 1,010, and learns of it at `learned`; worker 2 is
/// granted it at `granted`.
fn loss(learned: u64, granted: u64) -> History {
    let mut history = History::of(Workload::Mutex);
    let first = history.take((0, 10), 1, 1);
    history.held(10, first);
    history.lost(learned, first, 1_010);
    let second = history.take((0, granted), 2, 2);
    history.held(granted + 1, second);
    history
}

#[test]
fn a_loss_learned_in_time() {
    let finding = loss(1_000, 1_020).keeps(Loss);
    assert_eq!(finding.checked, 3);
    assert_eq!(
        finding.figure,
        "2 looks, 1 loss: learned 10 ms before the deadline (median), at the latest 10 ms before the deadline"
    );
    // A scheduler's delay is no violation.
    loss(1_110, 1_010).keeps(Loss);
}

#[test]
fn a_loss_learned_too_late() {
    let verdict = loss(1_111, 1_010).breaks(Loss, 1);
    assert_eq!(verdict.violations[0].title, "the loss of \"a\" was learned 101 ms too late");
}

#[test]
fn who_did_not_run_cannot_learn() {
    let mut history = loss(3_000, 1_010);
    history.worker(500, 1, State::Stopped);
    history.worker(2_990, 1, State::Resumed);
    history.keeps(Loss);
    let mut history = loss(3_000, 1_010);
    history.worker(2_000, 1, State::Stalled { from: 1_900 * MS });
    history.keeps(Loss);
    // A stop that ended before excuses nothing.
    let mut history = loss(3_000, 1_010);
    history.worker(500, 1, State::Stopped);
    history.worker(600, 1, State::Resumed);
    history.breaks(Loss, 1);
}

#[test]
fn held_after_the_deadline_or_after_the_loss() {
    let mut history = History::of(Workload::Mutex);
    let hold = history.take((0, 10), 1, 1);
    history.events.push(Event::Held { t: 50 * MS, op: hold, deadline: 50 * MS });
    history.keeps(Loss);
    history.events.push(Event::Held { t: 60 * MS, op: hold, deadline: 59 * MS });
    history.breaks(Loss, 1);
    let mut history = History::of(Workload::Mutex);
    let hold = history.take((0, 10), 1, 1);
    history.held(60, hold);
    history.lost(60, hold, 1_060);
    history.keeps(Loss);
    history.held(61, hold);
    history.breaks(Loss, 1);
}

/// Worker 1 holds the lock when a fault hits it (or the server) at 100; worker 2 waits for it and
/// is granted it at `granted`.
fn after(kind: FaultKind, to: u64, workers: &[Worker], granted: Option<u64>) -> History {
    let mut history = History::of(Workload::Mutex);
    let first = history.take((0, 10), 1, 1);
    history.held(90, first);
    history.fault((100, to), 1, kind, workers);
    let call = history.begin(50, 2, alone("a"));
    if let Some(t) = granted {
        history.end(t, call, Outcome::Granted { token: 2, deadline: (t + TTL) * MS });
    }
    history.worker(20_000, 2, State::Ended);
    history
}

#[test]
fn recovery_within_the_bound() {
    let mut history = after(FaultKind::Kill, 120, &[1], Some(1_140));
    history.worker(100, 1, State::Killed);
    assert_eq!(history.keeps(Recovery).figure, "after kill at most 1.04 TTL");
    let recovered = &history.check().recovered[0];
    assert!(recovered.asked);
    assert_eq!((recovered.counted_from, recovered.granted), (100 * MS, Some(1_140 * MS)));
    assert_eq!(recovered.bound, 2_200 * MS);
    // From the end of the server's fault: 2 TTL and 3 s.
    after(FaultKind::Crash, 3_000, &[], Some(8_000)).keeps(Recovery);
    after(FaultKind::Stop, 4_000, &[1], Some(2_300)).keeps(Recovery);
}

#[test]
fn recovery_too_late_or_never() {
    after(FaultKind::Kill, 120, &[1], Some(2_301)).breaks(Recovery, 1);
    after(FaultKind::Stop, 9_000, &[1], None).breaks(Recovery, 1);
    after(FaultKind::Crash, 3_000, &[], Some(8_001)).breaks(Recovery, 1);
    after(FaultKind::Crash, 3_000, &[], None).breaks(Recovery, 1);
}

/// Where the kernel detects dead processes, no waiter has to wait for the lease to expire.
#[test]
fn what_is_free_at_once_must_be_had_at_once() {
    let on = |engine: &str, gone, granted| {
        let mut history = after(FaultKind::Kill, gone, &[1], Some(granted));
        if let Some(Event::Run(header)) = history.events.first_mut() {
            header.engine = engine.to_owned();
            header.ttl = 3 * TTL * MS;
        }
        history
    };
    on("file", 120, 2_120).keeps(Recovery);
    on("file", 120, 2_121).breaks(Recovery, 1);
    on("redis", 120, 2_121).keeps(Recovery);
    // A process that takes long to die keeps its locks, at most as long as their leases.
    on("file", 2_000, 4_000).keeps(Recovery);
    on("file", 2_000, 4_001).breaks(Recovery, 1);
    on("file", 9_000, 4_700).keeps(Recovery);
    on("file", 9_000, 4_701).breaks(Recovery, 1);
}

/// Two readers hold the lock, one of them is killed, and a writer waits: the bound begins when the
/// other reader has released.
#[test]
fn a_lock_that_another_worker_still_holds_need_not_be_granted() {
    let granted = |t: u64| {
        let mut history = History::of(Workload::Rwlock);
        let hit = history.lock((0, 10), 1, shared("a"), 1);
        let stays = history.lock((0, 10), 3, shared("a"), 2);
        history.held(90, hit);
        let call = history.begin(50, 2, alone("a"));
        history.fault((100, 120), 1, FaultKind::Kill, &[1]);
        history.worker(100, 1, State::Killed);
        history.held(7_400, stays);
        history.release((7_490, 7_500), stays);
        history.end(t, call, Outcome::Granted { token: 3, deadline: (t + TTL) * MS });
        history.worker(20_000, 2, State::Ended);
        history
    };
    granted(7_600).keeps(Recovery);
    granted(8_600).breaks(Recovery, 1);
}

/// A crash from 1 to 2 s, then calls one after the other, each `long`, none of them granted.
fn in_vain(long: u64, pause: u64, outcome: &Outcome) -> History {
    let mut history = History::of(Workload::Mutex);
    let first = history.take((0, 10), 1, 1);
    history.release((500, 510), first);
    history.fault((1_000, 2_000), 1, FaultKind::Crash, &[]);
    let mut t = 1_500;
    while t < 20_000 {
        let call = history.begin(t, 2, alone("a"));
        history.end(t + long, call, outcome.clone());
        t += long + pause;
    }
    history.done(21_000);
    history
}

#[test]
fn whoever_asks_again_and_again_in_vain_shows_that_nothing_recovered() {
    in_vain(2_000, 20, &Outcome::TimedOut).breaks(Recovery, 1);
    in_vain(1, 100, &failed()).breaks(Recovery, 1);
    in_vain(50, 100, &unknown()).breaks(Recovery, 1);
    // There were hardly any requests.
    in_vain(1, 3_000, &failed()).leaves(Recovery);
}

#[test]
fn other_faults_make_the_bound_later() {
    let mut history = after(FaultKind::Kill, 120, &[1], Some(6_000));
    history.fault((1_000, 2_000), 2, FaultKind::Crash, &[]);
    history.keeps(Recovery);
    let mut history = after(FaultKind::Kill, 120, &[1], Some(7_001));
    history.fault((1_000, 2_000), 2, FaultKind::Crash, &[]);
    history.breaks(Recovery, 2);
}

#[test]
fn recovery_is_only_judged_where_somebody_waited() {
    // The worker that was hit held nothing.
    after(FaultKind::Kill, 120, &[3], Some(9_000)).leaves(Recovery);
    // The waiter did not run.
    let mut history = after(FaultKind::Kill, 120, &[1], None);
    history.worker(200, 2, State::Killed);
    history.leaves(Recovery);
    // The history ends before the bound.
    let mut history = after(FaultKind::Kill, 120, &[1], None);
    history.events.pop();
    history.leaves(Recovery);
    // There was no request.
    let mut history = History::of(Workload::Mutex);
    let first = history.take((0, 10), 1, 1);
    history.held(90, first);
    history.fault((100, 120), 1, FaultKind::Kill, &[1]);
    history.done(9_000);
    history.leaves(Recovery);
}

#[test]
fn a_stop_that_was_too_short_to_lose_the_lock_says_nothing() {
    let mut history = History::of(Workload::Mutex);
    let first = history.take((0, 10), 1, 1);
    history.fault((100, 300), 1, FaultKind::Stop, &[1]);
    history.held(400, first);
    history.begin(50, 2, alone("a"));
    history.worker(9_000, 2, State::Ended);
    history.leaves(Recovery);
}

#[test]
fn leaks() {
    let mut history = History::of(Workload::Mutex);
    history.leaves(Leaks);
    history.events.push(Event::Clean { t: MS, locks: 1_234 });
    assert_eq!(history.keeps(Leaks).figure, "1,234 locks looked at, 0 left");
    let what = "held by worker 3, token 17".to_owned();
    history.events.push(Event::Leftover { t: MS, lock: "a".to_owned(), what });
    history.breaks(Leaks, 1);
}

/// A call with a deadline at 100 that ends at `end`.
fn due(end: Option<u64>) -> History {
    let mut history = History::of(Workload::Mutex);
    let op = history.begin_due(0, 1, Some(100), alone("a"));
    if let Some(end) = end {
        history.end(end, op, Outcome::TimedOut);
    }
    history
}

#[test]
fn calls_that_end_in_time() {
    assert_eq!(due(Some(90)).keeps(Deadlines).figure, "1 call, the latest 10 ms before its deadline");
    assert_eq!(due(Some(1_100)).keeps(Deadlines).figure, "1 call, the latest 1.000 s after its deadline");
}

#[test]
fn calls_that_end_too_late_or_never() {
    due(Some(1_101)).breaks(Deadlines, 1);
    let mut hung = due(None);
    hung.done(200);
    hung.breaks(Deadlines, 1);
    let mut cut_short = due(None);
    cut_short.worker(1_101, 2, State::Ended);
    cut_short.breaks(Deadlines, 1);
    let mut cut_short = due(None);
    cut_short.worker(1_100, 2, State::Ended);
    cut_short.leaves(Deadlines);
}

#[test]
fn time_in_which_the_worker_did_not_run_is_added() {
    let mut history = due(Some(1_500));
    history.worker(50, 1, State::Stopped);
    history.worker(450, 1, State::Resumed);
    history.keeps(Deadlines);
    history.events.pop();
    history.worker(449, 1, State::Resumed);
    history.breaks(Deadlines, 1);
    let mut killed = due(None);
    killed.worker(50, 1, State::Killed);
    killed.done(9_000);
    assert!(killed.check().holds());
    let mut stopped = due(None);
    stopped.worker(50, 1, State::Stopped);
    stopped.done(9_000);
    assert!(stopped.check().holds());
}

/// Granted at 10; a check at 500 shows that it is not held any more; released at `end`.
fn unheld(end: u64) -> (History, leasehold_verify::history::OpId) {
    let mut history = History::of(Workload::Mutex);
    let hold = history.take((0, 10), 1, 1);
    history.held(400, hold);
    history.unheld(500, hold);
    history.give_back((end, end + 10), hold, Outcome::WasLost { reason: "expired".to_owned() });
    (history, hold)
}

#[test]
fn a_loss_that_is_never_told_is_found_though_a_look_shows_it() {
    let verdict = unheld(1_000).0.breaks(Loss, 1);
    assert_eq!(verdict.violations[0].title, "the loss of \"a\" was never told");
    // It was released before the notification was due; or the worker did not run.
    unheld(999).0.keeps(Loss);
    let (mut history, _) = unheld(1_500);
    history.worker(700, 1, State::Stalled { from: 550 });
    history.keeps(Loss);
}

#[test]
fn a_loss_that_is_told_late_is_found_though_nobody_else_came() {
    let told = |t: u64, deadline: u64| {
        let (mut history, hold) = unheld(1_500);
        history.lost(t, hold, deadline);
        history
    };
    told(600, 1_400).keeps(Loss);
    let verdict = told(601, 1_400).breaks(Loss, 1);
    assert_eq!(verdict.violations[0].title, "the loss of \"a\" was told 101 ms late");
    // Its deadline was before that check.
    told(550, 449).breaks(Loss, 1);
    told(550, 450).keeps(Loss);
}

/// Worker 1 has the lock until 30; then no worker is granted it for a long time, though others
/// request it.
fn stuck(outcome: &Outcome) -> History {
    let mut history = History::of(Workload::Mutex);
    let first = history.take((10, 20), 1, 1);
    history.release((30, 40), first);
    for at in (5_000..15_000).step_by(500) {
        let asked = history.begin(at, 2, alone("a"));
        history.end(at + 480, asked, outcome.clone());
    }
    history.done(15_100);
    history
}

#[test]
fn a_lock_that_nobody_has_and_nobody_gets_is_found_without_any_fault() {
    stuck(&Outcome::TimedOut).breaks(Recovery, 1);
    stuck(&Outcome::Busy).breaks(Recovery, 1);
    // A worker may have had it.
    assert!(stuck(&unknown()).check().violations.is_empty());
    // Not all workers ran; servers were disturbed.
    let mut history = stuck(&Outcome::TimedOut);
    history.worker(9_500, 2, State::Stalled { from: 8_000 * MS });
    assert!(history.check().violations.is_empty());
    let mut history = stuck(&Outcome::TimedOut);
    history.fault((6_000, 14_000), 1, FaultKind::Cut, &[]);
    assert!(history.check().violations.is_empty());
    // A worker that holds it all the time.
    let mut history = History::of(Workload::Mutex);
    let first = history.take((10, 20), 1, 1);
    for at in (500..15_000).step_by(500) {
        history.held(at, first);
        let asked = history.begin(at, 2, alone("a"));
        history.end(at + 480, asked, Outcome::TimedOut);
    }
    history.release((15_000, 15_010), first);
    history.done(15_100);
    assert!(history.check().violations.is_empty());
}

#[test]
fn another_fault_makes_the_bound_longer_and_the_table_says_so() {
    let mut history = History::of(Workload::Mutex);
    let first = history.take((10, 20), 1, 1);
    history.release((30, 40), first);
    history.fault((100, 200), 1, FaultKind::Crash, &[]);
    history.fault((3_000, 7_000), 2, FaultKind::Crash, &[]);
    let next = history.take((150, 9_000), 2, 2);
    history.release((9_010, 9_020), next);
    history.done(20_000);
    let verdict = history.check();
    assert_eq!(verdict.violations, Vec::new());
    let bounds: Vec<u64> = verdict.recovered.iter().map(|one| one.bound / MS).collect();
    assert_eq!(bounds, [7_000 + 2 * TTL + 3_000 - 200, 2 * TTL + 3_000]);
}
