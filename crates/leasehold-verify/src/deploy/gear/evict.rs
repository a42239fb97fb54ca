//! A Redis that is out of memory.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use leasehold_testbed::redis::{Reply, Resp};
use leasehold_testbed::try_eventually;

use crate::deploy::Trouble;
use crate::deploy::lines::Pulse;
use crate::dice::Dice;

/// The keys that fill the memory: few and large, so that the locks are among the keys that the
/// server samples for eviction.
const KEYS: usize = 48;
const SIZE: usize = 64 * 1024;
/// How many keys the server samples for the one that expires first: with the default of five, it
/// would often miss all locks.
const LOOKED_AT: &str = "256";
const USUALLY_LOOKED_AT: &str = "5";
/// How much memory is missing, in bytes.
const MISSING: u64 = 256 * 1024;
/// They last longer than any lock's record: the server evicts first what expires first.
const LASTS: &str = "86400";

/// Ends the wait for a server that does not respond.
const BOUND: Duration = leasehold_testbed::BOUND;

/// Sends a command; an error reply is an error.
pub(super) async fn ask(addr: SocketAddr, words: &[&str]) -> Result<Reply, Trouble> {
    match Resp::connect(addr).await?.command(words).await? {
        Reply::Error(text) => {
            Err(Trouble::new(format!("Redis refuses {}: {text}", words.first().copied().unwrap_or_default())))
        }
        reply => Ok(reply),
    }
}

/// Retries until the server replies: a busy machine must not end a run. Only for idempotent
/// commands.
pub(super) async fn insist(addr: SocketAddr, words: &[&str]) -> Result<Reply, Trouble> {
    Ok(try_eventually("answer of Redis", BOUND, || ask(addr, words)).await?)
}

/// One section of the server's `INFO`.
pub(super) async fn facts(addr: SocketAddr, section: &str) -> Result<HashMap<String, String>, Trouble> {
    let Reply::Bulk(text) = insist(addr, &["INFO", section]).await? else {
        return Err(Trouble::new("Redis does not say what it is"));
    };
    let pairs = text.lines().filter_map(|line| line.trim_end().split_once(':'));
    Ok(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
}

/// A server without free memory, until [`end`](Full::end).
pub(super) struct Full {
    addr: SocketAddr,
    evicted: u64,
    pulse: Pulse,
}

impl Full {
    /// Fills the memory. With `evicts` the server evicts what expires first; otherwise it refuses
    /// commands that need memory.
    pub(super) async fn begin(addr: SocketAddr, evicts: bool, ttl: Duration, dice: &mut Dice) -> Result<Self, Trouble> {
        let evicted = number(&facts(addr, "stats").await?, "evicted_keys");
        for at in 0..KEYS {
            try_eventually("room in a Redis", BOUND, || fill(addr, at)).await?;
        }
        insist(addr, &["CONFIG", "SET", "maxmemory-samples", LOOKED_AT]).await?;
        let policy = if evicts { "volatile-ttl" } else { "noeviction" };
        insist(addr, &["CONFIG", "SET", "maxmemory-policy", policy]).await?;
        let used = number(&facts(addr, "memory").await?, "used_memory");
        let most = used.saturating_sub(MISSING).to_string();
        insist(addr, &["CONFIG", "SET", "maxmemory", &most]).await?;
        let mut dice = Dice::new(dice.roll());
        // Evicted keys free memory: fill it again.
        let pulse = Pulse::new(async move {
            loop {
                tokio::time::sleep(dice.time(ttl / 20, ttl / 5)).await;
                // The server usually refuses: it has no memory.
                let _ = fill(addr, dice.below(KEYS as u64) as usize).await;
            }
        });
        Ok(Self { addr, evicted, pulse })
    }

    /// Frees the memory; returns how many keys were evicted.
    pub(super) async fn end(self) -> Result<u64, Trouble> {
        let Self { addr, evicted, pulse } = self;
        pulse.stop().await;
        insist(addr, &["CONFIG", "SET", "maxmemory", "0"]).await?;
        insist(addr, &["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await?;
        insist(addr, &["CONFIG", "SET", "maxmemory-samples", USUALLY_LOOKED_AT]).await?;
        let keys: Vec<String> = (0..KEYS).map(key).collect();
        let words: Vec<&str> = ["DEL"].into_iter().chain(keys.iter().map(String::as_str)).collect();
        insist(addr, &words).await?;
        Ok(number(&facts(addr, "stats").await?, "evicted_keys").saturating_sub(evicted))
    }
}

async fn fill(addr: SocketAddr, at: usize) -> Result<(), Trouble> {
    Resp::connect(addr).await?.command(&["SET", &key(at), &"x".repeat(SIZE), "EX", LASTS]).await?;
    Ok(())
}

fn key(at: usize) -> String {
    format!("leasehold-verify-fill:{at}")
}

fn number(facts: &HashMap<String, String>, key: &str) -> u64 {
    facts.get(key).and_then(|value| value.parse().ok()).unwrap_or_default()
}
