//! Starts the cool-down of strict mode when a server is reached, and not only when a lock is first
//! wanted.

use std::sync::Weak;
use std::time::Duration;

use futures_util::future::join_all;
use redis::Cmd;
use tokio::sync::mpsc::UnboundedReceiver;

use super::engine::RedisEngine;
use crate::clock::Clock;
use crate::redis_client::keys::SLOTS;
use crate::redis_client::{Address, Epoch, LiveConnection, Stored, error, values};
use crate::types::Result;

/// In how many slots strict mode's key is refreshed at once.
const MAX_CONCURRENT_SLOTS: usize = 512;
/// How often strict mode's key is refreshed on a server that stays reachable. The key expires after
/// a day, and without it the cool-down would start again.
const EPOCH_REFRESH_INTERVAL: Duration = Duration::from_secs(6 * 3600);

/// Refreshes strict mode's key on each server that is reached, in all its slots, while the engine
/// exists.
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
            for refreshed in join_all(some.iter().map(|slot| refresh_epoch(&engine, *slot))).await {
                if let Err(error) = refreshed {
                    tracing::debug!(%error, ?address, "strict mode's key could not be refreshed");
                }
            }
        }
    }
}

/// How long the server's cool-down lasts: it makes no new grants until the longest lease that an
/// earlier run may have granted is over. `None`: there is no cool-down.
pub(super) async fn cool_down_left(
    engine: &RedisEngine,
    slot: Option<u16>,
    now: u64,
    live: &LiveConnection,
) -> Result<Option<Duration>> {
    let Some(longest) = engine.config.strict else { return Ok(None) };
    let longest = u64::try_from(longest.as_micros()).unwrap_or(u64::MAX);
    let mut get = redis::cmd("GET");
    engine.add_epoch_key(&mut get, slot);
    let record = match engine.nodes.link(slot)?.send_command(live, &get).await {
        Ok(record) => record,
        // The slot is moving; while it does, no cool-down is known.
        Err(cause) if error::is_redirect(&cause) => return Ok(None),
        Err(cause) => return Err(error::step_error(&live.address, cause)),
    };
    let record = values::bytes(&record).map(Epoch::read).transpose()?;
    let left = remaining_cool_down(record.as_ref(), &live.run_id, longest, now);
    Ok((left > 0).then(|| Duration::from_micros(left)))
}

/// The cool-down that the stored epoch of the server means at `now`, in microseconds. Without an
/// epoch, or with that of another run or an older election, it begins with the next claim. As in
/// `strict.lua`.
fn remaining_cool_down(stored: Option<&Epoch>, run: &str, longest: u64, now: u64) -> u64 {
    let run_and_election = |run: &str| {
        let (id, election) = run.split_once(':').unwrap_or((run, ""));
        (id.to_owned(), election.parse::<u64>().unwrap_or(0))
    };
    let (id, election) = run_and_election(run);
    let Some(stored) = stored else { return longest };
    let longest = longest.max(stored.longest);
    let (old_id, old_election) = run_and_election(&String::from_utf8_lossy(&stored.run.0));
    if old_id != id || old_election < election {
        return longest;
    }
    // A start in the future: the server's clock was set back.
    stored.start.min(now).saturating_add(longest).saturating_sub(now)
}

async fn refresh_epoch(engine: &RedisEngine, slot: Option<u16>) -> Result<()> {
    let fill_command = |command: &mut Cmd, live: &LiveConnection| {
        engine.add_epoch_key(command, slot);
        engine.add_run_arguments(command, live);
    };
    engine.nodes.run_script(slot, &engine.scripts.refresh_epoch, 1, &fill_command).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::remaining_cool_down;
    use crate::redis_client::{Epoch, Rest};
    use crate::types::Token;

    #[test]
    fn a_cool_down_lasts_for_the_longest_lease_from_the_start_of_the_run() {
        let record = |start: u64, longest: u64| {
            let run = Rest(b"run-1:7".to_vec());
            Epoch { start, longest, refreshed: start, min_token: Token::default(), run }
        };
        let left = |record: &Epoch, run: &str, now| remaining_cool_down(Some(record), run, 30, now);
        assert_eq!(left(&record(100, 20), "run-1:7", 110), 20);
        assert_eq!(left(&record(100, 50), "run-1:7", 110), 40, "another client has longer leases");
        assert_eq!(left(&record(100, 20), "run-1:6", 130), 0, "a client that knows of an older election");
        assert_eq!(left(&record(100, 20), "run-1:8", 130), 30, "a newer election of the same server");
        assert_eq!(left(&record(100, 50), "run-2:7", 130), 50, "another run");
        assert_eq!(left(&record(200, 20), "run-1:7", 130), 30, "the clock was set back");
        assert_eq!(remaining_cool_down(None, "run-1", 30, 130), 30);
    }
}
