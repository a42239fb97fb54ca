//! The effect of each policy, tick by tick.
#![allow(clippy::unwrap_used, reason = "these are tests")]

use proptest::prelude::*;

use super::ticks::tests::Every;
use super::*;

const MINUTELY: Every = Every(60);
const NAME: (&str, &str) = ("* * * * *", "UTC");

const PLAIN: Policy = Policy { crash: Crash::AtMostOnce, missed: Missed::Skip, overlap: Overlap::Skip, grace: 30 };

fn input<'a>(policy: &'a Policy, now: i64, token: u64) -> DecisionInput<'a> {
    let now = u64::try_from(now).unwrap() * 1000;
    let (schedule, ticks) = (NAME, &MINUTELY);
    DecisionInput {
        schedule,
        ticks,
        policy,
        since: 0,
        seen: None,
        server_run: None,
        now,
        token,
        node: "n",
        concurrent_tokens: &[],
    }
}

/// The record of a job whose ticks up to `watermark` were judged.
fn at(watermark: i64) -> JobRecord {
    JobRecord { watermark, ..JobRecord::new(NAME.0, NAME.1, 0) }
}

fn started(decision: &Decision) -> Option<(i64, u32)> {
    match &decision.action {
        Action::Start(run) => Some((run.tick, run.attempt)),
        _ => None,
    }
}

fn skipped(decision: &Decision) -> Vec<(TickOutcome, i64, u32)> {
    let entry = |note: &DecisionEvent| match note {
        DecisionEvent::TicksSkipped(entry) => Some((entry.outcome, entry.tick, entry.count)),
        _ => None,
    };
    decision.events.iter().filter_map(entry).collect()
}

/// Decides and runs at the time `now` until no work is left; each run ends at once. Returns the
/// final record and the ticks that ran, in order.
fn drain(mut state: JobRecord, policy: &Policy, now: i64) -> (JobRecord, Vec<i64>) {
    let mut run = Vec::new();
    for token in state.fence + 1.. {
        let decision = decide(Some(&state), &input(policy, now, token));
        state = decision.state.clone();
        let Some((tick, _)) = started(&decision) else { break };
        run.push(tick);
        state = state.with_run_ended(token, TickOutcome::Done, "", u64::try_from(now).unwrap() * 1000).unwrap();
    }
    (state, run)
}

#[test]
fn a_new_job_has_no_past() {
    let decision = decide(None, &DecisionInput { since: 125, ..input(&PLAIN, 130, 1) });
    assert_eq!((decision.action, decision.state.watermark), (Action::None, 125));
    let decision = decide(Some(&decision.state), &input(&PLAIN, 180, 2));
    assert_eq!(started(&decision), Some((180, 1)));
    assert_eq!(decision.state.watermark, 180);
    assert_eq!(decision.state.running.len(), 1);
}

#[test]
fn a_tick_that_was_judged_is_not_judged_again() {
    let first = decide(Some(&at(60)), &input(&PLAIN, 120, 1));
    assert_eq!(started(&first), Some((120, 1)));
    let done = first.state.with_run_ended(1, TickOutcome::Done, "", 120_500).unwrap();
    for (now, token) in [(120, 2), (150, 3), (179, 4)] {
        assert_eq!(decide(Some(&done), &input(&PLAIN, now, token)).action, Action::None);
    }
}

#[test]
fn a_clock_that_goes_back_fires_no_tick_and_keeps_the_watermark() {
    let done = at(6000);
    let decision = decide(Some(&done), &input(&PLAIN, 300, 9));
    assert_eq!((decision.action, decision.state.watermark), (Action::None, 6000));
    assert_eq!(done.seconds_ahead(300), Some(5700));
    assert_eq!(done.seconds_ahead(5990), None);
    assert_eq!(pending_work(&done, &MINUTELY, NAME, &PLAIN, 0, 300), PendingWork::Idle(Some(6060)));
    assert_eq!(started(&decide(Some(&done.reset(300)), &input(&PLAIN, 360, 10))), Some((360, 1)));
}

/// With concurrent runs, a node that was granted the lock earlier may decide later, when a run with
/// a higher token has already died.
#[test]
fn a_dead_run_is_never_run_again_with_a_lower_token() {
    let policy = Policy { crash: Crash::Retry { attempts: 2 }, overlap: Overlap::Allow { max: 2 }, ..PLAIN };
    let begun = decide(Some(&at(60)), &DecisionInput { concurrent_tokens: &[1, 2], ..input(&policy, 120, 2) });
    assert_eq!(started(&begun), Some((120, 1)));
    let early = decide(Some(&begun.state), &DecisionInput { concurrent_tokens: &[1], ..input(&policy, 130, 1) });
    assert_eq!(
        (early.action, early.state.running.len()),
        (Action::None, 1),
        "a node with a higher token takes it over"
    );
    let late = decide(Some(&early.state), &DecisionInput { concurrent_tokens: &[3], ..input(&policy, 131, 3) });
    assert_eq!(started(&late), Some((120, 2)));
}

/// The end of a run in the future, left by a wrong clock, does not count as a run in progress.
#[test]
fn after_a_reset_nothing_overlaps_with_a_run_that_ended_in_the_future() {
    let begun = decide(Some(&at(5940)), &input(&PLAIN, 6000, 1)).state;
    let ended = begun.with_run_ended(1, TickOutcome::Done, "", 6_001_000).unwrap();
    let reset = ended.reset(300);
    assert_eq!((reset.watermark, reset.busy_until), (300, 300_000));
    for overlap in [Overlap::Skip, Overlap::Queue, Overlap::Allow { max: 2 }] {
        let decision = decide(Some(&reset), &input(&Policy { overlap, ..PLAIN }, 360, 2));
        assert_eq!((started(&decision), skipped(&decision)), (Some((360, 1)), Vec::new()), "{overlap:?}");
    }
    // The end of a run in the past stays as it is.
    assert_eq!(JobRecord { busy_until: 7, ..at(6000) }.reset(300).busy_until, 7);
}

#[test]
fn missed_ticks_are_skipped_run_once_or_run_up_to_a_limit() {
    // No node ran for ten hours; the last tick is 40 s old.
    let (state, now) = (at(60), 36_100);
    let decision = decide(Some(&state), &input(&PLAIN, now, 1));
    assert_eq!(started(&decision), None);
    assert_eq!(skipped(&decision), [(TickOutcome::Missed, 36_060, 600)]);
    let once = Policy { missed: Missed::Once, ..PLAIN };
    assert_eq!(drain(state.clone(), &once, now).1, [36_060]);
    let all = Policy { missed: Missed::All { limit: 3 }, ..PLAIN };
    let (after, run) = drain(state.clone(), &all, now);
    assert_eq!(run, [35_940, 36_000, 36_060]);
    assert_eq!(after.watermark, 36_060);
    assert_eq!(after.history.first().map(|entry| (entry.outcome, entry.count)), Some((TickOutcome::Missed, 597)));
    // A tick that is in time runs in any case, and replaces the others.
    assert_eq!(drain(state.clone(), &PLAIN, 36_080).1, [36_060]);
    assert_eq!(drain(state, &once, 36_080).1, [36_060]);
}

#[test]
fn a_long_absence_is_examined_in_bounded_time() {
    let all = Policy { missed: Missed::All { limit: 5 }, ..PLAIN };
    let now = 60 * 60 * 24 * 365 * 50 + 40;
    let (state, run) = drain(at(0), &all, now);
    assert_eq!(run.len(), 5);
    assert_eq!(run.last(), Some(&(now - 40)));
    assert_eq!(state.watermark, now - 40);
}

#[test]
fn ticks_due_during_a_run_are_skipped_queued_or_run_concurrently() {
    let begin = |policy: &Policy| decide(Some(&at(0)), &input(policy, 60, 1)).state;
    let end = |state: &JobRecord, now: u64| state.with_run_ended(1, TickOutcome::Done, "", now).unwrap();
    // From 60 to 185: 120 and 180 came due meanwhile.
    let decision = decide(Some(&end(&begin(&PLAIN), 185_000)), &input(&PLAIN, 185, 2));
    assert_eq!(started(&decision), None);
    assert_eq!(skipped(&decision), [(TickOutcome::Overlapped, 180, 2)]);
    let queue = Policy { overlap: Overlap::Queue, ..PLAIN };
    assert_eq!(drain(end(&begin(&queue), 185_000), &queue, 185).1, [120, 180]);
    let allow = Policy { overlap: Overlap::Allow { max: 2 }, ..PLAIN };
    let beside = DecisionInput { concurrent_tokens: &[1], ..input(&allow, 120, 2) };
    let decision = decide(Some(&begin(&allow)), &beside);
    assert_eq!(started(&decision), Some((120, 1)));
    assert_eq!(decision.state.running.len(), 2);
}

#[test]
fn a_queued_tick_runs_although_it_is_late_by_then() {
    let queue = Policy { overlap: Overlap::Queue, ..PLAIN };
    let state = decide(Some(&at(0)), &input(&queue, 60, 1)).state;
    let state = state.with_run_ended(1, TickOutcome::Done, "", 400_000).unwrap();
    // The second run of the queue begins long after, and counts as not missed.
    let second = decide(Some(&state), &input(&queue, 400, 2));
    assert_eq!((started(&second), second.state.queue.len()), (Some((120, 1)), 4));
    let state = second.state.with_run_ended(2, TickOutcome::Done, "", 900_000).unwrap();
    let (_, run) = drain(state, &queue, 900);
    assert_eq!(run, [180, 240, 300, 360, 420, 480, 540, 600, 660, 720, 780, 840, 900]);
}

#[test]
fn a_dead_run_is_recorded_or_retried_with_a_higher_token_up_to_a_limit() {
    let dead = decide(Some(&at(0)), &input(&PLAIN, 60, 1)).state;
    let once = decide(Some(&dead), &input(&PLAIN, 70, 2));
    assert_eq!(started(&once), None);
    assert!(matches!(&once.events[..], [DecisionEvent::RunCrashed(run, false)] if run.token == 1));
    assert_eq!(once.state.history[0].outcome, TickOutcome::Crashed);
    assert!(once.state.running.is_empty());

    let retry = Policy { crash: Crash::Retry { attempts: 3 }, ..PLAIN };
    let mut state = dead;
    for (token, attempt) in [(2, 2), (3, 3)] {
        assert_eq!(pending_work(&state, &MINUTELY, NAME, &retry, 0, 70), PendingWork::WatchRun);
        let again = decide(Some(&state), &input(&retry, 70, token));
        assert_eq!(started(&again), Some((60, attempt)));
        assert_eq!(again.state.running.iter().map(|run| run.token).collect::<Vec<_>>(), [token]);
        state = again.state;
    }
    let end = decide(Some(&state), &input(&retry, 70, 4));
    assert_eq!((started(&end), end.state.running.len(), end.state.history.len()), (None, 0, 3));
}

#[test]
fn of_concurrent_runs_only_those_without_the_lock_are_dead() {
    let allow = Policy { overlap: Overlap::Allow { max: 3 }, crash: Crash::Retry { attempts: 2 }, ..PLAIN };
    let mut state = at(0);
    for (now, token, beside) in [(60, 1, &[][..]), (120, 2, &[1]), (180, 3, &[1, 2])] {
        state = decide(Some(&state), &DecisionInput { concurrent_tokens: beside, ..input(&allow, now, token) }).state;
    }
    // 1 and 3 died; 4 holds beside 2.
    let decision = decide(Some(&state), &DecisionInput { concurrent_tokens: &[2], ..input(&allow, 190, 4) });
    assert_eq!(started(&decision), Some((60, 2)), "one is taken over");
    let running: Vec<_> = decision.state.running.iter().map(|run| run.token).collect();
    assert_eq!(running, [2, 3, 4], "the other waits for the next node");
    // With concurrent runs, a lower token than the last is normal.
    assert_eq!(
        started(&decide(Some(&state), &DecisionInput { concurrent_tokens: &[1, 3], ..input(&allow, 190, 2) })),
        Some((120, 1))
    );
}

#[test]
fn a_node_with_an_older_token_than_the_record_starts_no_run() {
    let newer = decide(Some(&at(0)), &input(&PLAIN, 60, 7)).state;
    assert_eq!(decide(Some(&newer), &input(&PLAIN, 120, 6)).action, Action::Superseded(7));
}

#[test]
fn a_lost_reply_is_recognised_by_the_token() {
    let first = decide(Some(&at(0)), &input(&PLAIN, 60, 7));
    let again = decide(Some(&first.state), &input(&PLAIN, 61, 7));
    assert_eq!(again.action, first.action);
    assert_eq!(again.state, first.state);
}

#[test]
fn a_pause_begins_no_run_and_drops_its_ticks() {
    let paused = at(0).pause("me", 10).unwrap();
    assert!(paused.pause("me", 11).is_none());
    assert_eq!(pending_work(&paused, &MINUTELY, NAME, &PLAIN, 0, 300), PendingWork::Idle(None));
    assert_eq!(decide(Some(&paused), &input(&PLAIN, 300, 1)).action, Action::None);
    let requested = paused.run_now("you", 310).unwrap();
    assert_eq!(pending_work(&requested, &MINUTELY, NAME, &PLAIN, 0, 310), PendingWork::Due);
    let by_hand = decide(Some(&requested), &input(&PLAIN, 310, 1));
    assert!(matches!(&by_hand.action, Action::Start(run) if run.manual && run.tick == 310));
    let resumed = paused.resume(310).unwrap();
    assert!(resumed.resume(310).is_none());
    assert_eq!(decide(Some(&resumed), &input(&PLAIN, 311, 1)).action, Action::None);
    assert_eq!(started(&decide(Some(&resumed), &input(&PLAIN, 360, 1))), Some((360, 1)));
}

#[test]
fn a_manual_run_does_not_change_the_schedule() {
    let requested = at(60).run_now("me", 100).unwrap();
    let by_hand = decide(Some(&requested), &input(&PLAIN, 100, 1));
    assert!(matches!(&by_hand.action, Action::Start(run) if run.manual));
    let state = by_hand.state.with_run_ended(1, TickOutcome::Done, "", 101_000).unwrap();
    assert_eq!(started(&decide(Some(&state), &input(&PLAIN, 120, 2))), Some((120, 1)));
    let many = (0..50).fold(at(60), |state, _| state.run_now("me", 1).unwrap_or(state));
    assert_eq!(many.wanted.len(), super::job_record::MAX_MANUAL_RUNS);
}

#[test]
fn a_new_schedule_does_not_fire_its_past_ticks() {
    let hourly = JobRecord { schedule: "@hourly".to_owned(), ..at(3600) };
    let fresh = DecisionInput { since: 7000, ..input(&PLAIN, 7010, 1) };
    let decision = decide(Some(&hourly), &fresh);
    assert_eq!((decision.action, decision.state.watermark), (Action::None, 7000));
    assert!(matches!(&decision.events[..], [DecisionEvent::ScheduleChanged(from)] if from == "@hourly"));
    // A node that always had this schedule continues with it beside nodes that had another.
    let before = decide(Some(&hourly), &DecisionInput { since: 100, ..input(&PLAIN, 7030, 1) });
    assert_eq!(started(&before), Some((7020, 1)));
}

#[test]
fn the_history_and_the_queue_are_bounded() {
    let queue = Policy { overlap: Overlap::Queue, ..PLAIN };
    let mut state = at(0);
    for token in 1..200 {
        let now = 60 * i64::try_from(token).unwrap();
        state = decide(Some(&state), &input(&queue, now, token)).state;
        state = state.with_run_ended(token, TickOutcome::Failed, "no", u64::try_from(now).unwrap() * 1000).unwrap();
    }
    assert_eq!(state.history.len(), super::job_record::MAX_HISTORY);
    state.busy_until = u64::MAX;
    let far = decide(Some(&state), &input(&queue, 60 * 5000, 1000));
    assert_eq!(far.state.queue.len() + 1, MAX_TICKS);
    let again = decide(Some(&far.state), &input(&queue, 60 * 7000, 1001));
    assert_eq!(again.state.queue.len() + 1, MAX_TICKS);
    assert!(skipped(&again).iter().any(|(outcome, ..)| *outcome == TickOutcome::Overlapped));
}

#[test]
fn a_late_end_is_not_recorded() {
    let dead = decide(Some(&at(0)), &input(&PLAIN, 60, 1)).state;
    let buried = decide(Some(&dead), &input(&PLAIN, 70, 2)).state;
    assert_eq!(buried.with_run_ended(1, TickOutcome::Done, "", 71_000), None);
}

#[test]
fn a_lost_record_restarts_from_now_and_an_outdated_one_from_the_state_seen() {
    let seen = Some(SeenState { resets: 0, watermark: 120 });
    let wiped = decide(None, &DecisionInput { seen, ..input(&PLAIN, 185, 1) });
    assert_eq!((&wiped.action, wiped.state.watermark), (&Action::None, 185), "180 may have run elsewhere");
    assert_eq!(skipped(&wiped), [(TickOutcome::Unknown, 180, 1)]);
    let before = JobRecord { queue: vec![60], ..at(60) };
    let back = decide(Some(&before), &DecisionInput { seen, ..input(&PLAIN, 130, 1) });
    assert_eq!((&back.action, back.state.watermark), (&Action::None, 120));
    assert_eq!(skipped(&back), [(TickOutcome::Unknown, 60, 1)], "it is unknown whether it has begun");
    assert_eq!(started(&decide(Some(&before), &DecisionInput { seen, ..input(&PLAIN, 180, 1) })), Some((180, 1)));
    // A reset is no loss.
    let reset = at(120).reset(50);
    assert_eq!(started(&decide(Some(&reset), &DecisionInput { seen, ..input(&PLAIN, 60, 1) })), Some((60, 1)));
}

proptest! {
    #[test]
    fn no_tick_is_decided_below_the_state_seen(
        record in prop::option::of((0i64..3000, 0u32..3, prop::collection::vec(0i64..3000, 0..4))),
        (resets, watermark) in (0u32..3, 0i64..3000),
        now in 0i64..4000,
    ) {
        let record = record.map(|(mark, resets, mut queue)| {
            queue.retain(|tick| *tick <= mark);
            JobRecord { resets, queue, ..at(mark) }
        });
        let seen = SeenState { resets, watermark };
        let policy = Policy { missed: Missed::All { limit: 9 }, overlap: Overlap::Queue, ..PLAIN };
        let decision = decide(record.as_ref(), &DecisionInput { seen: Some(seen), ..input(&policy, now, 1) });
        let newer = record.as_ref().is_some_and(|record| SeenState::from_record(record) >= seen);
        prop_assert!(SeenState::from_record(&decision.state) >= seen);
        if let Some((tick, _)) = started(&decision) {
            prop_assert!(newer || tick > watermark, "{} is not after {}", tick, watermark);
        }
    }
}

#[test]
fn a_started_run_is_written_even_if_it_is_already_recorded() {
    let first = decide(Some(&at(0)), &input(&PLAIN, 60, 7));
    assert!(first.must_be_written(Some(&at(0))));
    let again = decide(Some(&first.state), &input(&PLAIN, 61, 7));
    assert!(again.must_be_written(Some(&first.state)), "the reply was lost: the write is not confirmed");
    let unchanged = decide(Some(&at(60)), &input(&PLAIN, 70, 8));
    assert!(!unchanged.must_be_written(Some(&at(60))), "a higher token alone");
    assert!(decide(None, &input(&PLAIN, 0, 8)).must_be_written(None));
}
