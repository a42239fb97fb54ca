//! A second opinion on a fenced register's history, by the independent linearizability checker
//! porcupine.

use std::time::Duration;

use porcupine_rs::{CheckResult, Model, Operation, check_operations_timeout};

use super::register::{OpEffect, RegisterOp};
use crate::history::RunNanos;

/// porcupine checks only histories of at most this many operations.
pub(crate) const MAX_OPERATIONS: usize = 10_000;

/// The time limit for all registers of a history together.
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// The approximate memory limit in bytes: porcupine stores a set of operations for each visited
/// state.
const MEMORY_LIMIT: u64 = 1 << 30;

/// An upper bound on how many states porcupine visits in a second.
const STATES_PER_SECOND: u64 = 500_000;

/// porcupine's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PorcupineResult {
    Linearizable,
    NotLinearizable,
    Undecided,
}

/// The rules of a fenced register, as porcupine's model.
#[derive(Clone, Debug)]
struct FencedRegister;

#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
struct RegisterState {
    /// The highest token that was presented, and its holder; `None`: none yet.
    highest_token: Option<(u64, u64)>,
    value: Option<u64>,
}

#[derive(Clone, Debug)]
struct PorcupineOp {
    token: u64,
    /// A number for the holder that presented the token.
    holder: u64,
    effect: OpEffect,
}

impl Model for FencedRegister {
    type State = RegisterState;
    type Op = PorcupineOp;
    type Metadata = ();

    fn init() -> RegisterState {
        RegisterState::default()
    }

    fn step(state: &RegisterState, op: &PorcupineOp) -> (bool, RegisterState) {
        let mine = (op.token, op.holder);
        let accepts = state.highest_token.is_none_or(|seen| op.token > seen.0 || seen == mine);
        let with = |value| RegisterState { highest_token: Some(mine), value };
        match op.effect {
            OpEffect::Written(value) if accepts => (true, with(Some(value))),
            OpEffect::Read(value) if accepts && value == state.value => (true, with(value)),
            OpEffect::Refused { seen } if !accepts => {
                (state.highest_token.is_some_and(|(token, _)| token == seen), state.clone())
            }
            // These operations may never have happened; porcupine may place them after all others,
            // where they change nothing.
            OpEffect::MaybeWritten(value) if accepts => (true, with(Some(value))),
            OpEffect::MaybeRead if accepts => (true, with(state.value)),
            OpEffect::MaybeWritten(_) | OpEffect::MaybeRead => (true, state.clone()),
            _ => (false, state.clone()),
        }
    }
}

/// Checks one register's history. The time limit is shared by `register_count` registers.
pub(crate) fn check(ops: &[RegisterOp<'_>], register_count: usize) -> PorcupineResult {
    let mut holders: Vec<_> = ops.iter().map(|op| op.holder).collect();
    holders.sort_unstable();
    holders.dedup();
    // Only the order of the times matters; porcupine's times are narrower than the history's.
    let mut times: Vec<RunNanos> = ops.iter().flat_map(|op| [op.began_at, op.ended_at]).collect();
    times.sort_unstable();
    times.dedup();
    let time = |t: RunNanos| i64::try_from(times.binary_search(&t).unwrap_or_default()).unwrap_or(i64::MAX);
    let history: Vec<Operation<FencedRegister>> = ops
        .iter()
        .map(|op| {
            let holder = holders.binary_search(&op.holder).unwrap_or(usize::MAX) as u64;
            Operation {
                client_id: None,
                call_time: time(op.began_at),
                return_time: time(op.ended_at),
                op: PorcupineOp { token: op.token, holder, effect: op.effect },
                metadata: None,
            }
        })
        .collect();
    match check_operations_timeout::<FencedRegister>(&history, time_limit(ops.len() as u64, register_count as u64)) {
        CheckResult::Ok => PorcupineResult::Linearizable,
        CheckResult::Illegal => PorcupineResult::NotLinearizable,
        CheckResult::Unknown => PorcupineResult::Undecided,
    }
}

/// The time limit for one register with this many operations, so that neither the time limit of all
/// registers nor the memory limit is exceeded.
fn time_limit(op_count: u64, register_count: u64) -> Duration {
    let bytes_in_a_second = STATES_PER_SECOND * (op_count / 8 + 200);
    let fits = Duration::from_millis(MEMORY_LIMIT * 1_000 / bytes_in_a_second);
    let share = TIME_LIMIT / u32::try_from(register_count.max(1)).unwrap_or(u32::MAX);
    share.min(fits.max(Duration::from_secs(3)))
}
