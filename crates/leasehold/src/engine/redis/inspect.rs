//! Inspects locks, and force releases claims.

use std::time::Duration;

use futures_util::future::try_join_all;
use redis::{Cmd, Value};

use super::engine::RedisEngine;
use super::link::Live;
use super::nodes::Nodes;
use super::wire::{self, Field, Message, Record, Stock};
use super::{config::Address, error};
use crate::claim::{ClaimId, Token};
use crate::engine::{Evicted, LockView, PartyView};
use crate::error::{Error, ErrorKind, Result};
use crate::logic::fence;
use crate::name::LockName;

/// How many locks are read at once.
pub(super) const AT_ONCE: usize = 128;

/// One lock.
pub(super) async fn one(engine: &RedisEngine, name: &LockName) -> Result<LockView> {
    let mut view = LockView::free(name.clone());
    match stock(engine, name).await {
        Ok((now, stock)) => show(&mut view, stock, now),
        Err(error) if error.kind() == ErrorKind::Corrupt => view.trouble = Some(error.said()),
        Err(error) => return Err(error),
    }
    Ok(view)
}

/// What the server has stored of a lock, and its time. `Corrupt` if leasehold did not write it.
async fn stock(engine: &RedisEngine, name: &LockName) -> Result<(u64, Stock)> {
    let key = engine.key(name);
    let fill = |command: &mut Cmd, _: &Live| {
        command.arg(&key);
    };
    let shown = engine.nodes.script(engine.nodes.slot(&key), &engine.scripts.inspect, 1, &fill).await;
    let (answer, live) = shown?;
    let (now, fields, bundle) = read(&answer).ok_or_else(|| error::odd(&live.address, &answer))?;
    let stock = Stock::read(&fields, bundle, now, wire::short_run(&live.run));
    let stock = stock.ok_or_else(|| Error::new(ErrorKind::Corrupt, "its record is not what leasehold writes"))?;
    Ok((now, stock))
}

/// The server's time, the lock's fields, and its bundle.
type Shown<'a> = (u64, Vec<Field>, Option<&'a [u8]>);

fn read(answer: &Value) -> Option<Shown<'_>> {
    let Value::Array(parts) = answer else { return None };
    let [now, Value::Array(fields), bundle] = &parts[..] else { return None };
    let (pairs, []) = fields.as_chunks::<2>() else { return None };
    let pair = |[field, value]: &[Value; 2]| Some((wire::bytes(field)?.to_vec(), wire::bytes(value)?.to_vec()));
    let fields = pairs.iter().map(pair).collect::<Option<_>>()?;
    Some((wire::integer(now)?.try_into().ok()?, fields, wire::bytes(bundle)))
}

/// Fills a view with the claims that have not expired.
fn show(view: &mut LockView, stock: Stock, now: u64) {
    let mut records = stock.records;
    records.retain(|record| record.until > now);
    records.sort_by_key(|record| record.place);
    let (holders, waiters): (Vec<_>, Vec<_>) = records.into_iter().partition(|record| record.token > Token::default());
    view.holders = holders.into_iter().map(|record| party(record, now)).collect();
    view.waiters = waiters.into_iter().map(|record| party(record, now)).collect();
    view.last_token = stock.last_token;
}

fn party(record: Record, now: u64) -> PartyView {
    let token = (record.token > Token::default()).then_some(record.token);
    let age = Duration::from_micros(now.saturating_sub(record.place));
    let left = Duration::from_micros(record.until.saturating_sub(now));
    PartyView::new(record.claim, record.party.mode, token, record.party.holder, age, left)
}

/// All locks that are held or awaited.
pub(super) async fn list(engine: &RedisEngine, prefix: &str) -> Result<Vec<LockView>> {
    let names = names(&engine.nodes, &engine.config.prefix, wire::LOCK, prefix).await?;
    let mut views = Vec::new();
    for some in names.chunks(AT_ONCE) {
        views.extend(try_join_all(some.iter().map(|name| one(engine, name))).await?);
    }
    views.retain(|view| !view.holders.is_empty() || !view.waiters.is_empty() || view.trouble.is_some());
    Ok(views)
}

/// The names of all locks, or records, by the letter of their keys, that begin with `start`, in
/// order.
pub(super) async fn names(nodes: &Nodes, prefix: &str, letter: char, start: &str) -> Result<Vec<LockName>> {
    let mut names = Vec::new();
    for link in nodes.links() {
        let live = link.live().await?;
        let mut cursor = "0".to_owned();
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(wire::pattern(&format!("{prefix}{letter}"))).arg("COUNT").arg(1000);
            let answer = link.command(&live, &scan).await.map_err(|cause| error::step(&live.address, cause))?;
            let (next, keys) = scanned(&answer, &live.address)?;
            let name = |key: String| wire::name_of(prefix, letter, &key);
            names.extend(keys.into_iter().filter_map(name).filter(|name| name.as_str().starts_with(start)));
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

pub(crate) fn scanned(answer: &Value, address: &Address) -> Result<(String, Vec<String>)> {
    let text = |value: &Value| wire::bytes(value).map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    let read = || {
        let Value::Array(parts) = answer else { return None };
        let [cursor, Value::Array(keys)] = &parts[..] else { return None };
        Some((text(cursor)?, keys.iter().filter_map(text).collect()))
    };
    read().ok_or_else(|| error::odd(address, answer))
}

/// Asks a holder to release its claim, by a message to its client.
pub(super) async fn request_release(
    engine: &RedisEngine,
    name: &LockName,
    claim: ClaimId,
    reason: &str,
) -> Result<Option<PartyView>> {
    let key = engine.key(name);
    let (now, stock) = stock(engine, name).await?;
    let holds = |record: &Record| record.claim == claim && record.token > Token::default() && record.until > now;
    let Some(record) = stock.records.into_iter().find(holds) else { return Ok(None) };
    if let Some(channel) = record.party.channel(&key) {
        let link = engine.nodes.link(engine.nodes.slot(&key))?;
        let live = link.live().await?;
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(channel).arg(Message::request_release(claim, reason));
        link.command(&live, &publish).await.map_err(|cause| error::step(&live.address, cause))?;
    }
    Ok(Some(party(record, now)))
}

/// Force releases a claim.
pub(super) async fn evict(engine: &RedisEngine, name: &LockName, claim: ClaimId, reason: &str) -> Result<Evicted> {
    let key = engine.key(name);
    let slot = engine.nodes.slot(&key);
    let then = |command: &mut Cmd| {
        command.arg(&claim.bits().to_be_bytes()).arg("").arg(engine.config.retention.as_secs()).arg("").arg(reason);
    };
    let (answer, live) = engine.script(slot, |scripts| &scripts.evict, &[&key], &then).await?;
    let read = || {
        let Value::Array(parts) = &answer else { return None };
        let [fresh, lowest, record, now] = &parts[..] else { return None };
        let now = wire::integer(now)?.try_into().ok()?;
        let record = match record {
            Value::Nil => return Some(Evicted::new(None, None)),
            record => party(Record::read(&claim.bits().to_be_bytes(), wire::bytes(record)?)?, now),
        };
        let token = |value| wire::integer(value).and_then(|token| token.try_into().ok()).map(Token);
        let others = Some(token(lowest)?).filter(|lowest| *lowest > Token::default());
        let advised = fence::advice(record.token, others, token(fresh)?);
        Some(Evicted::new(Some(record), advised))
    };
    read().ok_or_else(|| error::odd(&live.address, &answer))
}
