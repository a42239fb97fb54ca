//! Fills the memory of a Redis server.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use leasehold_testbed::redis::{Reply, RespClient};
use leasehold_testbed::try_eventually;

use crate::deployment::RunError;
use crate::deployment::network::RepeatingTask;
use crate::rng::Rng;

/// How many keys fill the memory: few, so that the server's samples for eviction include the locks.
const FILLER_KEYS: usize = 48;
/// The size of each key that fills the memory.
const FILLER_BYTES: usize = 64 * 1024;
/// How many keys the server samples to evict the one that expires first. With the default of five,
/// the sample often contains no lock.
const EVICTION_SAMPLES: &str = "256";
/// The server's default of `maxmemory-samples`, which is restored.
const DEFAULT_EVICTION_SAMPLES: &str = "5";
/// By how many bytes the used memory exceeds the limit that is set.
const MISSING_BYTES: u64 = 256 * 1024;
/// The TTL of the keys that fill the memory: longer than that of any lock's record, because the
/// server evicts first what expires first.
const FILLER_TTL_SECONDS: &str = "86400";

/// The longest wait for a server to respond.
const RESPONSE_TIMEOUT: Duration = leasehold_testbed::TEST_TIMEOUT;

/// Sends a command on a new connection. An error reply is returned as an error.
pub(super) async fn command(addr: SocketAddr, arguments: &[&str]) -> Result<Reply, RunError> {
    match RespClient::connect(addr).await?.command(arguments).await? {
        Reply::Error(text) => {
            Err(RunError::new(format!("Redis refuses {}: {text}", arguments.first().copied().unwrap_or_default())))
        }
        reply => Ok(reply),
    }
}

/// Sends a command, and retries until the server replies without an error. Only for idempotent
/// commands.
pub(super) async fn command_with_retry(addr: SocketAddr, arguments: &[&str]) -> Result<Reply, RunError> {
    Ok(try_eventually("reply of Redis", RESPONSE_TIMEOUT, || command(addr, arguments)).await?)
}

/// One section of the server's `INFO`, as names and values.
pub(super) async fn info_section(addr: SocketAddr, section: &str) -> Result<HashMap<String, String>, RunError> {
    let Reply::Bulk(text) = command_with_retry(addr, &["INFO", section]).await? else {
        return Err(RunError::new("unexpected reply of Redis to INFO"));
    };
    let pairs = text.lines().filter_map(|line| line.trim_end().split_once(':'));
    Ok(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
}

/// A server whose memory is full, until [`free`](FullMemory::free).
pub(super) struct FullMemory {
    addr: SocketAddr,
    /// How many keys the server had evicted before.
    evicted_before: u64,
    /// The task that fills the memory again after evictions.
    refill_task: RepeatingTask,
}

impl FullMemory {
    /// Fills the memory. With `evicts_keys` the server evicts the keys that expire first; otherwise
    /// it refuses commands that need memory.
    pub(super) async fn fill(
        addr: SocketAddr,
        evicts_keys: bool,
        ttl: Duration,
        rng: &mut Rng,
    ) -> Result<Self, RunError> {
        let evicted = info_number(&info_section(addr, "stats").await?, "evicted_keys");
        for at in 0..FILLER_KEYS {
            try_eventually("free memory in a Redis", RESPONSE_TIMEOUT, || write_filler(addr, at)).await?;
        }
        command_with_retry(addr, &["CONFIG", "SET", "maxmemory-samples", EVICTION_SAMPLES]).await?;
        let policy = if evicts_keys { "volatile-ttl" } else { "noeviction" };
        command_with_retry(addr, &["CONFIG", "SET", "maxmemory-policy", policy]).await?;
        let used = info_number(&info_section(addr, "memory").await?, "used_memory");
        let most = used.saturating_sub(MISSING_BYTES).to_string();
        command_with_retry(addr, &["CONFIG", "SET", "maxmemory", &most]).await?;
        let mut rng = Rng::new(rng.next_u64());
        // Evicted keys free memory: fill it again.
        let refill_task = RepeatingTask::new(async move {
            loop {
                tokio::time::sleep(rng.duration_in(ttl / 20, ttl / 5)).await;
                // The server usually refuses: it has no memory.
                let _ = write_filler(addr, rng.below(FILLER_KEYS as u64) as usize).await;
            }
        });
        Ok(Self { addr, evicted_before: evicted, refill_task })
    }

    /// Frees the memory; returns how many keys were evicted meanwhile.
    pub(super) async fn free(self) -> Result<u64, RunError> {
        let Self { addr, evicted_before: evicted, refill_task } = self;
        refill_task.stop().await;
        command_with_retry(addr, &["CONFIG", "SET", "maxmemory", "0"]).await?;
        command_with_retry(addr, &["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await?;
        command_with_retry(addr, &["CONFIG", "SET", "maxmemory-samples", DEFAULT_EVICTION_SAMPLES]).await?;
        let keys: Vec<String> = (0..FILLER_KEYS).map(filler_key).collect();
        let words: Vec<&str> = ["DEL"].into_iter().chain(keys.iter().map(String::as_str)).collect();
        command_with_retry(addr, &words).await?;
        Ok(info_number(&info_section(addr, "stats").await?, "evicted_keys").saturating_sub(evicted))
    }
}

/// Writes the filler key with this number, from 0.
async fn write_filler(addr: SocketAddr, at: usize) -> Result<(), RunError> {
    RespClient::connect(addr)
        .await?
        .command(&["SET", &filler_key(at), &"x".repeat(FILLER_BYTES), "EX", FILLER_TTL_SECONDS])
        .await?;
    Ok(())
}

fn filler_key(at: usize) -> String {
    format!("leasehold-verify-fill:{at}")
}

/// A number from a section of `INFO`; 0 if it is missing.
fn info_number(info: &HashMap<String, String>, key: &str) -> u64 {
    info.get(key).and_then(|value| value.parse().ok()).unwrap_or_default()
}
