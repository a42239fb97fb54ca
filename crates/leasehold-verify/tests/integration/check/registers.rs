//! Fencing, the counter, and the second opinion.

use leasehold_verify::history::{Call, Outcome, State, Workload};
use leasehold_verify::verdict::Promise::{Counter, Fencing};
use leasehold_verify::verdict::SecondOpinion;

use crate::check::build::{History, failed, header, unknown, value};

const OK: Outcome = Outcome::Accepted;
const NOTHING: Outcome = Outcome::Value { value: None };

fn two_holders() -> (History, u64, u64) {
    let mut history = History::of(Workload::Fenced);
    let first = history.take((0, 10), 1, 1);
    let second = history.take((0, 1_100), 2, 2);
    (history, first, second)
}

fn broken(history: &History) {
    let verdict = history.breaks(Fencing, 1);
    assert_eq!(verdict.second_opinion, SecondOpinion::Agrees);
}

fn kept(history: &History) -> String {
    assert_eq!(history.check().second_opinion, SecondOpinion::Agrees);
    history.keeps(Fencing).figure
}

#[test]
fn a_stale_write_that_is_refused_keeps_fencing() {
    let (mut history, first, second) = two_holders();
    history.read((20, 30), first, Some(1), NOTHING);
    history.write((40, 50), first, Some(1), 11, OK);
    history.read((1_110, 1_120), second, Some(2), value(11));
    history.write((1_130, 1_140), second, Some(2), 12, OK);
    history.write((1_150, 1_160), first, Some(1), 13, Outcome::Refused { seen: 2 });
    history.read((1_170, 1_180), second, Some(2), value(12));
    assert_eq!(kept(&history), "6 operations on registers; 1 stale write, 0 accepted");
}

#[test]
fn a_stale_write_that_is_accepted_breaks_it() {
    let (mut history, first, second) = two_holders();
    history.write((1_130, 1_140), second, Some(2), 12, OK);
    history.write((1_150, 1_160), first, Some(1), 13, OK);
    broken(&history);
    let finding = crate::check::build::finding(&history.check(), Fencing);
    assert_eq!(finding.figure, "2 operations on registers; 1 stale write, 1 accepted");
}

#[test]
fn a_read_shows_its_token_too() {
    let (mut history, first, second) = two_holders();
    history.read((1_130, 1_140), second, Some(2), NOTHING);
    history.write((1_150, 1_160), first, Some(1), 13, OK);
    broken(&history);
}

#[test]
fn writes_at_one_time_may_have_either_order() {
    let (mut history, first, second) = two_holders();
    history.write((1_130, 1_150), second, Some(2), 12, OK);
    history.write((1_150, 1_160), first, Some(1), 13, OK);
    history.read((1_170, 1_180), second, Some(2), value(12));
    kept(&history);
}

#[test]
fn the_same_token_of_two_holds_breaks_it() {
    let (mut history, first, second) = two_holders();
    history.write((20, 30), first, Some(1), 11, OK);
    history.write((1_130, 1_150), second, Some(1), 12, OK);
    broken(&history);
}

#[test]
fn the_same_token_of_another_hold_is_refused_with_reason() {
    let (mut history, first, second) = two_holders();
    history.write((20, 30), first, Some(1), 11, OK);
    history.write((1_130, 1_150), second, Some(1), 12, Outcome::Refused { seen: 1 });
    kept(&history);
}

#[test]
fn a_refusal_without_a_reason_breaks_it() {
    let (mut history, first, second) = two_holders();
    history.write((20, 30), first, Some(1), 11, Outcome::Refused { seen: 2 });
    history.write((1_130, 1_150), second, Some(2), 12, OK);
    broken(&history);
}

#[test]
fn an_open_write_is_a_reason_to_refuse() {
    let (mut history, first, second) = two_holders();
    history.begin(1_130, 2, Call::Write { hold: second, register: "r".to_owned(), token: Some(2), value: 12 });
    history.worker(1_135, 2, State::Killed);
    history.write((1_140, 1_150), first, Some(1), 11, Outcome::Refused { seen: 2 });
    kept(&history);
}

#[test]
fn an_unknown_write_may_have_been_or_not() {
    for seen in [NOTHING, value(11)] {
        let (mut history, first, second) = two_holders();
        history.write((20, 30), first, Some(1), 11, unknown());
        history.read((1_130, 1_140), second, Some(2), seen);
        kept(&history);
    }
}

#[test]
fn an_unknown_write_cannot_come_after_a_higher_token() {
    let (mut history, first, second) = two_holders();
    history.write((20, 30), first, Some(1), 11, unknown());
    history.read((1_130, 1_140), second, Some(2), NOTHING);
    history.read((1_150, 1_160), second, Some(2), value(11));
    broken(&history);
}

#[test]
fn a_failed_write_was_not() {
    let (mut history, first, second) = two_holders();
    history.write((20, 30), first, Some(1), 11, failed());
    history.read((1_130, 1_140), second, Some(2), value(11));
    broken(&history);
}

#[test]
fn an_old_value_breaks_it() {
    let (mut history, first, second) = two_holders();
    history.write((20, 30), first, Some(1), 11, OK);
    history.read((1_130, 1_140), second, Some(2), NOTHING);
    broken(&history);
}

#[test]
fn an_old_value_of_the_same_hold_breaks_it() {
    let (mut history, first, _) = two_holders();
    history.write((20, 30), first, Some(1), 11, OK);
    history.write((40, 50), first, Some(1), 12, OK);
    history.read((60, 70), first, Some(1), value(11));
    broken(&history);
}

#[test]
fn a_register_that_asks_for_no_token_lets_a_stale_write_through() {
    for fencing in [true, false] {
        let mut head = header(Workload::Unfenced);
        head.fencing = fencing;
        let mut history = History::with(head);
        let first = history.take((0, 10), 1, 1);
        let second = history.take((0, 1_100), 2, if fencing { 2 } else { 1 });
        history.write((20, 30), first, None, 11, OK);
        history.write((1_130, 1_140), second, None, 12, OK);
        history.keeps(Fencing);
        history.write((1_150, 1_160), first, None, 13, OK);
        let verdict = history.breaks(Fencing, 1);
        assert_eq!(verdict.second_opinion, SecondOpinion::None);
    }
}

#[test]
fn no_register_no_opinion() {
    let history = History::of(Workload::Fenced);
    history.leaves(Fencing);
    assert_eq!(history.check().second_opinion, SecondOpinion::None);
}

fn counting(last: Outcome, read: u64, wrote: u64) -> History {
    let mut history = History::of(Workload::Counter);
    let first = history.take((0, 10), 1, 1);
    history.read((20, 30), first, Some(1), NOTHING);
    history.write((40, 50), first, Some(1), 1, OK);
    let second = history.take((0, 1_100), 2, 2);
    history.read((1_110, 1_120), second, Some(2), value(read));
    history.write((1_130, 1_140), second, Some(2), wrote, last);
    history
}

#[test]
fn a_counter_that_counts() {
    assert_eq!(counting(OK, 1, 2).keeps(Counter).figure, "2 increments, counted up to 2");
    counting(unknown(), 1, 2).keeps(Counter);
    counting(Outcome::Refused { seen: 3 }, 1, 2).check();
}

#[test]
fn a_lost_increment() {
    // The register lost the first one; fencing is broken, too.
    let verdict = counting(OK, 0, 1).breaks(Counter, 1);
    assert!(verdict.violations.iter().any(|one| one.title.contains("lost an increment")), "{verdict:#?}");
}

#[test]
fn an_increment_by_two() {
    counting(OK, 1, 3).breaks(Counter, 2);
}

#[test]
fn a_counter_ahead_of_its_increments() {
    let mut history = counting(OK, 1, 2);
    let third = history.take((1_200, 1_210), 3, 3);
    history.read((1_220, 1_230), third, Some(3), value(9));
    history.breaks(Counter, 1);
}

#[test]
fn values_of_unknown_increments_may_be_written_again() {
    let mut history = counting(unknown(), 1, 2);
    let third = history.take((2_200, 2_210), 3, 3);
    history.read((2_220, 2_230), third, Some(3), value(1));
    history.write((2_240, 2_250), third, Some(3), 2, OK);
    history.keeps(Counter);
    kept(&history);
}
