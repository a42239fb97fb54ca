//! Applies requests for one lock to the content of its row. Pure functions: they neither read nor
//! write the database.

use std::sync::Arc;
use std::time::Duration;

use super::state::{ContenderDetails, Contenders, Content};
use crate::clock::Instant;
use crate::engine::Claim;
use crate::engine::ContenderView;
use crate::logic::table::{self, Contender, Refusal, ReleaseEffect, Verdict};
use crate::types::{ClaimId, Holder, Token};

/// A request for one lock. It is plain data, because it is applied again if another client writes
/// the row first.
#[derive(Clone, Debug)]
pub(super) enum Op {
    /// Acquires the lock if it is free; otherwise queues the claim if `queue` is set.
    Attempt { claim: Arc<Claim>, queue: bool },
    /// Returns the state of a claim, which may have been granted; extends its lease or queue
    /// position. Does not add a claim that is missing.
    LookUp(ClaimId),
    /// Extends the lease of a claim that holds the lock.
    Renew(ClaimId),
    /// Ends a claim, whether it holds or waits.
    Release(ClaimId),
    /// Ends a claim, possibly of another client, at an operator's request.
    ForceRelease(ClaimId),
    /// Asks the client of a claim that holds the lock to release it.
    RequestRelease(ClaimId),
    /// Reads the row, and grants the lock to the next waiters if it is free.
    Check,
}

impl Op {
    /// The claim that this request releases; `None` for other requests.
    pub(super) fn released_claim(&self) -> Option<ClaimId> {
        if let Self::Release(claim) = self { Some(*claim) } else { None }
    }
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OpOutcome {
    /// The token, and when the lease ends on the database's clock.
    Granted(Token, Instant),
    /// The claim is in the queue.
    Queued {
        /// How many waiters are ahead of it.
        ahead: usize,
        /// After this time a holder's lease ends, and the row must be read again.
        recheck: Option<Duration>,
    },
    /// The lock is not free, and the claim is not in the queue.
    Busy {
        /// After this time a holder's lease ends, and the lock may become free.
        recheck: Option<Duration>,
    },
    /// Waiting cannot help, for this reason; the claim does not queue.
    Refused(Refusal),
    /// The claim was force released before this request.
    ForceReleased,
    /// When the lease ends on the database's clock; `None`: the claim does not hold the lock.
    Renewed(Option<Instant>),
    /// What the released claim was.
    Released(ReleaseEffect),
    /// The claim that was force released, `None` if it had ended; and the fence token to advise,
    /// see [`ForceReleaseOutcome::fence_token`](crate::engine::ForceReleaseOutcome::fence_token).
    ForceReleaseDone(Option<ContenderView>, Option<Token>),
    /// The holder whose release was requested; `None` if the claim does not hold the lock.
    ReleaseRequested(Option<ContenderView>),
    /// After a force release whose reply was lost: the claim does not exist any more, and it is
    /// unknown whether the force release removed it.
    Unknown,
    /// `Check` is done.
    Checked,
}

impl OpOutcome {
    /// Whether it is the outcome of a release.
    pub(super) fn is_release(&self) -> bool {
        matches!(self, Self::Released(_))
    }
}

/// What requests changed besides their own outcomes: other clients and claims to notify.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Effects {
    /// Waiters that were granted the lock.
    pub(super) granted: Vec<ClaimId>,
    /// Claims that were force released, each with its client.
    pub(super) force_released: Vec<(ClaimId, Arc<str>)>,
    /// Holders with a release request, each with its client.
    pub(super) release_requested: Vec<(ClaimId, Arc<str>)>,
    /// The first waiter, with its client, if it must read the row earlier than its last reply
    /// said: the lock was handed off to a holder with a shorter lease.
    pub(super) recheck_sooner: Option<(ClaimId, Arc<str>)>,
}

/// Applies the requests to `content`, one after the other, at `now` on the database's clock.
/// Returns one outcome per request, and what else changed. `before` is the content as it was read;
/// `content` may already differ by local hand-offs. `last` is the highest token granted, and
/// `client_id` this client's own id.
///
/// If the row must be written, this also extends the queue positions of this client's waiters that
/// `is_polled` accepts, and drops notes of force releases whose TTL has passed.
pub(super) fn apply_all(
    ops: &[Op],
    before: &Content,
    content: &mut Content,
    last: &mut u64,
    now: Instant,
    client_id: &Arc<str>,
    is_polled: &dyn Fn(ClaimId) -> bool,
) -> (Vec<OpOutcome>, Effects) {
    let mut effects = Effects::default();
    if ops.is_empty() {
        effects.granted.extend(content.table.expire_and_grant(now, &mut || next_token(last, now)));
    }
    let mut outcomes: Vec<OpOutcome> =
        ops.iter().map(|op| apply(op, content, last, now, client_id, &mut effects)).collect();
    let changed = content != before;
    if changed {
        content.force_released_claims.expire(now);
    }
    let table = &mut content.table;
    for contender in table.holders.iter_mut().filter(|contender| effects.granted.contains(&contender.claim)) {
        contender.details.since = None;
    }
    if changed {
        for contender in table
            .waiters
            .iter_mut()
            .filter(|contender| contender.details.client_id == *client_id && is_polled(contender.claim))
        {
            contender.expires_at = now.saturating_add(contender.ttl);
        }
    }
    if table.next_expiry().zip(before.table.next_expiry()).is_some_and(|(now, before)| now < before) {
        effects.recheck_sooner = table.waiters.front().map(|first| (first.claim, Arc::clone(&first.details.client_id)));
    }
    // A later request in the list may have granted the lock to a claim of an earlier one, or moved
    // it in the queue.
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

/// Updates the ends of leases in the outcomes from `table`, which has them as they were written.
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

/// The time until the next lease ends, when the lock may become free without a notification.
/// `None`: there is no holder.
fn time_to_next_expiry(table: &Contenders, now: Instant) -> Option<Duration> {
    table.next_expiry().map(|end| end.duration_since(now))
}

/// The next token: above all earlier ones, and not below the database's time in microseconds, so
/// that tokens keep rising even if the server has lost its last commits.
fn next_token(last: &mut u64, now: Instant) -> Token {
    *last = (*last + 1).max(now.as_nanos() / 1000);
    Token(*last)
}

/// Applies one request.
fn apply(
    op: &Op,
    content: &mut Content,
    last: &mut u64,
    now: Instant,
    client_id: &Arc<str>,
    effects: &mut Effects,
) -> OpOutcome {
    let mut token = || next_token(last, now);
    let Content { table, force_released_claims } = content;
    match op {
        Op::Attempt { claim, .. } if force_released_claims.has(claim.id) => {
            // The claim was force released, and its client, which was not notified, attempts again.
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
                    None if force_released_claims.has(*claim) => OpOutcome::ForceReleased,
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
            force_released_claims.remove(*claim);
            let (effect, granted) = table.release(*claim, now, &mut token);
            effects.granted.extend(granted);
            OpOutcome::Released(effect)
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

/// Force releases a claim, and notes that in the row for its client.
fn force_release(
    claim: ClaimId,
    content: &mut Content,
    now: Instant,
    token: &mut impl FnMut() -> Token,
    effects: &mut Effects,
) -> OpOutcome {
    let (force_released, granted) = content.table.force_release(claim, now, token);
    effects.granted.extend(granted);
    let Some(table::ForceReleased { contender, fence_token }) = force_released else {
        return OpOutcome::ForceReleaseDone(None, None);
    };
    content.force_released_claims.add(claim, contender.ttl, now);
    effects.force_released.push((claim, Arc::clone(&contender.details.client_id)));
    OpOutcome::ForceReleaseDone(Some(to_contender_view(&contender, now)), fence_token)
}

/// Extends the lease or queue position of a claim whose client sends requests. To save writes, only
/// if a quarter of the TTL has passed since it was last extended.
fn refresh_lease(contender: &mut Contender<ContenderDetails>, now: Instant) {
    if contender.expires_at.duration_since(now) < contender.ttl * 3 / 4 {
        contender.expires_at = now.saturating_add(contender.ttl);
    }
}

/// Converts a verdict of the table.
fn to_outcome(verdict: Verdict, table: &Contenders, now: Instant) -> OpOutcome {
    match verdict {
        Verdict::Granted(token, until) => OpOutcome::Granted(token, until),
        Verdict::Queued(ahead) => OpOutcome::Queued { ahead, recheck: time_to_next_expiry(table, now) },
        Verdict::Busy => OpOutcome::Busy { recheck: time_to_next_expiry(table, now) },
        Verdict::Refused(refusal) => OpOutcome::Refused(refusal),
    }
}

/// The table entry for a claim of this client, before the table grants or queues it.
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

/// A holder or waiter as inspection shows it, at `now`.
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
