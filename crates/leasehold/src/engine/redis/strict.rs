//! Starts the cool-down of strict mode when a server is reached, and not only when a lock is first
//! wanted.

use std::sync::Weak;
use std::time::Duration;

use futures_util::future::join_all;
use redis::Cmd;
use tokio::sync::mpsc::UnboundedReceiver;

use super::config::Address;
use super::engine::RedisEngine;
use super::link::LiveConnection;
use super::wire::SLOTS;
use crate::clock::Clock;

/// How many slots are touched at once.
const MAX_CONCURRENT_SLOTS: usize = 512;
/// How often a server is touched while it stays reached. The key of strict mode expires after a
/// day, and without it the cool-down would start again.
const EPOCH_REFRESH_INTERVAL: Duration = Duration::from_secs(6 * 3600);

/// Touches each server that is reached, in all its slots, while the engine exists.
pub(super) async fn keep_epochs_fresh(
    engine: Weak<RedisEngine>,
    clock: Clock,
    mut reached: UnboundedReceiver<Address>,
) {
    loop {
        let address = match clock.timeout(EPOCH_REFRESH_INTERVAL, reached.recv()).await {
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
        for some in slots.chunks(MAX_CONCURRENT_SLOTS) {
            for touched in join_all(some.iter().map(|slot| refresh_epoch(&engine, *slot))).await {
                if let Err(error) = touched {
                    tracing::debug!(%error, ?address, "strict mode could not begin to wait");
                }
            }
        }
    }
}

async fn refresh_epoch(engine: &RedisEngine, slot: Option<u16>) -> crate::types::Result<()> {
    let fill = |command: &mut Cmd, live: &LiveConnection| {
        engine.add_epoch_key(command, slot);
        engine.add_run_arguments(command, live);
    };
    engine.nodes.run_script(slot, &engine.scripts.refresh_epoch, 1, &fill).await.map(drop)
}
