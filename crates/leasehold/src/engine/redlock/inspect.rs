//! Inspects locks, and force releases claims.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::try_join_all;
use redis::{Pipeline, Value};

use super::engine::RedlockEngine;
use super::error;
use super::node::Node;
use super::server::{Request, RequestKind};
use super::wire::{self, ClaimRecord, StoredLock, StoredVote};
use crate::engine::{ContenderView, ForceReleaseOutcome, LockView};
use crate::logic::fence;
use crate::redis_client::error::{step_error, unexpected_answer};
use crate::redis_client::keys::pattern;
use crate::redis_client::values::{bytes, integer, parse_scan};
use crate::redis_client::{ReleaseRequested, Stored};
use crate::types::{ClaimId, Error, ErrorKind, LockName, Result, Token};

/// How many tokens are tried before a force release fails, each higher than the last.
const MAX_TOKEN_ATTEMPTS: usize = 4;

/// How many locks are read at once.
const MAX_CONCURRENT_READS: usize = 128;

/// One lock, as a majority reports it, or all nodes that respond.
pub(super) async fn inspect_lock(engine: &RedlockEngine, name: &LockName) -> Result<LockView> {
    let answers = engine.ask_responsive(|node| async move { read_lock(engine, name, &node).await });
    let (stored, errors) = partition_results(answers.await);
    let damaged = errors.iter().find(|error| error.is_bad_record());
    if stored.len() < engine.config.quorum.majority {
        return match damaged {
            Some(error) => {
                Ok(LockView { damage: Some(error.message_without_location()), ..LockView::free(name.clone()) })
            }
            None => Err(error::no_majority(&engine.config, &errors)),
        };
    }
    Ok(merge(engine, name, &stored))
}

/// What one node has stored of a lock.
async fn read_lock(engine: &RedlockEngine, name: &LockName, node: &Node) -> Result<StoredLock> {
    let mut commands = Pipeline::new();
    commands.cmd("TIME").cmd("GET").arg(engine.key(name));
    let mut answers = node.send_commands(&commands, node_timeout(engine)).await?;
    let text = answers.pop().unwrap_or(Value::Nil);
    let text = text.extract_error().map_err(|cause| step_error(&node.address, cause))?;
    StoredLock::read(answers.first().unwrap_or(&Value::Nil), &text)
}

/// Requests that a holder releases its claim, by a message from each node that has it. A client
/// that may not subscribe does not receive it.
pub(super) async fn request_release(
    engine: &RedlockEngine,
    name: &LockName,
    claim: ClaimId,
    reason: &str,
) -> Result<Option<ContenderView>> {
    let view = inspect_lock(engine, name).await?;
    view.check_intact()?;
    let holder = view.holders.into_iter().find(|holder| holder.claim == claim);
    if holder.is_none() {
        return Ok(None);
    }
    let message = &ReleaseRequested { claim, reason: reason.into() }.write();
    let answers = engine.ask_responsive(|node| async move {
        let stored = read_lock(engine, name, &node).await?;
        let record = stored.records.iter().find(|record| record.claim == claim);
        if let Some(inbox) = record.and_then(|record| record.contender.inbox.as_deref()) {
            let mut publish = Pipeline::new();
            publish.cmd("PUBLISH").arg(inbox).arg(message);
            node.send_commands(&publish, node_timeout(engine)).await?;
        }
        Ok(())
    });
    let (asked, errors) = partition_results(answers.await);
    if asked.is_empty() { Err(error::no_majority(&engine.config, &errors)) } else { Ok(holder) }
}

/// Shows every claim that may hold: one that could have a majority if the nodes that did not
/// respond have it, too.
fn merge(engine: &RedlockEngine, name: &LockName, stocks: &[StoredLock]) -> LockView {
    let quorum = engine.config.quorum;
    let unknown = quorum.node_count - stocks.len();
    let mut found: BTreeMap<ClaimId, Vec<(&ClaimRecord, Duration)>> = BTreeMap::new();
    for stored in stocks {
        for record in &stored.records {
            let left = Duration::from_micros(record.expires_at - stored.now);
            found.entry(record.claim).or_default().push((record, left));
        }
    }
    let now = stocks.iter().map(|stored| stored.now).max().unwrap_or_default();
    let mut holders = Vec::new();
    for (claim, mut records) in found {
        let token = records.iter().map(|(record, _)| record.token).max().unwrap_or_default();
        if records.len() + unknown < quorum.majority || token == Token::default() {
            continue;
        }
        // It is held until it no longer has a majority.
        records.sort_by_key(|(_, left)| std::cmp::Reverse(*left));
        let Some((record, left)) = records.get(quorum.majority - 1).or(records.last()) else { continue };
        let age = Duration::from_micros(now.saturating_sub(token.0));
        let holder = record.contender.holder.clone();
        holders.push(ContenderView::new(claim, record.contender.mode, Some(token), holder, age, *left));
    }
    holders.sort_by_key(|holder| holder.token);
    let last = stocks.iter().map(|stored| stored.last_token).max().filter(|last| *last > Token::default());
    LockView { holders, last_token: last, ..LockView::free(name.clone()) }
}

fn node_timeout(engine: &RedlockEngine) -> Duration {
    engine.config.node_timeout
}

fn partition_results<T>(answers: Vec<Result<T>>) -> (Vec<T>, Vec<Error>) {
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for answer in answers {
        match answer {
            Ok(answer) => good.push(answer),
            Err(error) => bad.push(error),
        }
    }
    (good, bad)
}

/// All locks that are held.
pub(super) async fn list(engine: &RedlockEngine, prefix: &str) -> Result<Vec<LockView>> {
    let (names, errors) =
        partition_results(engine.ask_responsive(|node| async move { scan_names(engine, &node).await }).await);
    if names.len() < engine.config.quorum.majority {
        return Err(error::no_majority(&engine.config, &errors));
    }
    let mut names: Vec<_> = names.into_iter().flatten().filter(|name| name.as_str().starts_with(prefix)).collect();
    names.sort();
    names.dedup();
    let mut views = Vec::new();
    for chunk in names.chunks(MAX_CONCURRENT_READS) {
        views.extend(try_join_all(chunk.iter().map(|name| inspect_lock(engine, name))).await?);
    }
    views.retain(|view| !view.holders.is_empty() || view.damage.is_some());
    Ok(views)
}

/// All lock names on a node.
async fn scan_names(engine: &RedlockEngine, node: &Node) -> Result<Vec<LockName>> {
    let prefix = &engine.config.nodes[0].prefix;
    let (mut names, mut cursor) = (Vec::new(), "0".to_owned());
    loop {
        let mut scan = Pipeline::new();
        scan.cmd("SCAN").arg(&cursor).arg("MATCH").arg(pattern(&format!("{prefix}q"))).arg("COUNT").arg(1000);
        let answer = node.send_commands(&scan, node_timeout(engine)).await?.pop().unwrap_or(Value::Nil);
        let answer = answer.extract_error().map_err(|cause| step_error(&node.address, cause))?;
        let (next, keys) = parse_scan(&answer, &node.address)?;
        names.extend(keys.iter().filter_map(|key| wire::name_of(prefix, key)));
        if next == "0" {
            return Ok(names);
        }
        cursor = next;
    }
}

/// A node's answer to a force release.
struct NodeForceRelease {
    /// Whether it stored the token.
    is_token_stored: bool,
    /// The highest token that it had.
    last_token: Token,
    /// Whether the claim was there.
    was_present: bool,
    /// Whether other claims stay: those of the same owner, with the same token.
    has_others: bool,
    view: Option<ContenderView>,
}

/// Force releases a claim on a majority, and stores a token there that is higher than any before.
/// If no node has the claim, the nodes stay as they are: the first round stores the token only on
/// nodes that have it.
pub(super) async fn force_release(
    engine: &RedlockEngine,
    name: &LockName,
    claim: ClaimId,
    reason: &str,
) -> Result<ForceReleaseOutcome> {
    let mut token = Token(engine.guess().0.max(1));
    let (mut contender, mut was_present, mut others) = (None, false, false);
    for _ in 0..MAX_TOKEN_ATTEMPTS {
        let (answers, errors) = partition_results(ask_force_release(engine, name, claim, token, was_present).await);
        if answers.len() < engine.config.quorum.majority {
            return Err(error::no_majority(&engine.config, &errors));
        }
        let stored = answers.iter().filter(|answer| answer.is_token_stored).count();
        let highest = answers.iter().map(|answer| answer.last_token).fold(token, Token::max);
        was_present |= answers.iter().any(|answer| answer.was_present);
        others |= answers.iter().any(|answer| answer.has_others);
        contender = contender.or_else(|| answers.into_iter().find_map(|answer| answer.view));
        if !was_present {
            return Ok(ForceReleaseOutcome::new(None, None));
        }
        if stored >= engine.config.quorum.majority {
            tracing::warn!(%name, ?claim, reason, "force released");
            let held = contender
                .as_ref()
                .map_or(Token::default(), |contender: &ContenderView| contender.token.unwrap_or_default());
            // Other holders have the same owner, and so the same token.
            let force_release_token = fence::force_release_token(Some(held), others.then_some(held), token);
            return Ok(ForceReleaseOutcome::new(contender, force_release_token));
        }
        token = token.max(Token(highest.0 + 1));
    }
    let message = "other clients acquired the lock between the rounds; inspect it, and try again";
    Err(Error::new(ErrorKind::Unavailable, message).at_engine(error::NAME).retryable())
}

/// Requests that all nodes force release a claim. `store_always`: store the token also on nodes
/// without the claim.
async fn ask_force_release(
    engine: &RedlockEngine,
    name: &LockName,
    claim: ClaimId,
    token: Token,
    store_always: bool,
) -> Vec<Result<NodeForceRelease>> {
    let arguments = vec![
        engine.retention(),
        claim.bits().to_be_bytes().to_vec(),
        wire::decimal(token.0),
        if store_always { b"always".to_vec() } else { b"if-present".to_vec() },
    ];
    let request = Request::new(RequestKind::ForceRelease, vec![engine.key(name)], arguments);
    let (request, timeout) = (&request, node_timeout(engine));
    let answers = engine.ask_all(|node| async move {
        let answer = node.send(request, timeout).await?;
        parse_force_release(&answer, claim).ok_or_else(|| unexpected_answer(&node.address, &answer))
    });
    answers.await
}

fn parse_force_release(answer: &Value, claim: ClaimId) -> Option<NodeForceRelease> {
    let Value::Array(parts) = answer else { return None };
    let [stored, last, now, vote, others] = &parts[..] else { return None };
    let now = u64::try_from(integer(now)?).ok()?;
    let contender = match vote {
        Value::Nil => None,
        vote => {
            let record = ClaimRecord::new(StoredVote::read(bytes(vote)?).ok()?, now)?;
            let age = Duration::from_micros(now.saturating_sub(record.token.0));
            let left = Duration::from_micros(record.expires_at.saturating_sub(now));
            Some(ContenderView::new(
                claim,
                record.contender.mode,
                Some(record.token),
                record.contender.holder,
                age,
                left,
            ))
        }
    };
    let flag = |value| integer(value).map(|number| number == 1);
    let last = Token(u64::try_from(integer(last)?).ok()?);
    Some(NodeForceRelease {
        is_token_stored: flag(stored)?,
        last_token: last,
        was_present: contender.is_some(),
        has_others: flag(others)?,
        view: contender,
    })
}
