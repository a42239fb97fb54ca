//! Records: one key each, one script per step, on the server's clock.
//!
//! | event | consequence |
//! |---|---|
//! | reply to a write is lost | outcome unknown until the next read; the same write over the same version does nothing the second time |
//! | two writes at once | the scripts run one after the other; the second finds another version |
//! | record is removed and created again | its version stays for a day, and then the clock is beyond it |
//! | server's clock is set back | versions continue one by one; the time that a read returns goes back with the clock |
//! | fail-over or restart loses the last writes | the record has its earlier value; the next write gets a version above the lost ones, if the clocks are right |
//! | the same, with `replicas=N` | no write was reported as done that fewer than N replicas had |
//! | the same, with `strict` | a read also returns the server's run and its start: a reader that has seen another run knows that writes may be lost |

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use redis::{Cmd, Value};

use super::engine::RedisEngine;
use super::link::Live;
use super::nodes::Nodes;
use super::wire::{self, Stored, lua};
use super::{error, inspect};
use crate::engine::{Record, ServerRun};
use crate::error::Result;
use crate::name::LockName;

/// How many digits a version has.
const DIGITS: usize = 16;

/// The records below a prefix.
#[derive(Debug)]
pub(super) struct Shelf {
    prefix: String,
    recall: Arc<Stored>,
    record: Arc<Stored>,
    /// Reads a record and the server's run. Only strict mode needs it, so servers do not store it
    /// in advance.
    recall_in_run: Arc<Stored>,
    /// Writes in that run only; not stored in advance either.
    record_in_run: Arc<Stored>,
}

impl Shelf {
    pub(super) fn new(prefix: String) -> Self {
        let script = |text: &str| Stored::new(text.to_owned());
        let (recall, record) = (include_str!("scripts/recall.lua"), include_str!("scripts/record.lua"));
        let in_run = |rest: &[&str]| Stored::new([&[lua::WORDS, lua::HEAD, lua::STRICT], rest].concat().concat());
        Self {
            prefix,
            recall: script(recall),
            record: script(record),
            recall_in_run: in_run(&[include_str!("scripts/recall_strict.lua")]),
            // record.lua declares a time of its own, which has the same value.
            record_in_run: in_run(&[include_str!("scripts/record_strict.lua"), "do ", record, "end"]),
        }
    }

    /// The scripts for servers to store in advance.
    pub(super) fn scripts(&self) -> [Arc<Stored>; 2] {
        [Arc::clone(&self.recall), Arc::clone(&self.record)]
    }

    /// Reads a record in strict mode, with the run of the server.
    pub(super) async fn read_in_run(
        &self,
        engine: &RedisEngine,
        name: &LockName,
    ) -> Result<(Record, Option<ServerRun>)> {
        let key = wire::record_key(&self.prefix, name.as_str());
        let slot = engine.nodes.slot(&key);
        let fill = |command: &mut Cmd, live: &Live| {
            command.arg(&key);
            engine.epoch_key(command, slot);
            engine.run_arguments(command, live);
        };
        let (answer, live) = engine.nodes.script(slot, &self.recall_in_run, engine.keys(1), &fill).await?;
        let odd = || error::odd(&live.address, &answer);
        Ok((found(&answer).ok_or_else(odd)?, Some(run(&answer).ok_or_else(odd)?)))
    }

    pub(super) async fn read(&self, nodes: &Nodes, name: &LockName) -> Result<Record> {
        let key = wire::record_key(&self.prefix, name.as_str());
        let fill = |command: &mut Cmd, _: &Live| {
            command.arg(&key);
        };
        let (answer, live) = nodes.script(nodes.slot(&key), &self.recall, 1, &fill).await?;
        found(&answer).ok_or_else(|| error::odd(&live.address, &answer))
    }

    /// Writes a record; also returns the connection to the server that did it.
    pub(super) async fn write(
        &self,
        nodes: &Nodes,
        name: &LockName,
        over: u64,
        value: String,
    ) -> Result<(Option<Record>, Live)> {
        let key = wire::record_key(&self.prefix, name.as_str());
        let fill = |command: &mut Cmd, _: &Live| {
            command.arg(&key).arg(format!("{over:016}")).arg(&value);
        };
        let (answer, live) = nodes.script(nodes.slot(&key), &self.record, 1, &fill).await?;
        let Some((now, version)) = written(&answer) else { return Err(error::odd(&live.address, &answer)) };
        Ok((version.map(|version| Record { version, value, now }), live))
    }

    /// The same in strict mode, and in this run of the server only.
    pub(super) async fn write_in_run(
        &self,
        engine: &RedisEngine,
        name: &LockName,
        (over, value): (u64, String),
        run: &ServerRun,
    ) -> Result<(Option<Record>, Live)> {
        let key = wire::record_key(&self.prefix, name.as_str());
        let slot = engine.nodes.slot(&key);
        let fill = |command: &mut Cmd, live: &Live| {
            command.arg(&key);
            engine.epoch_key(command, slot);
            command.arg(format!("{over:016}")).arg(&value).arg(&run.id).arg(run.began.as_micros() as u64);
            engine.run_arguments(command, live);
        };
        let (answer, live) = engine.nodes.script(slot, &self.record_in_run, engine.keys(1), &fill).await?;
        let Some((now, version)) = written(&answer) else { return Err(error::odd(&live.address, &answer)) };
        Ok((version.map(|version| Record { version, value, now }), live))
    }

    pub(super) async fn names(&self, nodes: &Nodes, start: &str) -> Result<Vec<LockName>> {
        let mut there = Vec::new();
        for some in inspect::names(nodes, &self.prefix, wire::RECORD, start).await?.chunks(inspect::AT_ONCE) {
            let found = try_join_all(some.iter().map(|name| self.read(nodes, name))).await?;
            let kept = some.iter().zip(found).filter(|(_, record)| record.version > 0);
            there.extend(kept.map(|(name, _)| name.clone()));
        }
        Ok(there)
    }
}

fn clock(value: &Value) -> Option<Duration> {
    Some(Duration::from_micros(wire::integer(value)?.try_into().ok()?))
}

/// Reads the answer of `recall.lua`.
fn found(answer: &Value) -> Option<Record> {
    let Value::Array(parts) = answer else { return None };
    let (now, stored) = (clock(parts.first()?)?, parts.get(1));
    let stored = match stored {
        None | Some(Value::Nil) => return Some(Record::absent(now)),
        Some(stored) => wire::bytes(stored)?,
    };
    let (version, value) = stored.split_at_checked(DIGITS)?;
    let version = std::str::from_utf8(version).ok()?.parse().ok()?;
    if value.is_empty() {
        return Some(Record::absent(now));
    }
    Some(Record { version, value: String::from_utf8(value.to_vec()).ok()?, now })
}

/// Reads what `recall_strict.lua` adds.
fn run(answer: &Value) -> Option<ServerRun> {
    let Value::Array(parts) = answer else { return None };
    let id = String::from_utf8(wire::bytes(parts.get(2)?)?.to_vec()).ok()?;
    Some(ServerRun { id, began: clock(parts.get(3)?)? })
}

/// Reads the answer of `record.lua`: the time and, if the record was written, its version.
fn written(answer: &Value) -> Option<(Duration, Option<u64>)> {
    let Value::Array(parts) = answer else { return None };
    let version = match parts.get(1) {
        None => None,
        Some(version) => Some(wire::integer(version)?.try_into().ok()?),
    };
    Some((clock(parts.first()?)?, version))
}
