//! Servers that lose acknowledged writes, and report their server run.
#![allow(clippy::unwrap_used, reason = "these are tests")]

use proptest::prelude::*;

use super::ticks::tests::Every;
use super::*;

const MINUTELY: Every = Every(60);
const NAME: (&str, &str) = ("* * * * *", "UTC");
const ONCE: Policy =
    Policy { crash: Crash::AtMostOnce, missed: Missed::All { limit: 9 }, overlap: Overlap::Queue, grace: 600 };
const RETRY: Policy = Policy { crash: Crash::Retry { attempts: 3 }, ..ONCE };

fn input<'a>(policy: &'a Policy, run: (&'a str, i64), now: i64, token: u64) -> DecisionInput<'a> {
    let now = u64::try_from(now).unwrap() * 1000;
    let (schedule, ticks, run) = (NAME, &MINUTELY, Some(run));
    DecisionInput {
        schedule,
        ticks,
        policy,
        since: 0,
        seen: None,
        server_run: run,
        now,
        token,
        node: "n",
        concurrent_tokens: &[],
    }
}

/// The record of a job whose ticks up to `watermark` were judged in the server run named `run`.
fn at(watermark: i64, run: &str) -> JobRecord {
    JobRecord { watermark, run: run.to_owned(), ..JobRecord::new(NAME.0, NAME.1, 0) }
}

fn unknown(decision: &Decision) -> Vec<(i64, u32)> {
    let of = |entry: &&HistoryEntry| entry.outcome == TickOutcome::Unknown;
    decision.state.history.iter().filter(of).map(|entry| (entry.tick, entry.count)).collect()
}

fn started(decision: &Decision) -> Option<(i64, u32)> {
    match &decision.action {
        Action::Start(run) => Some((run.tick, run.attempt)),
        _ => None,
    }
}

#[test]
fn ticks_due_before_the_server_run_are_unknown_and_later_ones_run() {
    let decision = decide(Some(&at(60, "first")), &input(&ONCE, ("second", 190), 250, 1));
    assert_eq!((unknown(&decision), started(&decision)), (vec![(180, 2)], Some((240, 1))));
    assert_eq!((decision.state.run.as_str(), decision.state.uncertain_until), ("second", 190));
    assert!(serde_json::to_string(&decision.state).unwrap().contains("\"doubt\":190"), "the stored name stays");
    // A tick in the same second as the beginning of the server run may have begun before.
    let decision = decide(Some(&at(60, "first")), &input(&ONCE, ("second", 180), 185, 1));
    assert_eq!((unknown(&decision), started(&decision)), (vec![(180, 2)], None));
}

#[test]
fn in_the_server_run_of_the_record_nothing_is_uncertain() {
    let decision = decide(Some(&at(60, "first")), &input(&ONCE, ("first", 1000), 130, 1));
    assert_eq!((unknown(&decision), started(&decision)), (vec![], Some((120, 1))));
    // An engine that does not report its server runs leaves the record's unchanged.
    let silent = DecisionInput { server_run: None, ..input(&ONCE, ("", 0), 130, 1) };
    let decision = decide(Some(&at(60, "first")), &silent);
    assert_eq!((started(&decision), decision.state.run.as_str()), (Some((120, 1)), "first"));
}

#[test]
fn queued_ticks_and_manual_runs_may_have_started() {
    let by_hand = |at| OperatorRequest { at, by: "me".to_owned() };
    let before = JobRecord { queue: vec![60, 120], wanted: vec![by_hand(130), by_hand(205)], ..at(120, "first") };
    let decision = decide(Some(&before), &input(&ONCE, ("second", 200), 210, 1));
    assert_eq!(unknown(&decision), [(130, 3), (180, 1)]);
    assert_eq!(started(&decision), Some((205, 1)), "it was requested in this server run");
    assert!(decision.state.queue.is_empty());
}

#[test]
fn retry_starts_another_attempt() {
    let before = JobRecord { queue: vec![60], ..at(60, "first") };
    let decision = decide(Some(&before), &input(&RETRY, ("second", 130), 190, 1));
    assert_eq!((unknown(&decision), started(&decision)), (vec![], Some((60, 2))));
    let ended = decision.state.with_run_ended(1, TickOutcome::Done, "", 191_000).unwrap();
    let decision = decide(Some(&ended), &input(&RETRY, ("second", 130), 192, 2));
    assert_eq!(started(&decision), Some((120, 2)));
    let ended = decision.state.with_run_ended(2, TickOutcome::Done, "", 193_000).unwrap();
    assert_eq!(started(&decide(Some(&ended), &input(&RETRY, ("second", 130), 194, 3))), Some((180, 1)));
    // With a limit of one attempt, no attempt is left.
    let one = Policy { crash: Crash::Retry { attempts: 1 }, ..RETRY };
    assert_eq!(unknown(&decide(Some(&before), &input(&one, ("second", 130), 170, 1))), [(60, 1), (120, 1)]);
}

#[test]
fn a_pause_or_an_end_in_the_new_server_run_removes_no_uncertainty() {
    let running = decide(Some(&at(0, "first")), &input(&ONCE, ("first", 0), 60, 1)).state;
    let ended = running.with_run_ended(1, TickOutcome::Done, "", 130_000).unwrap();
    assert_eq!(unknown(&decide(Some(&ended), &input(&ONCE, ("second", 125), 140, 2))), [(120, 1)]);
    let paused = at(0, "first").pause("me", 100).unwrap();
    let decision = decide(Some(&paused), &input(&ONCE, ("second", 125), 140, 2));
    assert_eq!((unknown(&decision), &decision.action), (vec![], &Action::None));
    let resumed = decision.state.resume(150).unwrap();
    assert_eq!(started(&decide(Some(&resumed), &input(&ONCE, ("second", 125), 180, 3))), Some((180, 1)));
}

#[test]
fn a_clock_set_back_removes_no_uncertainty_but_a_reset_does() {
    // The server run began at 1000, and the clock shows 130 now.
    let decision = decide(Some(&at(60, "first")), &input(&ONCE, ("second", 1000), 130, 1));
    assert_eq!((unknown(&decision), started(&decision)), (vec![(120, 1)], None));
    let later = decide(Some(&decision.state), &input(&ONCE, ("second", 1000), 190, 2));
    assert_eq!(started(&later), None);
    let reset = later.state.reset(200);
    assert_eq!(started(&decide(Some(&reset), &input(&ONCE, ("second", 1000), 240, 3))), Some((240, 1)));
}

#[test]
fn a_job_without_a_record_does_not_start_ticks_from_before_the_server_run() {
    // As a `run --once-per` call by the system's cron for 180.
    let call = DecisionInput { since: 179, ..input(&ONCE, ("second", 182), 183, 1) };
    let decision = decide(None, &call);
    assert_eq!((unknown(&decision), started(&decision)), (vec![(180, 1)], None));
    let next = DecisionInput { since: 239, ..input(&ONCE, ("second", 182), 241, 2) };
    assert_eq!(started(&decide(Some(&decision.state), &next)), Some((240, 1)));
}

#[test]
fn a_run_without_an_end_is_recorded_as_maybe_ended() {
    let running = decide(Some(&at(0, "first")), &input(&ONCE, ("first", 0), 60, 1)).state;
    let after = decide(Some(&running), &input(&ONCE, ("second", 70), 75, 2)).state;
    let entry = after.history.last().unwrap();
    assert_eq!((entry.outcome, entry.text.as_str()), (TickOutcome::Crashed, "or the engine has lost its outcome"));
}

proptest! {
    /// With `AtMostOnce`, whatever the record says: no tick begins that may have begun in an
    /// earlier server run.
    #[test]
    fn no_tick_up_to_the_start_of_the_server_run_starts(
        (watermark, mut queue) in (0i64..3000, prop::collection::vec(0i64..3000, 0..4)),
        (began, now) in (0i64..3000, 0i64..4000),
        known in any::<bool>(),
    ) {
        queue.retain(|tick| *tick <= watermark);
        let record = known.then(|| JobRecord { queue, ..at(watermark, "first") });
        let decision = decide(record.as_ref(), &input(&ONCE, ("second", began), now, 1));
        prop_assert!(started(&decision).is_none_or(|(tick, attempt)| tick > began && attempt == 1));
        prop_assert!(decision.state.queue.iter().all(|tick| *tick > began));
        // Each is judged: it is in the history, or it will run.
        let again = decide(Some(&decision.state), &input(&ONCE, ("second", began), now, 2));
        prop_assert_eq!(again.state.watermark, decision.state.watermark);
    }
}
