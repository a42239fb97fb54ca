//! Tests the checks of fencing and counters, and the second opinion of porcupine.

use leasehold_verify::history::{Call, Outcome, WorkerState, Workload};
use leasehold_verify::verdict::Guarantee::{Counter, Fencing};
use leasehold_verify::verdict::SecondOpinion;

use crate::checker::history_builder::{HistoryBuilder, failed_outcome, header, unknown_outcome, value_outcome};

const ACCEPTED: Outcome = Outcome::Accepted;
const NO_VALUE: Outcome = Outcome::Value { value: None };

/// Worker 1 holds the lock with token 1, then worker 2 with token 2, from 1,100 on. Returns the
/// history and their calls.
fn two_holders() -> (HistoryBuilder, u64, u64) {
    let mut history = HistoryBuilder::for_workload(Workload::Fenced);
    let first = history.acquire((0, 10), 1, 1);
    let second = history.acquire((0, 1_100), 2, 2);
    (history, first, second)
}

/// Fencing must be broken once, and porcupine must agree.
fn assert_fencing_broken(history: &HistoryBuilder) {
    let verdict = history.assert_broken(Fencing, 1);
    assert_eq!(verdict.second_opinion, SecondOpinion::Agrees);
}

/// Fencing must be kept, and porcupine must agree. Returns the finding's figure.
fn assert_fencing_kept(history: &HistoryBuilder) -> String {
    assert_eq!(history.check().second_opinion, SecondOpinion::Agrees);
    history.assert_kept(Fencing).figure
}

#[test]
fn a_stale_write_that_is_refused_keeps_fencing() {
    let (mut history, first, second) = two_holders();
    history.read((20, 30), first, Some(1), NO_VALUE);
    history.write((40, 50), first, Some(1), 11, ACCEPTED);
    history.read((1_110, 1_120), second, Some(2), value_outcome(11));
    history.write((1_130, 1_140), second, Some(2), 12, ACCEPTED);
    history.write((1_150, 1_160), first, Some(1), 13, Outcome::Refused { seen: 2 });
    history.read((1_170, 1_180), second, Some(2), value_outcome(12));
    assert_eq!(assert_fencing_kept(&history), "6 operations on registers; 1 stale write, 0 accepted");
}

#[test]
fn an_accepted_stale_write_breaks_fencing() {
    let (mut history, first, second) = two_holders();
    history.write((1_130, 1_140), second, Some(2), 12, ACCEPTED);
    history.write((1_150, 1_160), first, Some(1), 13, ACCEPTED);
    assert_fencing_broken(&history);
    let finding = crate::checker::history_builder::finding(&history.check(), Fencing);
    assert_eq!(finding.figure, "2 operations on registers; 1 stale write, 1 accepted");
}

#[test]
fn a_read_presents_its_token_too() {
    let (mut history, first, second) = two_holders();
    history.read((1_130, 1_140), second, Some(2), NO_VALUE);
    history.write((1_150, 1_160), first, Some(1), 13, ACCEPTED);
    assert_fencing_broken(&history);
}

#[test]
fn concurrent_writes_may_have_either_order() {
    let (mut history, first, second) = two_holders();
    history.write((1_130, 1_150), second, Some(2), 12, ACCEPTED);
    history.write((1_150, 1_160), first, Some(1), 13, ACCEPTED);
    history.read((1_170, 1_180), second, Some(2), value_outcome(12));
    assert_fencing_kept(&history);
}

#[test]
fn one_token_of_two_holds_breaks_fencing() {
    let (mut history, first, second) = two_holders();
    history.write((20, 30), first, Some(1), 11, ACCEPTED);
    history.write((1_130, 1_150), second, Some(1), 12, ACCEPTED);
    assert_fencing_broken(&history);
}

#[test]
fn refusing_the_same_token_of_another_hold_keeps_fencing() {
    let (mut history, first, second) = two_holders();
    history.write((20, 30), first, Some(1), 11, ACCEPTED);
    history.write((1_130, 1_150), second, Some(1), 12, Outcome::Refused { seen: 1 });
    assert_fencing_kept(&history);
}

#[test]
fn a_refusal_without_a_reason_breaks_fencing() {
    let (mut history, first, second) = two_holders();
    history.write((20, 30), first, Some(1), 11, Outcome::Refused { seen: 2 });
    history.write((1_130, 1_150), second, Some(2), 12, ACCEPTED);
    assert_fencing_broken(&history);
}

#[test]
fn an_open_write_is_a_reason_to_refuse() {
    let (mut history, first, second) = two_holders();
    history.begin(1_130, 2, Call::Write { hold: second, register: "r".to_owned(), token: Some(2), value: 12 });
    history.add_worker_state(1_135, 2, WorkerState::Killed);
    history.write((1_140, 1_150), first, Some(1), 11, Outcome::Refused { seen: 2 });
    assert_fencing_kept(&history);
}

#[test]
fn an_unknown_write_may_or_may_not_have_taken_effect() {
    for seen in [NO_VALUE, value_outcome(11)] {
        let (mut history, first, second) = two_holders();
        history.write((20, 30), first, Some(1), 11, unknown_outcome());
        history.read((1_130, 1_140), second, Some(2), seen);
        assert_fencing_kept(&history);
    }
}

#[test]
fn an_unknown_write_cannot_take_effect_after_a_higher_token() {
    let (mut history, first, second) = two_holders();
    history.write((20, 30), first, Some(1), 11, unknown_outcome());
    history.read((1_130, 1_140), second, Some(2), NO_VALUE);
    history.read((1_150, 1_160), second, Some(2), value_outcome(11));
    assert_fencing_broken(&history);
}

#[test]
fn a_failed_write_has_no_effect() {
    let (mut history, first, second) = two_holders();
    history.write((20, 30), first, Some(1), 11, failed_outcome());
    history.read((1_130, 1_140), second, Some(2), value_outcome(11));
    assert_fencing_broken(&history);
}

#[test]
fn reading_an_old_value_breaks_fencing() {
    let (mut history, first, second) = two_holders();
    history.write((20, 30), first, Some(1), 11, ACCEPTED);
    history.read((1_130, 1_140), second, Some(2), NO_VALUE);
    assert_fencing_broken(&history);
}

#[test]
fn reading_an_old_value_of_the_same_hold_breaks_fencing() {
    let (mut history, first, _) = two_holders();
    history.write((20, 30), first, Some(1), 11, ACCEPTED);
    history.write((40, 50), first, Some(1), 12, ACCEPTED);
    history.read((60, 70), first, Some(1), value_outcome(11));
    assert_fencing_broken(&history);
}

#[test]
fn a_register_without_tokens_accepts_a_stale_write() {
    for fencing in [true, false] {
        let mut head = header(Workload::Unfenced);
        head.fencing = fencing;
        let mut history = HistoryBuilder::with_header(head);
        let first = history.acquire((0, 10), 1, 1);
        let second = history.acquire((0, 1_100), 2, if fencing { 2 } else { 1 });
        history.write((20, 30), first, None, 11, ACCEPTED);
        history.write((1_130, 1_140), second, None, 12, ACCEPTED);
        history.assert_kept(Fencing);
        history.write((1_150, 1_160), first, None, 13, ACCEPTED);
        let verdict = history.assert_broken(Fencing, 1);
        assert_eq!(verdict.second_opinion, SecondOpinion::None);
    }
}

#[test]
fn without_a_register_there_is_no_second_opinion() {
    let history = HistoryBuilder::for_workload(Workload::Fenced);
    history.assert_untested(Fencing);
    assert_eq!(history.check().second_opinion, SecondOpinion::None);
}

/// Worker 1 increments a counter to 1. Then worker 2 reads `read`, and its write of `wrote` has the
/// outcome `last`.
fn counter_history(last: Outcome, read: u64, wrote: u64) -> HistoryBuilder {
    let mut history = HistoryBuilder::for_workload(Workload::Counter);
    let first = history.acquire((0, 10), 1, 1);
    history.read((20, 30), first, Some(1), NO_VALUE);
    history.write((40, 50), first, Some(1), 1, ACCEPTED);
    let second = history.acquire((0, 1_100), 2, 2);
    history.read((1_110, 1_120), second, Some(2), value_outcome(read));
    history.write((1_130, 1_140), second, Some(2), wrote, last);
    history
}

#[test]
fn a_correct_counter_is_kept() {
    assert_eq!(counter_history(ACCEPTED, 1, 2).assert_kept(Counter).figure, "2 increments, counted up to 2");
    counter_history(unknown_outcome(), 1, 2).assert_kept(Counter);
    counter_history(Outcome::Refused { seen: 3 }, 1, 2).check();
}

#[test]
fn a_lost_increment_is_found() {
    // The register lost the first increment, which breaks fencing, too.
    let verdict = counter_history(ACCEPTED, 0, 1).assert_broken(Counter, 1);
    assert!(verdict.violations.iter().any(|one| one.title.contains("lost an increment")), "{verdict:#?}");
}

#[test]
fn an_increment_by_two_is_found() {
    counter_history(ACCEPTED, 1, 3).assert_broken(Counter, 2);
}

#[test]
fn a_counter_ahead_of_its_increments_is_found() {
    let mut history = counter_history(ACCEPTED, 1, 2);
    let third = history.acquire((1_200, 1_210), 3, 3);
    history.read((1_220, 1_230), third, Some(3), value_outcome(9));
    history.assert_broken(Counter, 1);
}

#[test]
fn values_of_unknown_increments_may_be_written_again() {
    let mut history = counter_history(unknown_outcome(), 1, 2);
    let third = history.acquire((2_200, 2_210), 3, 3);
    history.read((2_220, 2_230), third, Some(3), value_outcome(1));
    history.write((2_240, 2_250), third, Some(3), 2, ACCEPTED);
    history.assert_kept(Counter);
    assert_fencing_kept(&history);
}
