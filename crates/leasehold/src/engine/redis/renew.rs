//! Renews leases: on their own, or in groups.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::Cmd;

use super::engine::{RedisEngine, secs_rounded_up};
use super::renewal_groups::{LeaseCheck, MIN_GROUP_SIZE, RenewalGroup};
use crate::engine::Claim;
use crate::engine::RenewReply;
use crate::logic::lease as rules;
use crate::redis_client::{LiveConnection, error, short_run, values};
use crate::types::{Error, ErrorKind, Mode, Result};

/// One lease of a batch: its index in the answer, its claim and its key.
struct LeaseToRenew {
    at: usize,
    claim: Arc<Claim>,
    key: String,
}

/// Leases that one script can renew; with a `ttl` they may become a group.
struct LeaseBatch {
    slot: Option<u16>,
    ttl: Option<Duration>,
    leases: Vec<LeaseToRenew>,
}

/// Renews a batch; one answer per claim, in order.
pub(super) async fn renew(engine: &RedisEngine, claims: Vec<Arc<Claim>>) -> Result<Vec<RenewReply>> {
    let mut answers = vec![RenewReply::Unknown; claims.len()];
    let leases = claims.into_iter().enumerate().map(|(at, claim)| {
        let key = engine.key(claim.name());
        engine.nodes.note_renewal_due(&key, &claim);
        LeaseToRenew { at, key, claim }
    });
    let leases = if engine.can_group_renewals() {
        let (ungrouped, failed) = renew_grouped(engine, leases.collect(), &mut answers).await;
        match failed {
            Some(error) if ungrouped.is_empty() && are_all_unknown(&answers) => return Err(error),
            Some(error) => tracing::warn!(%error, "some leases could not be renewed; trying again"),
            None => {}
        }
        ungrouped
    } else {
        leases.collect()
    };
    let groups = split_into_batches(engine, leases);
    let only_one = groups.len() == 1;
    // A slot may be moving to a server that hangs: it must not delay the answers of the others.
    let timeout =
        rules::renewal_timeout(groups.iter().flat_map(|group| &group.leases).map(|lease| lease.claim.options.ttl));
    let bounded = |group| async move {
        match only_one {
            true => renew_batch(engine, group).await,
            false => engine
                .clock
                .timeout(timeout, renew_batch(engine, group))
                .await
                .unwrap_or_else(|_| Err(timeout_error(timeout))),
        }
    };
    let extended = join_all(groups.iter().map(bounded)).await;
    for (group, extended) in groups.iter().zip(extended) {
        match extended {
            Ok(some) => group.leases.iter().zip(some).for_each(|(lease, answer)| answers[lease.at] = answer),
            Err(error) if only_one && are_all_unknown(&answers) => return Err(error),
            Err(error) => tracing::warn!(%error, "some leases could not be renewed; trying again"),
        }
    }
    Ok(answers)
}

fn timeout_error(timeout: Duration) -> Error {
    Error::new(ErrorKind::Unavailable, format!("no answer within {timeout:?}")).retryable().effect_unknown()
}

fn are_all_unknown(answers: &[RenewReply]) -> bool {
    answers.iter().all(|answer| *answer == RenewReply::Unknown)
}

/// Renews the leases that are in groups; returns those that are not, or not any more.
async fn renew_grouped(
    engine: &RedisEngine,
    leases: Vec<LeaseToRenew>,
    answers: &mut [RenewReply],
) -> (Vec<LeaseToRenew>, Option<Error>) {
    let now = engine.clock.now();
    let (mut ungrouped, mut grouped, mut due) = (Vec::new(), Vec::new(), Vec::new());
    let mut stale: Vec<Arc<RenewalGroup>> = Vec::new();
    for lease in leases {
        match engine.subscriber.renewal_groups.find(&lease.claim, now) {
            None => ungrouped.push(lease),
            Some((group, turn)) => {
                if (turn == LeaseCheck::Resync || !group.is_fresh(now))
                    && !stale.iter().any(|known| Arc::ptr_eq(known, &group))
                {
                    stale.push(Arc::clone(&group));
                }
                if turn != LeaseCheck::NotDue {
                    due.push(grouped.len());
                }
                grouped.push((lease, group));
            }
        }
    }
    let due_leases: Vec<_> = due.iter().map(|at| &grouped[*at]).collect();
    let (renewed, found) =
        futures_util::future::join(renew_groups(engine, &stale), check_group_members(engine, &due_leases)).await;
    let failed = renewed
        .err()
        .or(found.as_ref().err().map(|error| Error::new(error.kind(), error.message_without_location()).retryable()));
    // A lease that was due for its own check, and was not checked after all, must not be renewed by
    // its group alone.
    let unchecked = if found.is_err() { due.clone() } else { Vec::new() };
    let found = found.unwrap_or_default();
    let mut marks = due.into_iter().zip(found).peekable();
    for (at, (lease, group)) in grouped.into_iter().enumerate() {
        let mark = marks.next_if(|(of, _)| *of == at).map(|(_, mark)| mark);
        match mark {
            // The lease is not in its group as expected: it is renewed on its own.
            Some(b'0') => {
                engine.subscriber.renewal_groups.remove(lease.claim.id);
                group.mark_broken();
                ungrouped.push(lease);
            }
            _ if group.is_broken() => {
                engine.subscriber.renewal_groups.remove(lease.claim.id);
                ungrouped.push(lease);
            }
            mark => {
                if mark.is_some() {
                    engine.subscriber.renewal_groups.record_check(lease.claim.id, now);
                }
                if group.is_fresh(now) && unchecked.binary_search(&at).is_err() {
                    answers[lease.at] = RenewReply::Renewed(group.renewed_at().saturating_add(group.ttl));
                }
            }
        }
    }
    (ungrouped, failed)
}

/// Renews groups.
async fn renew_groups(engine: &RedisEngine, groups: &[Arc<RenewalGroup>]) -> Result<()> {
    if groups.is_empty() {
        return Ok(());
    }
    let fill_command = |command: &mut Cmd, live: &LiveConnection| {
        for group in groups {
            command.arg(&group.key);
        }
        for group in groups {
            command.arg(group.ttl.as_micros() as u64).arg(group.lease_count());
            command.arg(secs_rounded_up(group.ttl) + engine.retention_secs);
        }
        command.arg(short_run(&live.run_id));
    };
    let sent = engine.clock.now();
    let (answer, live) =
        engine.nodes.run_script(None, &engine.scripts.renew_groups, groups.len(), &fill_command).await?;
    let marks = values::bytes(&answer).filter(|marks| marks.len() == groups.len());
    let marks = marks.ok_or_else(|| error::unexpected_answer(&live.address, &answer))?;
    engine.wait_for_replicas(&live.address).await?;
    for (group, mark) in groups.iter().zip(marks) {
        if *mark == b'1' { group.record_renewal(sent) } else { group.mark_broken() }
    }
    Ok(())
}

/// Checks whether leases are in their groups.
async fn check_group_members(engine: &RedisEngine, leases: &[&(LeaseToRenew, Arc<RenewalGroup>)]) -> Result<Vec<u8>> {
    if leases.is_empty() {
        return Ok(Vec::new());
    }
    let longest = leases.iter().map(|(lease, _)| secs_rounded_up(lease.claim.options.ttl)).max().unwrap_or_default();
    let fill_command = |command: &mut Cmd, _: &LiveConnection| {
        for (lease, _) in leases {
            command.arg(&lease.key);
        }
        // The next check is more than a TTL away, and by then the lease may have been renewed for
        // one more TTL.
        command.arg(longest * 3);
        for (lease, group) in leases {
            command.arg(&lease.claim.id.bits().to_be_bytes()).arg(&group.key);
        }
    };
    let (answer, live) =
        engine.nodes.run_script(None, &engine.scripts.check_group_members, leases.len(), &fill_command).await?;
    let marks = values::bytes(&answer).filter(|marks| marks.len() == leases.len());
    Ok(marks.ok_or_else(|| error::unexpected_answer(&live.address, &answer))?.to_vec())
}

/// Groups leases by what one script can renew.
fn split_into_batches(engine: &RedisEngine, leases: Vec<LeaseToRenew>) -> Vec<LeaseBatch> {
    let mut groups: Vec<LeaseBatch> = Vec::new();
    for lease in leases {
        let slot = engine.nodes.slot(&lease.key);
        let tie = engine.can_group_renewals() && lease.claim.options.mode == Mode::Exclusive;
        let ttl = tie.then_some(lease.claim.options.ttl);
        match groups.iter_mut().find(|group| (group.slot, group.ttl) == (slot, ttl)) {
            Some(group) => group.leases.push(lease),
            None => groups.push(LeaseBatch { slot, ttl, leases: vec![lease] }),
        }
    }
    groups
}

/// Renews a group. Locks of a slot that is moving may be on two nodes: then each is renewed by a
/// request of its own.
async fn renew_batch(engine: &RedisEngine, batch: &LeaseBatch) -> Result<Vec<RenewReply>> {
    let leases: Vec<&LeaseToRenew> = batch.leases.iter().collect();
    match renew_in_one_script(engine, &leases, batch.slot, batch.ttl).await {
        Err(error) if leases.len() > 1 && error::is_slot_moving(&error) => {
            let each = leases.chunks(1).map(|one| renew_in_one_script(engine, one, batch.slot, batch.ttl));
            let answer = |extended: Result<Vec<RenewReply>>| match extended.as_deref() {
                Ok([answer]) => *answer,
                _ => RenewReply::Unknown,
            };
            Ok(join_all(each).await.into_iter().map(answer).collect())
        }
        other => other,
    }
}

/// Renews leases with one script; many of one kind become a group.
async fn renew_in_one_script(
    engine: &RedisEngine,
    leases: &[&LeaseToRenew],
    slot: Option<u16>,
    ttl: Option<Duration>,
) -> Result<Vec<RenewReply>> {
    let group = match ttl {
        Some(ttl) if leases.len() >= MIN_GROUP_SIZE => Some(engine.new_renewal_group(ttl)),
        _ => None,
    };
    let key = group.as_ref().map_or("", |group| &group.key);
    let sent = engine.clock.now();
    let (marks, live) = run_renew_script(engine, leases, slot, key).await?;
    let replicated = match engine.wait_for_replicas(&live.address).await {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(%error, "renewed, but not extended");
            false
        }
    };
    if let Some(group) = &group {
        let joined = leases.iter().zip(&marks).filter(|(_, mark)| **mark == b'2');
        engine.subscriber.renewal_groups.join(group, joined.map(|(lease, _)| &lease.claim), sent);
        // Without the replicas the renewal does not count: the next round repeats it.
        if replicated {
            group.record_renewal(sent);
        }
    }
    let renewal = |(mark, lease): (&u8, &&LeaseToRenew)| match mark {
        b'1' | b'2' if replicated => RenewReply::Renewed(sent.saturating_add(lease.claim.options.ttl)),
        b'1' | b'2' => RenewReply::Held,
        _ => RenewReply::Lost,
    };
    Ok(marks.iter().zip(leases).map(renewal).collect())
}

/// Runs the script; one mark for each lease.
async fn run_renew_script(
    engine: &RedisEngine,
    leases: &[&LeaseToRenew],
    slot: Option<u16>,
    group: &str,
) -> Result<(Vec<u8>, LiveConnection)> {
    let longest = leases.iter().map(|lease| lease.claim.options.ttl).max().unwrap_or_default();
    let keys: Vec<&str> = leases.iter().map(|lease| &*lease.key).collect();
    let then = |command: &mut Cmd| {
        command.arg(engine.retention_secs).arg(group).arg(longest.as_micros() as u64);
        for lease in leases {
            command.arg(&lease.claim.id.bits().to_be_bytes());
        }
    };
    let (answer, live) = engine.run_script(slot, |scripts| &scripts.renew, &keys, &then).await?;
    let marks = values::bytes(&answer).filter(|marks| marks.len() == leases.len());
    let marks = marks.ok_or_else(|| error::unexpected_answer(&live.address, &answer))?.to_vec();
    Ok((marks, live))
}
