//! Acquires several locks in one script.

use std::sync::Arc;

use redis::{Cmd, Value};

use super::engine::RedisEngine;
use crate::clock::Clock;
use crate::engine::Claim;
use crate::engine::Grant;
use crate::redis_client::{LiveConnection, encode_contender, error, values};
use crate::types::{Result, Token};

/// Acquires all locks if one script can, and they are free; `None` if not.
pub(super) async fn attempt_all(
    engine: &RedisEngine,
    clock: &Clock,
    claims: &[Arc<Claim>],
) -> Result<Option<Vec<Grant>>> {
    let keys: Vec<String> = claims.iter().map(|claim| engine.key(claim.name())).collect();
    let Some(slot) = keys.first().map(|key| engine.nodes.slot(key)) else { return Ok(None) };
    if keys.iter().any(|key| engine.nodes.slot(key) != slot) {
        return Ok(None);
    }
    let fill_command = |command: &mut Cmd, live: &LiveConnection| {
        for key in &keys {
            command.arg(key);
        }
        engine.add_epoch_key(command, slot);
        command.arg(engine.retention_secs);
        for claim in claims {
            command.arg(&claim.id.bits().to_be_bytes()).arg(encode_contender(&claim.options, engine.inbox()));
        }
        engine.add_run_arguments(command, live);
    };
    let sent = clock.now();
    let (answer, live) = match engine
        .nodes
        .run_script(slot, &engine.scripts.acquire_all, engine.key_count(keys.len()), &fill_command)
        .await
    {
        Err(error) if error::is_slot_moving(&error) => return Ok(None),
        other => other?,
    };
    let tokens = match &answer {
        Value::Nil => return Ok(None),
        Value::Array(tokens) => tokens.iter().map(|token| values::integer(token)?.try_into().ok()).collect(),
        _ => None,
    };
    let tokens: Vec<u64> = tokens
        .filter(|tokens: &Vec<u64>| tokens.len() == claims.len())
        .ok_or_else(|| error::unexpected_answer(&live.address, &answer))?;
    engine.wait_for_replicas(&live.address).await?;
    let grant = |(token, claim): (u64, &Arc<Claim>)| Grant::for_ttl(Token(token), sent, claim.options.ttl);
    Ok(Some(tokens.into_iter().zip(claims).map(grant).collect()))
}
