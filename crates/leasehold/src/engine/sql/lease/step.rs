//! Decides requests for one lock on its row. Pure functions.

use std::sync::Arc;
use std::time::Duration;

use super::state::{Content, Note, Parties};
use crate::claim::{Claim, ClaimId, Holder, Token};
use crate::clock::Moment;
use crate::engine::PartyView;
use crate::logic::table::{self, Departure, Party, Refusal, Verdict};

/// A request. Plain data: it is decided again if another client wrote first.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Attempt {
        claim: Arc<Claim>,
        queue: bool,
    },
    /// Looks up a claim, and does not add it if it is missing.
    Look(ClaimId),
    Renew(ClaimId),
    Depart(ClaimId),
    Evict(ClaimId),
    RequestRelease(ClaimId),
    /// Reads the row, and serves the queue.
    Check,
}

impl Op {
    /// The claim that leaves, if one does.
    pub(super) fn departs(&self) -> Option<ClaimId> {
        if let Self::Depart(claim) = self { Some(*claim) } else { None }
    }
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Out {
    /// Held until that moment, on the database's clock.
    Granted(Token, Moment),
    Queued {
        ahead: usize,
        recheck: Option<Duration>,
    },
    Busy {
        recheck: Option<Duration>,
    },
    Refused(Refusal),
    /// The claim was force released before this request.
    ForceReleased,
    Renewed(Option<Moment>),
    Departed(Departure),
    Evicted(Option<PartyView>, Option<Token>),
    ReleaseRequested(Option<PartyView>),
    /// The reply to a write was lost, and the claim is gone: the write may have removed it.
    Unknown,
    Checked,
}

/// What a round did beside its answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Effects {
    /// Waiters that were granted the lock.
    pub(super) granted: Vec<ClaimId>,
    /// Claims that were force released, each with its client.
    pub(super) evicted: Vec<(ClaimId, Arc<str>)>,
    /// Holders that are asked for a release, each with its client.
    pub(super) requested: Vec<(ClaimId, Arc<str>)>,
    /// The first waiter, with its client, if it must look again sooner than its last answer said:
    /// the lock went to a shorter lease.
    pub(super) sooner: Option<(ClaimId, Arc<str>)>,
}

/// Applies the requests one after the other at `now` to `content`, which is `before` brought up to
/// date. `last` is the highest token, `me` our own inbox. Every write also refreshes those of our
/// waiters that are alive, and drops the evictions whose time is over.
pub(super) fn play(
    ops: &[Op],
    before: &Content,
    content: &mut Content,
    last: &mut u64,
    now: Moment,
    me: &Arc<str>,
    alive: &dyn Fn(ClaimId) -> bool,
) -> (Vec<Out>, Effects) {
    let mut effects = Effects::default();
    if ops.is_empty() {
        effects.granted.extend(content.table.settle(now, &mut || next_token(last, now)));
    }
    let mut outs: Vec<Out> = ops.iter().map(|op| one(op, content, last, now, me, &mut effects)).collect();
    let changed = content != before;
    if changed {
        content.evictions.expire(now);
    }
    let table = &mut content.table;
    for party in table.holders.iter_mut().filter(|party| effects.granted.contains(&party.claim)) {
        party.note.since = None;
    }
    if changed {
        for party in table.waiters.iter_mut().filter(|party| party.note.inbox == *me && alive(party.claim)) {
            party.until = now.after(party.ttl);
        }
    }
    if table.next_expiry().zip(before.table.next_expiry()).is_some_and(|(now, before)| now < before) {
        effects.sooner = table.waiters.front().map(|first| (first.claim, Arc::clone(&first.note.inbox)));
    }
    // A request may grant the lock to a claim whose own request came before it.
    for (op, out) in ops.iter().zip(&mut outs) {
        let claim = match op {
            Op::Attempt { claim, .. } => claim.id,
            Op::Look(claim) => *claim,
            _ => continue,
        };
        if let (Out::Queued { .. }, Some(held)) = (&*out, table.holder(claim)) {
            *out = Out::Granted(held.token, held.until);
        } else if let (Out::Queued { .. }, Some(ahead)) = (&*out, table.position(claim)) {
            *out = Out::Queued { ahead, recheck: recheck(table, now) };
        }
    }
    (outs, effects)
}

/// Sets until when the granted claims hold, from the table as it was written.
pub(super) fn dated(outs: &mut [Out], ops: &[Op], table: &Parties) {
    for (op, out) in ops.iter().zip(outs) {
        let claim = match op {
            Op::Attempt { claim, .. } => claim.id,
            Op::Look(claim) | Op::Renew(claim) => *claim,
            _ => continue,
        };
        if let (Out::Granted(_, until) | Out::Renewed(Some(until)), Some(held)) = (out, table.holder(claim)) {
            *until = held.until;
        }
    }
}

/// Time until the next lease ends: the lock may then become free without a notification.
fn recheck(table: &Parties, now: Moment) -> Option<Duration> {
    table.next_expiry().map(|end| end.since(now))
}

/// Above all earlier tokens and never below the clock, even if a server lost what it granted last.
fn next_token(last: &mut u64, now: Moment) -> Token {
    *last = (*last + 1).max(now.as_nanos() / 1000);
    Token(*last)
}

fn one(op: &Op, content: &mut Content, last: &mut u64, now: Moment, me: &Arc<str>, effects: &mut Effects) -> Out {
    let mut token = || next_token(last, now);
    let Content { table, evictions } = content;
    match op {
        Op::Attempt { claim, .. } if evictions.has(claim.id) => {
            // Its client could not be notified, and repeats the request.
            effects.granted.extend(table.settle(now, &mut token));
            Out::ForceReleased
        }
        Op::Attempt { claim, queue } => {
            let (verdict, granted) = table.attempt(party(claim, me), *queue, now, &mut token);
            effects.granted.extend(granted);
            answer(verdict, table, now)
        }
        Op::Look(claim) => {
            effects.granted.extend(table.settle(now, &mut token));
            match (table.holders.iter_mut().find(|party| party.claim == *claim), table.waiters.len()) {
                (Some(held), _) => {
                    show(held, now);
                    Out::Granted(held.token, held.until)
                }
                (None, _) => match table.position(*claim) {
                    Some(ahead) => {
                        show(&mut table.waiters[ahead], now);
                        Out::Queued { ahead, recheck: recheck(table, now) }
                    }
                    None if evictions.has(*claim) => Out::ForceReleased,
                    None => Out::Busy { recheck: recheck(table, now) },
                },
            }
        }
        Op::Renew(claim) => {
            let (until, granted) = table.renew(*claim, now, &mut token);
            effects.granted.extend(granted);
            Out::Renewed(until)
        }
        Op::Depart(claim) => {
            evictions.remove(*claim);
            let (departure, granted) = table.depart(*claim, now, &mut token);
            effects.granted.extend(granted);
            Out::Departed(departure)
        }
        Op::Evict(claim) => evict(*claim, content, now, &mut token, effects),
        Op::RequestRelease(claim) => {
            effects.granted.extend(table.settle(now, &mut token));
            let held = table.holders.iter_mut().find(|party| party.claim == *claim);
            Out::ReleaseRequested(held.map(|party| {
                party.note.release_requested = true;
                effects.requested.push((*claim, Arc::clone(&party.note.inbox)));
                view(party, now)
            }))
        }
        Op::Check => {
            effects.granted.extend(table.settle(now, &mut token));
            Out::Checked
        }
    }
}

fn evict(
    claim: ClaimId,
    content: &mut Content,
    now: Moment,
    token: &mut impl FnMut() -> Token,
    effects: &mut Effects,
) -> Out {
    let (evicted, granted) = content.table.evict(claim, now, token);
    effects.granted.extend(granted);
    let Some(table::Evicted { party, advice }) = evicted else { return Out::Evicted(None, None) };
    content.evictions.add(claim, party.ttl, now);
    effects.evicted.push((claim, Arc::clone(&party.note.inbox)));
    Out::Evicted(Some(view(&party, now)), advice)
}

/// A claim that asks is alive; the row records that once a quarter of its TTL has passed.
fn show(party: &mut Party<Note>, now: Moment) {
    if party.until.since(now) < party.ttl * 3 / 4 {
        party.until = now.after(party.ttl);
    }
}

fn answer(verdict: Verdict, table: &Parties, now: Moment) -> Out {
    match verdict {
        Verdict::Granted(token, until) => Out::Granted(token, until),
        Verdict::Queued(ahead) => Out::Queued { ahead, recheck: recheck(table, now) },
        Verdict::Busy => Out::Busy { recheck: recheck(table, now) },
        Verdict::Refused(refusal) => Out::Refused(refusal),
    }
}

/// The entry of one of our claims.
pub(super) fn party(claim: &Claim, me: &Arc<str>) -> Party<Note> {
    let terms = &claim.terms;
    Party {
        claim: claim.id,
        owner: terms.owner,
        mode: terms.mode,
        ttl: terms.ttl,
        until: Moment::default(),
        token: Token::default(),
        place: 0,
        note: Note { since: None, inbox: Arc::clone(me), who: Arc::clone(&terms.holder), release_requested: false },
    }
}

/// A party, as inspection shows it.
pub(super) fn view(party: &Party<Note>, now: Moment) -> PartyView {
    let since = party.note.since.unwrap_or(now);
    let token = (party.token > Token::default()).then_some(party.token);
    PartyView::new(
        party.claim,
        party.mode,
        token,
        Holder::clone(&party.note.who),
        now.since(since),
        party.until.since(now),
    )
}

#[cfg(test)]
#[path = "step_tests.rs"]
mod tests;
