//! Checks the registers: a fenced one never accepts an old token and is linearizable; an unfenced
//! one accepts no stale write.

mod linearizability;
mod phase;
mod rules;
mod unfenced;

use std::collections::BTreeMap;

use super::format::{describe_fault_at, format_count, format_quantity};
use super::porcupine::{self, PorcupineResult};
use super::timeline::{Invocation, Timeline};
use super::{GuaranteeResult, ViolationLog};
use crate::history::{Call, OpId, Outcome, RunNanos, WorkerId};
use crate::verdict::{Guarantee, SecondOpinion};
pub(crate) use linearizability::{Linearizability, decide_linearizability};

/// Who presents a token to a register: all holds of one named owner count as the same presenter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Presenter<'a> {
    /// The named owner of the hold.
    Owner(&'a str),
    /// The number of the hold's call, if it has no named owner.
    Hold(OpId),
}

/// What an operation on a fenced register did, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpEffect {
    /// The register accepted this value.
    Written(u64),
    /// The register returned this value; `None`: nothing was written yet.
    Read(Option<u64>),
    /// The register refused the write or read.
    Refused {
        /// The highest token that it had seen.
        seen: u64,
    },
    /// The outcome of a write of this value is unknown.
    MaybeWritten(u64),
    /// The outcome of a read is unknown: it may have presented its token.
    MaybeRead,
}

/// An operation on a fenced register.
#[derive(Clone, Debug)]
pub(crate) struct RegisterOp<'a> {
    pub(crate) op_id: OpId,
    pub(crate) worker: WorkerId,
    pub(crate) began_at: RunNanos,
    /// `RunNanos::MAX`: the outcome is unknown, and it may take effect at any time from its
    /// beginning on.
    pub(crate) ended_at: RunNanos,
    pub(crate) token: u64,
    pub(crate) holder: Presenter<'a>,
    pub(crate) effect: OpEffect,
}

impl RegisterOp<'_> {
    /// Whether the register accepted the token.
    pub(crate) fn is_accepted(&self) -> bool {
        matches!(self.effect, OpEffect::Written(_) | OpEffect::Read(_))
    }

    /// Whether its outcome is unknown.
    pub(crate) fn is_uncertain(&self) -> bool {
        matches!(self.effect, OpEffect::MaybeWritten(_) | OpEffect::MaybeRead)
    }

    /// The value that it wrote, or may have written; `None`: it wrote none.
    pub(crate) fn written_value(&self) -> Option<u64> {
        if let OpEffect::Written(value) | OpEffect::MaybeWritten(value) = self.effect { Some(value) } else { None }
    }
}

/// All calls to one register.
#[derive(Debug, Default)]
pub(crate) struct RegisterCalls<'a> {
    pub(crate) calls: Vec<&'a Invocation<'a>>,
    /// Whether any call presented a token.
    has_tokens: bool,
    /// Whether any write presented no token, which shows that the register checks none.
    has_unfenced_writes: bool,
}

/// Checks every register; also returns whether porcupine agrees.
pub(crate) fn check(timeline: &Timeline<'_>) -> (GuaranteeResult, SecondOpinion) {
    let mut log = ViolationLog::new(Guarantee::Fencing);
    let registers = calls_by_register(timeline);
    let (mut stale, mut accepted_stale) = (0, 0);
    let mut fenced: Vec<(&str, Vec<RegisterOp<'_>>, Linearizability)> = Vec::new();
    for (name, register) in &registers {
        let ended = register.calls.iter().filter(|invocation| invocation.ended.is_some());
        log.checked_count += ended.count() as u64;
        if register.has_unfenced_writes || !register.has_tokens {
            let accepted = unfenced::check(timeline, name, register, &mut log);
            stale += accepted;
            accepted_stale += accepted;
            continue;
        }
        let ops = register_ops(timeline, register);
        let accepted = rules::report_stale(timeline, name, &ops, &mut log);
        let refused = |op: &&&Invocation<'_>| {
            matches!((op.call, op.ended), (Call::Write { .. }, Some((_, Outcome::Refused { .. }))))
        };
        stale += accepted + register.calls.iter().filter(|invocation| refused(invocation)).count() as u64;
        accepted_stale += accepted;
        let others = rules::report_impossible(timeline, name, &ops, &mut log);
        let decision = decide_linearizability(&ops);
        if let Linearizability::NotLinearizable(token) = decision
            && accepted + others == 0
        {
            rules::report_not_linearizable(timeline, name, &ops, token, &mut log);
        }
        fenced.push((name, ops, decision));
    }
    let opinion = compare_checkers(timeline, &fenced, &mut log);
    let figure = match log.checked_count {
        0 => "no register was used".to_owned(),
        n => {
            let stale = format_quantity(stale, "stale write");
            format!(
                "{} on registers; {stale}, {} accepted",
                format_quantity(n, "operation"),
                format_count(accepted_stale)
            )
        }
    };
    (log.into_result(figure), opinion)
}

fn calls_by_register<'a>(timeline: &'a Timeline<'a>) -> BTreeMap<&'a str, RegisterCalls<'a>> {
    let mut registers: BTreeMap<&str, RegisterCalls<'_>> = BTreeMap::new();
    for invocation in &timeline.calls {
        let (Call::Write { register, token, .. } | Call::Read { register, token, .. }) = invocation.call else {
            continue;
        };
        let one = registers.entry(register).or_default();
        one.has_tokens |= token.is_some();
        one.has_unfenced_writes |= token.is_none() && matches!(invocation.call, Call::Write { .. });
        one.calls.push(invocation);
    }
    registers
}

/// The operations on a fenced register that may have taken effect. Reads without a token change
/// nothing and are left out.
fn register_ops<'a>(timeline: &'a Timeline<'a>, register: &RegisterCalls<'a>) -> Vec<RegisterOp<'a>> {
    let mut ops = Vec::new();
    for invocation in &register.calls {
        let (hold, token, write) = match invocation.call {
            Call::Write { hold, token: Some(token), value, .. } => (*hold, *token, Some(*value)),
            Call::Read { hold, token: Some(token), .. } => (*hold, *token, None),
            _ => continue,
        };
        let (end, effect) = match (invocation.ended, write) {
            (Some((_, Outcome::Failed { .. })), _) => continue,
            (Some((end, Outcome::Refused { seen })), _) => (end, OpEffect::Refused { seen: *seen }),
            (Some((end, Outcome::Accepted)), Some(value)) => (end, OpEffect::Written(value)),
            (Some((end, Outcome::Value { value })), None) => (end, OpEffect::Read(*value)),
            (_, Some(value)) => (RunNanos::MAX, OpEffect::MaybeWritten(value)),
            (_, None) => (RunNanos::MAX, OpEffect::MaybeRead),
        };
        let holder = timeline.hold(hold).and_then(|hold| hold.owner).map_or(Presenter::Hold(hold), Presenter::Owner);
        ops.push(RegisterOp {
            op_id: invocation.op,
            worker: invocation.worker_id,
            began_at: invocation.began_at,
            ended_at: end,
            token,
            holder,
            effect,
        });
    }
    ops
}

/// Lets porcupine decide each register that is not too long for it, and reports any disagreement
/// with the built-in checker's result, the last item of each tuple.
fn compare_checkers(
    timeline: &Timeline<'_>,
    fenced: &[(&str, Vec<RegisterOp<'_>>, Linearizability)],
    log: &mut ViolationLog,
) -> SecondOpinion {
    let short = fenced.iter().filter(|(_, ops, _)| !ops.is_empty() && ops.len() <= porcupine::MAX_OPERATIONS);
    let short: Vec<_> = short.collect();
    let mut opinion = if short.is_empty() { SecondOpinion::None } else { SecondOpinion::Agrees };
    let long = fenced.iter().filter(|(_, ops, _)| ops.len() > porcupine::MAX_OPERATIONS);
    log.is_undecided |= long.into_iter().any(|(.., built_in)| matches!(built_in, Linearizability::Undecided));
    for (name, ops, built_in) in &short {
        let porcupine_result = porcupine::check(ops, short.len());
        log.is_undecided |=
            matches!((built_in, porcupine_result), (Linearizability::Undecided, PorcupineResult::Undecided));
        let differ = match (built_in, porcupine_result) {
            (_, PorcupineResult::Undecided) | (Linearizability::Undecided, PorcupineResult::Linearizable) => {
                if opinion == SecondOpinion::Agrees {
                    opinion = SecondOpinion::Undecided;
                }
                continue;
            }
            (Linearizability::Linearizable, PorcupineResult::Linearizable)
            | (Linearizability::NotLinearizable(_), PorcupineResult::NotLinearizable) => continue,
            (Linearizability::NotLinearizable(_), PorcupineResult::Linearizable) => {
                "The built-in checker finds no possible order of its operations, and porcupine finds one."
            }
            (_, PorcupineResult::NotLinearizable) => {
                "porcupine finds no possible order of its operations, and the built-in checker does not agree."
            }
        };
        opinion = SecondOpinion::Differs;
        let from = ops.iter().map(|op| op.began_at).min().unwrap_or(0);
        let details = format!(
            "The two checkers disagree on the history of register {name:?}, which has {}. {differ} One of them is wrong. {}",
            format_quantity(ops.len() as u64, "operation"),
            describe_fault_at(timeline, from)
        );
        log.add_violation(
            (from, timeline.last_event_at),
            &[],
            &[],
            format!("the two checkers disagree on register {name:?}"),
            details,
        );
    }
    opinion
}
