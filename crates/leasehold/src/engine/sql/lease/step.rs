//! Decides requests for one lock on its row. Pure functions.

use std::sync::Arc;
use std::time::Duration;

use super::state::{ContenderDetails, Contenders, Content};
use crate::clock::Instant;
use crate::engine::Claim;
use crate::engine::ContenderView;
use crate::logic::table::{self, Contender, Refusal, ReleaseEffect, Verdict};
use crate::types::{ClaimId, Holder, Token};

/// A request. Plain data: it is decided again if another client wrote first.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Attempt {
        claim: Arc<Claim>,
        queue: bool,
    },
    /// Looks up a claim, and does not add it if it is missing.
    LookUp(ClaimId),
    Renew(ClaimId),
    Release(ClaimId),
    ForceRelease(ClaimId),
    RequestRelease(ClaimId),
    /// Reads the row, and serves the queue.
    Check,
}

impl Op {
    /// The claim that leaves, if one does.
    pub(super) fn released_claim(&self) -> Option<ClaimId> {
        if let Self::Release(claim) = self { Some(*claim) } else { None }
    }
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OpOutcome {
    /// Held until that moment, on the database's clock.
    Granted(Token, Instant),
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
    Renewed(Option<Instant>),
    Released(ReleaseEffect),
    ForceReleaseDone(Option<ContenderView>, Option<Token>),
    ReleaseRequested(Option<ContenderView>),
    /// The reply to a write was lost, and the claim does not exist any more: the write may have
    /// removed it.
    Unknown,
    Checked,
}

/// The effects of a round besides its answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Effects {
    /// Waiters that were granted the lock.
    pub(super) granted: Vec<ClaimId>,
    /// Claims that were force released, each with its client.
    pub(super) force_released: Vec<(ClaimId, Arc<str>)>,
    /// Holders with a release request, each with its client.
    pub(super) release_requested: Vec<(ClaimId, Arc<str>)>,
    /// The first waiter, with its client, if it must check sooner than its last answer stated: the
    /// lock was handed to a shorter lease.
    pub(super) recheck_sooner: Option<(ClaimId, Arc<str>)>,
}

/// Applies the requests one after the other at `now` to `content`, which is `before` brought up to
/// date. `last` is the highest token, `client_id` our own inbox. Every write also refreshes those
/// of our waiters that are alive, and drops evictions whose TTL has passed.
pub(super) fn apply_all(
    ops: &[Op],
    before: &Content,
    content: &mut Content,
    last: &mut u64,
    now: Instant,
    client_id: &Arc<str>,
    alive: &dyn Fn(ClaimId) -> bool,
) -> (Vec<OpOutcome>, Effects) {
    let mut effects = Effects::default();
    if ops.is_empty() {
        effects.granted.extend(content.table.expire_and_grant(now, &mut || next_token(last, now)));
    }
    let mut outcomes: Vec<OpOutcome> =
        ops.iter().map(|op| apply(op, content, last, now, client_id, &mut effects)).collect();
    let changed = content != before;
    if changed {
        content.evictions.expire(now);
    }
    let table = &mut content.table;
    for contender in table.holders.iter_mut().filter(|contender| effects.granted.contains(&contender.claim)) {
        contender.details.since = None;
    }
    if changed {
        for contender in table
            .waiters
            .iter_mut()
            .filter(|contender| contender.details.client_id == *client_id && alive(contender.claim))
        {
            contender.expires_at = now.saturating_add(contender.ttl);
        }
    }
    if table.next_expiry().zip(before.table.next_expiry()).is_some_and(|(now, before)| now < before) {
        effects.recheck_sooner = table.waiters.front().map(|first| (first.claim, Arc::clone(&first.details.client_id)));
    }
    // A request may grant the lock to a claim that was requested before it.
    for (op, outcome) in ops.iter().zip(&mut outcomes) {
        let claim = match op {
            Op::Attempt { claim, .. } => claim.id,
            Op::LookUp(claim) => *claim,
            _ => continue,
        };
        if let (OpOutcome::Queued { .. }, Some(held)) = (&*outcome, table.holder(claim)) {
            *outcome = OpOutcome::Granted(held.token, held.expires_at);
        } else if let (OpOutcome::Queued { .. }, Some(ahead)) = (&*outcome, table.position(claim)) {
            *outcome = OpOutcome::Queued { ahead, recheck: time_to_next_expiry(table, now) };
        }
    }
    (outcomes, effects)
}

/// Sets the deadlines of the granted claims, from the table as it was written.
pub(super) fn set_deadlines(outcomes: &mut [OpOutcome], ops: &[Op], table: &Contenders) {
    for (op, outcome) in ops.iter().zip(outcomes) {
        let claim = match op {
            Op::Attempt { claim, .. } => claim.id,
            Op::LookUp(claim) | Op::Renew(claim) => *claim,
            _ => continue,
        };
        if let (OpOutcome::Granted(_, until) | OpOutcome::Renewed(Some(until)), Some(held)) =
            (outcome, table.holder(claim))
        {
            *until = held.expires_at;
        }
    }
}

/// Time until the next lease ends: the lock may then become free without a notification.
fn time_to_next_expiry(table: &Contenders, now: Instant) -> Option<Duration> {
    table.next_expiry().map(|end| end.duration_since(now))
}

/// Above all earlier tokens and never below the clock, even if a server lost what it granted last.
fn next_token(last: &mut u64, now: Instant) -> Token {
    *last = (*last + 1).max(now.as_nanos() / 1000);
    Token(*last)
}

fn apply(
    op: &Op,
    content: &mut Content,
    last: &mut u64,
    now: Instant,
    client_id: &Arc<str>,
    effects: &mut Effects,
) -> OpOutcome {
    let mut token = || next_token(last, now);
    let Content { table, evictions } = content;
    match op {
        Op::Attempt { claim, .. } if evictions.has(claim.id) => {
            // Its client could not be notified, and repeats the request.
            effects.granted.extend(table.expire_and_grant(now, &mut token));
            OpOutcome::ForceReleased
        }
        Op::Attempt { claim, queue } => {
            let (verdict, granted) = table.attempt(new_contender(claim, client_id), *queue, now, &mut token);
            effects.granted.extend(granted);
            to_outcome(verdict, table, now)
        }
        Op::LookUp(claim) => {
            effects.granted.extend(table.expire_and_grant(now, &mut token));
            match (table.holders.iter_mut().find(|contender| contender.claim == *claim), table.waiters.len()) {
                (Some(held), _) => {
                    refresh_lease(held, now);
                    OpOutcome::Granted(held.token, held.expires_at)
                }
                (None, _) => match table.position(*claim) {
                    Some(ahead) => {
                        refresh_lease(&mut table.waiters[ahead], now);
                        OpOutcome::Queued { ahead, recheck: time_to_next_expiry(table, now) }
                    }
                    None if evictions.has(*claim) => OpOutcome::ForceReleased,
                    None => OpOutcome::Busy { recheck: time_to_next_expiry(table, now) },
                },
            }
        }
        Op::Renew(claim) => {
            let (until, granted) = table.renew(*claim, now, &mut token);
            effects.granted.extend(granted);
            OpOutcome::Renewed(until)
        }
        Op::Release(claim) => {
            evictions.remove(*claim);
            let (departure, granted) = table.release(*claim, now, &mut token);
            effects.granted.extend(granted);
            OpOutcome::Released(departure)
        }
        Op::ForceRelease(claim) => force_release(*claim, content, now, &mut token, effects),
        Op::RequestRelease(claim) => {
            effects.granted.extend(table.expire_and_grant(now, &mut token));
            let held = table.holders.iter_mut().find(|contender| contender.claim == *claim);
            OpOutcome::ReleaseRequested(held.map(|contender| {
                contender.details.is_release_requested = true;
                effects.release_requested.push((*claim, Arc::clone(&contender.details.client_id)));
                to_contender_view(contender, now)
            }))
        }
        Op::Check => {
            effects.granted.extend(table.expire_and_grant(now, &mut token));
            OpOutcome::Checked
        }
    }
}

fn force_release(
    claim: ClaimId,
    content: &mut Content,
    now: Instant,
    token: &mut impl FnMut() -> Token,
    effects: &mut Effects,
) -> OpOutcome {
    let (evicted, granted) = content.table.force_release(claim, now, token);
    effects.granted.extend(granted);
    let Some(table::ForceReleased { contender: party, fence_token: advice }) = evicted else {
        return OpOutcome::ForceReleaseDone(None, None);
    };
    content.evictions.add(claim, party.ttl, now);
    effects.force_released.push((claim, Arc::clone(&party.details.client_id)));
    OpOutcome::ForceReleaseDone(Some(to_contender_view(&party, now)), advice)
}

/// A claim that sends requests is alive; the row records that once a quarter of its TTL has passed.
fn refresh_lease(contender: &mut Contender<ContenderDetails>, now: Instant) {
    if contender.expires_at.duration_since(now) < contender.ttl * 3 / 4 {
        contender.expires_at = now.saturating_add(contender.ttl);
    }
}

fn to_outcome(verdict: Verdict, table: &Contenders, now: Instant) -> OpOutcome {
    match verdict {
        Verdict::Granted(token, until) => OpOutcome::Granted(token, until),
        Verdict::Queued(ahead) => OpOutcome::Queued { ahead, recheck: time_to_next_expiry(table, now) },
        Verdict::Busy => OpOutcome::Busy { recheck: time_to_next_expiry(table, now) },
        Verdict::Refused(refusal) => OpOutcome::Refused(refusal),
    }
}

/// The entry of one of our claims.
pub(super) fn new_contender(claim: &Claim, client_id: &Arc<str>) -> Contender<ContenderDetails> {
    let options = &claim.options;
    Contender {
        claim: claim.id,
        owner: options.owner,
        mode: options.mode,
        ttl: options.ttl,
        expires_at: Instant::default(),
        token: Token::default(),
        order: 0,
        details: ContenderDetails {
            since: None,
            client_id: Arc::clone(client_id),
            holder: Arc::clone(&options.holder),
            is_release_requested: false,
        },
    }
}

/// A contender, for inspection.
pub(super) fn to_contender_view(contender: &Contender<ContenderDetails>, now: Instant) -> ContenderView {
    let since = contender.details.since.unwrap_or(now);
    let token = (contender.token > Token::default()).then_some(contender.token);
    ContenderView::new(
        contender.claim,
        contender.mode,
        token,
        Holder::clone(&contender.details.holder),
        now.duration_since(since),
        contender.expires_at.duration_since(now),
    )
}

#[cfg(test)]
#[path = "step_tests.rs"]
mod tests;
