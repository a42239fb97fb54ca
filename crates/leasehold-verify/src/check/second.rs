//! A second opinion on a fenced register's history: an independent checker (porcupine), which does
//! not use phases, but tries orders.

use std::time::Duration;

use porcupine_rs::{CheckResult, Model, Operation, check_operations_timeout};

use super::register::{Did, Op};
use crate::history::Nanos;

/// The longest history to check with it.
pub(crate) const LONGEST: usize = 10_000;

/// The time limit for all registers together.
const PATIENCE: Duration = Duration::from_secs(20);

/// A rough memory limit: it stores a set of operations for each state that it has visited.
const MEMORY: u64 = 1 << 30;

/// How many states it visits in a second, at most.
const SPEED: u64 = 500_000;

/// Its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opinion {
    Fits,
    Broken,
    Undecided,
}

/// The register: the highest token and its owner, and the value.
#[derive(Clone, Debug)]
struct Fenced;

#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
struct State {
    seen: Option<(u64, u64)>,
    value: Option<u64>,
}

#[derive(Clone, Debug)]
struct Shown {
    token: u64,
    holder: u64,
    did: Did,
}

impl Model for Fenced {
    type State = State;
    type Op = Shown;
    type Metadata = ();

    fn init() -> State {
        State::default()
    }

    fn step(state: &State, op: &Shown) -> (bool, State) {
        let mine = (op.token, op.holder);
        let accepts = state.seen.is_none_or(|seen| op.token > seen.0 || seen == mine);
        let with = |value| State { seen: Some(mine), value };
        match op.did {
            Did::Wrote(value) if accepts => (true, with(Some(value))),
            Did::Read(value) if accepts && value == state.value => (true, with(value)),
            Did::Refused { seen } if !accepts => (state.seen.is_some_and(|(token, _)| token == seen), state.clone()),
            // These operations may never have happened, which is the same as after all others.
            Did::MayWrite(value) if accepts => (true, with(Some(value))),
            Did::MayRead if accepts => (true, with(state.value)),
            Did::MayWrite(_) | Did::MayRead => (true, state.clone()),
            _ => (false, state.clone()),
        }
    }
}

/// Checks the history of one of `registers` registers.
pub(crate) fn ask(ops: &[Op<'_>], registers: usize) -> Opinion {
    let mut holders: Vec<_> = ops.iter().map(|op| op.holder).collect();
    holders.sort_unstable();
    holders.dedup();
    // Only the order of the times matters; porcupine's times are narrower than ours.
    let mut times: Vec<Nanos> = ops.iter().flat_map(|op| [op.begin, op.end]).collect();
    times.sort_unstable();
    times.dedup();
    let time = |t: Nanos| i64::try_from(times.binary_search(&t).unwrap_or_default()).unwrap_or(i64::MAX);
    let history: Vec<Operation<Fenced>> = ops
        .iter()
        .map(|op| {
            let holder = holders.binary_search(&op.holder).unwrap_or(usize::MAX) as u64;
            Operation {
                client_id: None,
                call_time: time(op.begin),
                return_time: time(op.end),
                op: Shown { token: op.token, holder, did: op.did },
                metadata: None,
            }
        })
        .collect();
    match check_operations_timeout::<Fenced>(&history, patience(ops.len() as u64, registers as u64)) {
        CheckResult::Ok => Opinion::Fits,
        CheckResult::Illegal => Opinion::Broken,
        CheckResult::Unknown => Opinion::Undecided,
    }
}

/// The time limit for this many operations, such that neither time nor memory runs out.
fn patience(ops: u64, registers: u64) -> Duration {
    let bytes_in_a_second = SPEED * (ops / 8 + 200);
    let fits = Duration::from_millis(MEMORY * 1_000 / bytes_in_a_second);
    let share = PATIENCE / u32::try_from(registers.max(1)).unwrap_or(u32::MAX);
    share.min(fits.max(Duration::from_secs(3)))
}
