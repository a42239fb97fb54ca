//! Records: one key each, one script per step, on the server's clock.
//!
//! | event | consequence |
//! |---|---|
//! | reply to a write is lost | outcome unknown until the next read; the same write over the same version has no effect the second time |
//! | two writes at once | the scripts run one after the other; the second finds another version |
//! | record is removed and created again | its version stays for a day, and then the clock is beyond it |
//! | server's clock is set back | versions continue one by one; the time that a read returns goes back with the clock |
//! | fail-over or restart loses the last writes | the record has its earlier value; the next write gets a version above the lost ones, if the clocks are right |
//! | the same, with `replicas=N` | no write was reported as done that fewer than N replicas had |
//! | the same, with `strict` | a read also returns the server's run and its start: a reader that has seen another run knows that writes may be lost |

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::{Cmd, Value};

use super::engine::RedisEngine;
use super::inspect;
use super::wire::{self, StoredRecord};
use crate::engine::{Record, ServerRun};
use crate::redis_client::{CachedScript, LiveConnection, Nodes, Stored, error, lua, values};
use crate::types::{LockName, Result};

/// The records below a prefix.
#[derive(Debug)]
pub(super) struct StoredRecords {
    prefix: String,
    get: Arc<CachedScript>,
    compare_and_set: Arc<CachedScript>,
    /// Reads a record and the server's run. Only strict mode needs it, so servers do not store it
    /// in advance.
    get_in_run: Arc<CachedScript>,
    /// Writes in that run only; not stored in advance either.
    compare_and_set_in_run: Arc<CachedScript>,
}

impl StoredRecords {
    pub(super) fn new(prefix: String) -> Self {
        let script = |parts: &[&str]| CachedScript::new([&[lua::PRELUDE, lua::SERVER_TIME], parts].concat().concat());
        let (get, set) = (include_str!("scripts/get_record.lua"), include_str!("scripts/set_record.lua"));
        let record = lua::FORMAT_CHECK.to_owned() + &StoredRecord::LAYOUT.functions();
        let strict = lua::strict();
        Self {
            prefix,
            get: script(&[get]),
            compare_and_set: script(&[&record, set]),
            get_in_run: script(&[&strict, include_str!("scripts/get_record_strict.lua")]),
            compare_and_set_in_run: script(&[&strict, &record, include_str!("scripts/set_record_strict.lua"), set]),
        }
    }

    /// The scripts for servers to store in advance.
    pub(super) fn scripts(&self) -> [Arc<CachedScript>; 2] {
        [Arc::clone(&self.get), Arc::clone(&self.compare_and_set)]
    }

    /// Reads a record in strict mode, with the run of the server.
    pub(super) async fn get_in_run(
        &self,
        engine: &RedisEngine,
        name: &LockName,
    ) -> Result<(Record, Option<ServerRun>)> {
        let key = wire::record_key(&self.prefix, name.as_str());
        let slot = engine.nodes.slot(&key);
        let fill_command = |command: &mut Cmd, live: &LiveConnection| {
            command.arg(&key);
            engine.add_epoch_key(command, slot);
            engine.add_run_arguments(command, live);
        };
        let (answer, live) =
            engine.nodes.run_script(slot, &self.get_in_run, engine.key_count(1), &fill_command).await?;
        let unexpected = || error::unexpected_answer(&live.address, &answer);
        Ok((parse_record(&answer)?.ok_or_else(unexpected)?, Some(parse_run(&answer).ok_or_else(unexpected)?)))
    }

    pub(super) async fn get(&self, nodes: &Nodes, name: &LockName) -> Result<Record> {
        let key = wire::record_key(&self.prefix, name.as_str());
        let fill_command = |command: &mut Cmd, _: &LiveConnection| {
            command.arg(&key);
        };
        let (answer, live) = nodes.run_script(nodes.slot(&key), &self.get, 1, &fill_command).await?;
        parse_record(&answer)?.ok_or_else(|| error::unexpected_answer(&live.address, &answer))
    }

    /// Writes a record; also returns the connection to the server that did it.
    pub(super) async fn compare_and_set(
        &self,
        nodes: &Nodes,
        name: &LockName,
        expected_version: u64,
        value: String,
    ) -> Result<(Option<Record>, LiveConnection)> {
        let key = wire::record_key(&self.prefix, name.as_str());
        let fill_command = |command: &mut Cmd, _: &LiveConnection| {
            command.arg(&key).arg(expected_version).arg(&value);
        };
        let (answer, live) = nodes.run_script(nodes.slot(&key), &self.compare_and_set, 1, &fill_command).await?;
        let Some((now, version)) = parse_write(&answer) else {
            return Err(error::unexpected_answer(&live.address, &answer));
        };
        Ok((version.map(|version| Record { version, value, engine_time: now }), live))
    }

    /// The same in strict mode, and in this run of the server only.
    pub(super) async fn compare_and_set_in_run(
        &self,
        engine: &RedisEngine,
        name: &LockName,
        (expected_version, value): (u64, String),
        run: &ServerRun,
    ) -> Result<(Option<Record>, LiveConnection)> {
        let key = wire::record_key(&self.prefix, name.as_str());
        let slot = engine.nodes.slot(&key);
        let fill_command = |command: &mut Cmd, live: &LiveConnection| {
            command.arg(&key);
            engine.add_epoch_key(command, slot);
            command.arg(expected_version).arg(&value).arg(&run.id).arg(run.began_at.as_micros() as u64);
            engine.add_run_arguments(command, live);
        };
        let (answer, live) =
            engine.nodes.run_script(slot, &self.compare_and_set_in_run, engine.key_count(1), &fill_command).await?;
        let Some((now, version)) = parse_write(&answer) else {
            return Err(error::unexpected_answer(&live.address, &answer));
        };
        Ok((version.map(|version| Record { version, value, engine_time: now }), live))
    }

    pub(super) async fn list(&self, nodes: &Nodes, name_prefix: &str) -> Result<Vec<LockName>> {
        let mut existing = Vec::new();
        for chunk in inspect::scan_names(nodes, &self.prefix, wire::RECORD_LETTER, name_prefix)
            .await?
            .chunks(inspect::MAX_CONCURRENT_READS)
        {
            for (name, found) in chunk.iter().zip(join_all(chunk.iter().map(|name| self.get(nodes, name))).await) {
                match found {
                    Ok(record) if record.version == 0 => {}
                    // A record that cannot be read exists all the same.
                    Err(error) if !error.is_bad_record() => return Err(error),
                    _ => existing.push(name.clone()),
                }
            }
        }
        Ok(existing)
    }
}

fn parse_time(value: &Value) -> Option<Duration> {
    Some(Duration::from_micros(values::integer(value)?.try_into().ok()?))
}

/// Reads the answer of `get_record.lua`.
fn parse_record(answer: &Value) -> Result<Option<Record>> {
    let Value::Array(parts) = answer else { return Ok(None) };
    let Some(now) = parts.first().and_then(parse_time) else { return Ok(None) };
    let stored = match parts.get(1) {
        None | Some(Value::Nil) => return Ok(Some(Record::absent(now))),
        Some(stored) => values::bytes(stored),
    };
    let stored = stored.map(StoredRecord::read).transpose()?;
    Ok(stored.and_then(|StoredRecord { version, value }| {
        if value.0.is_empty() {
            return Some(Record::absent(now));
        }
        Some(Record { version, value: String::from_utf8(value.0).ok()?, engine_time: now })
    }))
}

/// Reads what `get_record_strict.lua` adds.
fn parse_run(answer: &Value) -> Option<ServerRun> {
    let Value::Array(parts) = answer else { return None };
    let id = String::from_utf8(values::bytes(parts.get(2)?)?.to_vec()).ok()?;
    Some(ServerRun { id, began_at: parse_time(parts.get(3)?)? })
}

/// Reads the answer of `set_record.lua`: the time and, if the record was written, its version.
fn parse_write(answer: &Value) -> Option<(Duration, Option<u64>)> {
    let Value::Array(parts) = answer else { return None };
    let version = match parts.get(1) {
        None => None,
        Some(version) => Some(values::integer(version)?.try_into().ok()?),
    };
    Some((parse_time(parts.first()?)?, version))
}
