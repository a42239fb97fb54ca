//! Inspects locks, and force releases claims.

use std::time::Duration;

use futures_util::future::try_join_all;
use redis::{Cmd, Value};

use super::engine::RedisEngine;
use super::strict;
use super::wire::{self, ClaimRecord, HashField, StoredLock};
use crate::engine::{ContenderView, ForceReleaseOutcome, LockView};
use crate::logic::fence;
use crate::redis_client::{LiveConnection, Nodes, ReleaseRequested, Stored, error, keys, short_run, values};
use crate::types::{ClaimId, LockName, Result, Token};

/// How many locks are read at once.
pub(super) const MAX_CONCURRENT_READS: usize = 128;

/// One lock.
pub(super) async fn inspect_lock(engine: &RedisEngine, name: &LockName) -> Result<LockView> {
    let mut view = LockView::free(name.clone());
    match read_lock(engine, name).await {
        Ok((now, stock, live)) => {
            fill_view(&mut view, stock, now);
            if view.holders.is_empty() {
                let slot = engine.nodes.slot(&engine.key(name));
                view.cool_down = strict::cool_down_left(engine, slot, now, &live).await?;
            }
        }
        Err(error) if error.is_bad_record() => view.damage = Some(error.message_without_location()),
        Err(error) => return Err(error),
    }
    Ok(view)
}

/// What the server has stored of a lock, and its time. `Corrupt` if leasehold did not write it.
async fn read_lock(engine: &RedisEngine, name: &LockName) -> Result<(u64, StoredLock, LiveConnection)> {
    let key = engine.key(name);
    let fill_command = |command: &mut Cmd, _: &LiveConnection| {
        command.arg(&key);
    };
    let reply = engine.nodes.run_script(engine.nodes.slot(&key), &engine.scripts.inspect, 1, &fill_command).await;
    let (answer, live) = reply?;
    let (now, fields, group) = parse_answer(&answer).ok_or_else(|| error::unexpected_answer(&live.address, &answer))?;
    let stored = StoredLock::read(&fields, group, now, short_run(&live.run_id))?;
    Ok((now, stored, live))
}

/// The server's time, the lock's fields, and its group.
type InspectAnswer<'a> = (u64, Vec<HashField>, Option<&'a [u8]>);

fn parse_answer(answer: &Value) -> Option<InspectAnswer<'_>> {
    let Value::Array(parts) = answer else { return None };
    let [now, Value::Array(fields), group] = &parts[..] else { return None };
    let (pairs, []) = fields.as_chunks::<2>() else { return None };
    let pair = |[field, value]: &[Value; 2]| Some((values::bytes(field)?.to_vec(), values::bytes(value)?.to_vec()));
    let fields = pairs.iter().map(pair).collect::<Option<_>>()?;
    Some((values::integer(now)?.try_into().ok()?, fields, values::bytes(group)))
}

/// Fills a view with the claims that have not expired.
fn fill_view(view: &mut LockView, stored: StoredLock, now: u64) {
    let mut records = stored.records;
    records.retain(|record| record.expires_at > now);
    records.sort_by_key(|record| record.position);
    let (holders, waiters): (Vec<_>, Vec<_>) = records.into_iter().partition(|record| record.token > Token::default());
    view.holders = holders.into_iter().map(|record| party_view(record, now)).collect();
    view.waiters = waiters.into_iter().map(|record| party_view(record, now)).collect();
    view.last_token = stored.last_token;
}

fn party_view(record: ClaimRecord, now: u64) -> ContenderView {
    let token = (record.token > Token::default()).then_some(record.token);
    let age = Duration::from_micros(now.saturating_sub(record.position));
    let left = Duration::from_micros(record.expires_at.saturating_sub(now));
    ContenderView::new(record.claim, record.contender.mode, token, record.contender.holder, age, left)
}

/// All locks that are held or awaited.
pub(super) async fn list(engine: &RedisEngine, prefix: &str) -> Result<Vec<LockView>> {
    let names = scan_names(&engine.nodes, &engine.config.prefix, wire::LOCK_LETTER, prefix).await?;
    let mut views = Vec::new();
    for chunk in names.chunks(MAX_CONCURRENT_READS) {
        views.extend(try_join_all(chunk.iter().map(|name| inspect_lock(engine, name))).await?);
    }
    views.retain(|view| !view.holders.is_empty() || !view.waiters.is_empty() || view.damage.is_some());
    Ok(views)
}

/// The names of all locks, or records, by the letter of their keys, that begin with `name_prefix`, in
/// order.
pub(super) async fn scan_names(nodes: &Nodes, prefix: &str, letter: char, name_prefix: &str) -> Result<Vec<LockName>> {
    let mut names = Vec::new();
    for link in nodes.links() {
        let live = link.connection().await?;
        let mut cursor = "0".to_owned();
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(keys::pattern(&format!("{prefix}{letter}"))).arg("COUNT").arg(1000);
            let answer =
                link.send_command(&live, &scan).await.map_err(|cause| error::step_error(&live.address, cause))?;
            let (next, keys) = values::parse_scan(&answer, &live.address)?;
            let name = |key: String| keys::name_of(prefix, letter, &key);
            names.extend(keys.into_iter().filter_map(name).filter(|name| name.as_str().starts_with(name_prefix)));
            if next == "0" {
                break;
            }
            cursor = next;
        }
    }
    names.sort();
    names.dedup();
    Ok(names)
}

/// Requests that a holder releases its claim, by a message to its client.
pub(super) async fn request_release(
    engine: &RedisEngine,
    name: &LockName,
    claim: ClaimId,
    reason: &str,
) -> Result<Option<ContenderView>> {
    let key = engine.key(name);
    let (now, stored, _) = read_lock(engine, name).await?;
    let holds =
        |record: &ClaimRecord| record.claim == claim && record.token > Token::default() && record.expires_at > now;
    let Some(record) = stored.records.into_iter().find(holds) else { return Ok(None) };
    if let Some(inbox) = &record.contender.inbox {
        let link = engine.nodes.link(engine.nodes.slot(&key))?;
        let live = link.connection().await?;
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(&**inbox).arg(ReleaseRequested { claim, reason: reason.into() }.write());
        link.send_command(&live, &publish).await.map_err(|cause| error::step_error(&live.address, cause))?;
    }
    Ok(Some(party_view(record, now)))
}

/// Force releases a claim.
pub(super) async fn force_release(
    engine: &RedisEngine,
    name: &LockName,
    claim: ClaimId,
    reason: &str,
) -> Result<ForceReleaseOutcome> {
    let key = engine.key(name);
    let slot = engine.nodes.slot(&key);
    let then = |command: &mut Cmd| {
        engine.add_claim(command, claim);
        command.arg(reason);
    };
    let (answer, live) = engine.run_script(slot, |scripts| &scripts.force_release, &[&key], &then).await?;
    let read = || {
        let Value::Array(parts) = &answer else { return None };
        let [fresh, lowest, record, now] = &parts[..] else { return None };
        let now = values::integer(now)?.try_into().ok()?;
        let record = match record {
            Value::Int(0) => return Some(ForceReleaseOutcome::new(None, None)),
            record => party_view(ClaimRecord::read(claim, values::bytes(record)?)?, now),
        };
        let token = |value| values::integer(value).and_then(|token| token.try_into().ok()).map(Token);
        let others = Some(token(lowest)?).filter(|lowest| *lowest > Token::default());
        let force_release_token = fence::force_release_token(record.token, others, token(fresh)?);
        Some(ForceReleaseOutcome::new(Some(record), force_release_token))
    };
    read().ok_or_else(|| error::unexpected_answer(&live.address, &answer))
}
