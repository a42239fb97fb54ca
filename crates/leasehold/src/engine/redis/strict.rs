//! Starts the cool-down of strict mode when a server is reached, and not only when a lock is first
//! wanted.

use std::sync::Weak;
use std::time::Duration;

use futures_util::future::join_all;
use redis::Cmd;
use tokio::sync::mpsc::UnboundedReceiver;

use super::config::Address;
use super::engine::RedisEngine;
use super::link::Live;
use super::wire::SLOTS;
use crate::clock::Clock;

/// How many slots are touched at once.
const AT_ONCE: usize = 512;
/// How often a server is touched while it stays reached. The key of strict mode expires after a
/// day, and without it the cool-down would start again.
const AGAIN: Duration = Duration::from_secs(6 * 3600);

/// Touches each server that is reached, in all its slots, while the engine exists.
pub(super) async fn keep_warm(engine: Weak<RedisEngine>, clock: Clock, mut reached: UnboundedReceiver<Address>) {
    loop {
        let address = match clock.timeout(AGAIN, reached.recv()).await {
            Ok(Some(address)) => Some(address),
            Ok(None) => return,
            Err(_) => None,
        };
        let Some(engine) = engine.upgrade() else { return };
        let slots = match (&address, engine.nodes.slot("")) {
            (_, None) => vec![None],
            (Some(address), Some(_)) => engine.nodes.slots_of(address).into_iter().map(Some).collect(),
            (None, Some(_)) => (0..SLOTS).map(Some).collect(),
        };
        for some in slots.chunks(AT_ONCE) {
            for touched in join_all(some.iter().map(|slot| touch(&engine, *slot))).await {
                if let Err(error) = touched {
                    tracing::debug!(%error, ?address, "strict mode could not begin to wait");
                }
            }
        }
    }
}

async fn touch(engine: &RedisEngine, slot: Option<u16>) -> crate::error::Result<()> {
    let fill = |command: &mut Cmd, live: &Live| {
        engine.epoch_key(command, slot);
        engine.run_arguments(command, live);
    };
    engine.nodes.script(slot, &engine.scripts.touch, 1, &fill).await.map(drop)
}
