//! Checks that a fenced register never accepts an old token and is linearizable, and counts what an
//! unfenced register lets through.

mod exact;
mod phase;
mod rules;
mod unfenced;

use std::collections::BTreeMap;

use super::second::{self, Opinion};
use super::story::{Made, Story};
use super::words::{count, counted, fault_at};
use super::{Bench, Judged};
use crate::history::{Call, Nanos, OpId, Outcome, Worker};
use crate::verdict::{Promise, SecondOpinion};
pub(crate) use exact::{Decision, decide};

/// The presenter of a token: two holds of one owner count as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Holder<'a> {
    Owner(&'a str),
    Hold(OpId),
}

/// The outcome of an operation on a fenced register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Did {
    Wrote(u64),
    Read(Option<u64>),
    Refused {
        seen: u64,
    },
    /// It may have written, at an unknown time.
    MayWrite(u64),
    /// It may have presented its token.
    MayRead,
}

/// An operation on a fenced register.
#[derive(Clone, Debug)]
pub(crate) struct Op<'a> {
    pub(crate) op: OpId,
    pub(crate) worker: Worker,
    pub(crate) begin: Nanos,
    /// `Nanos::MAX` if it may take effect at any time after its beginning.
    pub(crate) end: Nanos,
    pub(crate) token: u64,
    pub(crate) holder: Holder<'a>,
    pub(crate) did: Did,
}

impl Op<'_> {
    pub(crate) fn accepted(&self) -> bool {
        matches!(self.did, Did::Wrote(_) | Did::Read(_))
    }

    pub(crate) fn maybe(&self) -> bool {
        matches!(self.did, Did::MayWrite(_) | Did::MayRead)
    }

    /// The value that it wrote, or may have written.
    pub(crate) fn writes(&self) -> Option<u64> {
        if let Did::Wrote(value) | Did::MayWrite(value) = self.did { Some(value) } else { None }
    }
}

/// All calls to one register, and whether it checks tokens: a write without a token shows that it
/// does not.
#[derive(Debug, Default)]
pub(crate) struct Register<'a> {
    pub(crate) calls: Vec<&'a Made<'a>>,
    tokens: bool,
    bare_writes: bool,
}

pub(crate) fn check(story: &Story<'_>) -> (Judged, SecondOpinion) {
    let mut bench = Bench::new(Promise::Fencing);
    let registers = registers(story);
    let (mut stale, mut let_through) = (0, 0);
    let mut fenced: Vec<(&str, Vec<Op<'_>>, Decision)> = Vec::new();
    for (name, register) in &registers {
        let answered = register.calls.iter().filter(|made| made.end.is_some());
        bench.checked += answered.count() as u64;
        if register.bare_writes || !register.tokens {
            let through = unfenced::check(story, name, register, &mut bench);
            stale += through;
            let_through += through;
            continue;
        }
        let ops = ops(story, register);
        let through = rules::stale(story, name, &ops, &mut bench);
        let refused =
            |op: &&&Made<'_>| matches!((op.call, op.end), (Call::Write { .. }, Some((_, Outcome::Refused { .. }))));
        stale += through + register.calls.iter().filter(|made| refused(made)).count() as u64;
        let_through += through;
        let others = rules::others(story, name, &ops, &mut bench);
        let decision = decide(&ops);
        if let Decision::Broken(token) = decision
            && through + others == 0
        {
            rules::unexplained(story, name, &ops, token, &mut bench);
        }
        fenced.push((name, ops, decision));
    }
    let opinion = ask(story, &fenced, &mut bench);
    let figure = match bench.checked {
        0 => "no register was used".to_owned(),
        n => {
            let stale = counted(stale, "stale write");
            format!("{} on registers; {stale}, {} accepted", counted(n, "operation"), count(let_through))
        }
    };
    (bench.judged(figure), opinion)
}

fn registers<'a>(story: &'a Story<'a>) -> BTreeMap<&'a str, Register<'a>> {
    let mut registers: BTreeMap<&str, Register<'_>> = BTreeMap::new();
    for made in &story.calls {
        let (Call::Write { register, token, .. } | Call::Read { register, token, .. }) = made.call else { continue };
        let one = registers.entry(register).or_default();
        one.tokens |= token.is_some();
        one.bare_writes |= token.is_none() && matches!(made.call, Call::Write { .. });
        one.calls.push(made);
    }
    registers
}

/// The operations that present a token. An operation without one only reads, and changes nothing.
fn ops<'a>(story: &'a Story<'a>, register: &Register<'a>) -> Vec<Op<'a>> {
    let mut ops = Vec::new();
    for made in &register.calls {
        let (hold, token, write) = match made.call {
            Call::Write { hold, token: Some(token), value, .. } => (*hold, *token, Some(*value)),
            Call::Read { hold, token: Some(token), .. } => (*hold, *token, None),
            _ => continue,
        };
        let (end, did) = match (made.end, write) {
            (Some((_, Outcome::Failed { .. })), _) => continue,
            (Some((end, Outcome::Refused { seen })), _) => (end, Did::Refused { seen: *seen }),
            (Some((end, Outcome::Accepted)), Some(value)) => (end, Did::Wrote(value)),
            (Some((end, Outcome::Value { value })), None) => (end, Did::Read(*value)),
            (_, Some(value)) => (Nanos::MAX, Did::MayWrite(value)),
            (_, None) => (Nanos::MAX, Did::MayRead),
        };
        let holder = story.hold(hold).and_then(|hold| hold.owner).map_or(Holder::Hold(hold), Holder::Owner);
        ops.push(Op { op: made.op, worker: made.worker, begin: made.begin, end, token, holder, did });
    }
    ops
}

fn ask(story: &Story<'_>, fenced: &[(&str, Vec<Op<'_>>, Decision)], bench: &mut Bench) -> SecondOpinion {
    let short = fenced.iter().filter(|(_, ops, _)| !ops.is_empty() && ops.len() <= second::LONGEST);
    let short: Vec<_> = short.collect();
    let mut opinion = if short.is_empty() { SecondOpinion::None } else { SecondOpinion::Agrees };
    let long = fenced.iter().filter(|(_, ops, _)| ops.len() > second::LONGEST);
    bench.undecided |= long.into_iter().any(|(.., ours)| matches!(ours, Decision::Undecided));
    for (name, ops, ours) in &short {
        let theirs = second::ask(ops, short.len());
        bench.undecided |= matches!((ours, theirs), (Decision::Undecided, Opinion::Undecided));
        let differ = match (ours, theirs) {
            (_, Opinion::Undecided) | (Decision::Undecided, Opinion::Fits) => {
                if opinion == SecondOpinion::Agrees {
                    opinion = SecondOpinion::Undecided;
                }
                continue;
            }
            (Decision::Fits, Opinion::Fits) | (Decision::Broken(_), Opinion::Broken) => continue,
            (Decision::Broken(_), Opinion::Fits) => {
                "Ours finds no order of its operations that fits, the second one does."
            }
            (_, Opinion::Broken) => "The second one finds no order of its operations that fits, ours does not say so.",
        };
        opinion = SecondOpinion::Differs;
        let from = ops.iter().map(|op| op.begin).min().unwrap_or(0);
        let words = format!(
            "The two checkers disagree on the history of register {name:?}, which has {}. {differ} One of them is wrong. {}",
            counted(ops.len() as u64, "operation"),
            fault_at(story, from)
        );
        bench.broken((from, story.last), &[], &[], format!("the two checkers disagree on register {name:?}"), words);
    }
    opinion
}
