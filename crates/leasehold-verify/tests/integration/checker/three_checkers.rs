//! Compares three decisions on fenced registers: the checker's, porcupine's, and that of a search
//! of all orders.

use leasehold_verify::history::{Call, Outcome, Workload};
use leasehold_verify::verdict::{FindingStatus, Guarantee, SecondOpinion};
use proptest::prelude::*;

use crate::checker::history_builder::{HistoryBuilder, finding};

#[derive(Clone, Copy, Debug, PartialEq)]
enum OpEffect {
    Written,
    Read(Option<u64>),
    Refused(u64),
    Unknown,
    Open,
    Failed,
}

#[derive(Clone, Debug)]
struct RegisterOp {
    begin: u64,
    end: u64,
    hold: u64,
    token: u64,
    written_value: Option<u64>,
    effect: OpEffect,
}

#[derive(Clone, Copy, Default)]
struct Register {
    highest_token: Option<(u64, u64)>,
    value: Option<u64>,
}

impl Register {
    /// Executes an operation; returns what the register replies.
    fn apply(&mut self, op: &RegisterOp) -> OpEffect {
        let mine = (op.token, op.hold);
        match self.highest_token {
            Some(seen) if op.token < seen.0 || (op.token == seen.0 && seen != mine) => {
                return OpEffect::Refused(seen.0);
            }
            _ => self.highest_token = Some(mine),
        }
        match op.written_value {
            Some(value) => {
                self.value = Some(value);
                OpEffect::Written
            }
            None => OpEffect::Read(self.value),
        }
    }
}

/// Whether any order of the operations fits their times and results; tries all orders.
fn is_linearizable(ops: &[RegisterOp], register: Register) -> bool {
    let sure = |op: &&RegisterOp| !matches!(op.effect, OpEffect::Unknown | OpEffect::Open);
    let Some(first_end) = ops.iter().filter(sure).map(|op| op.end).min() else { return true };
    (0..ops.len()).any(|at| {
        let op = &ops[at];
        let mut rest = ops.to_vec();
        rest.remove(at);
        let mut after = register;
        let answer = after.apply(op);
        op.begin <= first_end && (!sure(&op) || answer == op.effect) && is_linearizable(&rest, after)
    })
}

/// The history of these operations on the register `r`.
fn history(ops: &[RegisterOp]) -> HistoryBuilder {
    let mut history = HistoryBuilder::for_workload(Workload::Fenced);
    for op in ops {
        let (hold, register, token) = (op.hold, "r".to_owned(), Some(op.token));
        let call = match op.written_value {
            Some(value) => Call::Write { hold, register, token, value },
            None => Call::Read { hold, register, token },
        };
        let id = history.begin(op.begin, 1, call);
        let outcome = match op.effect {
            OpEffect::Written => Outcome::Accepted,
            OpEffect::Read(value) => Outcome::Value { value },
            OpEffect::Refused(seen) => Outcome::Refused { seen },
            OpEffect::Unknown => crate::checker::history_builder::unknown_outcome(),
            OpEffect::Failed => crate::checker::history_builder::failed_outcome(),
            OpEffect::Open => continue,
        };
        history.end(op.end, id, outcome);
    }
    history
}

/// Up to `max_count` random operations, whose values are below `value_count`, or unique if that is
/// above 50. Their results are those of a correct register, except for some falsified ones.
fn arbitrary_ops(max_count: usize, value_count: u64) -> impl Strategy<Value = Vec<RegisterOp>> {
    let one = (0..14_u64, 0..7_u64, 1..4_u64, 1..4_u64, 0..value_count, any::<bool>(), 0..12_u8, 0..4_u64);
    (proptest::collection::vec(one, 1..=max_count), any::<bool>(), 0..6_u8).prop_map(move |(all, by_token, lies)| {
        let mut register = Register::default();
        let mut ops = Vec::new();
        for (at, (begin, len, hold, token, value, writes, outcome, lie)) in all.into_iter().enumerate() {
            // With `by_token`, each hold has its own token; otherwise tokens are random.
            let token = if by_token { hold } else { token };
            let value = if value_count > 50 { at as u64 } else { value };
            let write = writes.then_some(value);
            ops.push((
                RegisterOp { begin, end: begin + len, hold, token, written_value: write, effect: OpEffect::Open },
                outcome,
                lie,
            ));
        }
        ops.sort_by_key(|(op, outcome, _)| op.begin + u64::from(*outcome) * (op.end - op.begin) / 12);
        for (op, outcome, lie) in &mut ops {
            let mut done = register;
            let answer = done.apply(op);
            op.effect = match *outcome {
                0 => OpEffect::Unknown,
                1 => OpEffect::Open,
                2 => OpEffect::Failed,
                _ => answer,
            };
            if *outcome > 2 || (*outcome < 2 && *lie > 1) {
                register = done;
            }
            if *outcome > 11 - lies {
                op.effect = match (*lie, op.written_value) {
                    (0, _) => OpEffect::Refused(op.token + 1),
                    (1, _) => OpEffect::Refused(op.token),
                    (_, Some(_)) => OpEffect::Written,
                    (lie, None) => OpEffect::Read(lie.checked_sub(2)),
                };
            }
        }
        ops.into_iter().map(|(op, ..)| op).collect()
    })
}

/// Fails unless all three decisions agree; returns whether the operations are linearizable.
fn compare_checkers(ops: &[RegisterOp]) -> Result<bool, TestCaseError> {
    let verdict = history(ops).check();
    let known: Vec<RegisterOp> = ops.iter().filter(|op| op.effect != OpEffect::Failed).cloned().collect();
    let right = is_linearizable(&known, Register::default());
    let ours = finding(&verdict, Guarantee::Fencing).state != FindingStatus::Broken;
    prop_assert_eq!(
        ours,
        right,
        "ours finds {}, the search of all orders finds {}: {:#?}",
        ours,
        right,
        verdict.violations
    );
    let expected = if known.is_empty() { SecondOpinion::None } else { SecondOpinion::Agrees };
    prop_assert_eq!(verdict.second_opinion, expected);
    Ok(right)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(3_000) })]

    #[test]
    fn three_checkers_agree_on_unique_values(ops in arbitrary_ops(7, 100)) {
        compare_checkers(&ops)?;
    }

    #[test]
    fn three_checkers_agree_on_values_that_repeat(ops in arbitrary_ops(7, 3)) {
        compare_checkers(&ops)?;
    }
}

#[test]
fn the_random_histories_include_correct_and_incorrect_ones() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut right = 0;
    for _ in 0..600 {
        let ops = arbitrary_ops(7, 100).new_tree(&mut runner).expect("a history").current();
        right += u32::from(compare_checkers(&ops).expect("they agree"));
    }
    assert!((150..450).contains(&right), "{right} of 600 are right");
}
