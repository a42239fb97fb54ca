//! Where the keys are stored: in Redis, or in this process.

use std::sync::Arc;
use std::time::Duration;

use super::bells::Ear;
use super::memory::Memory;
use super::redis::Redis;
use crate::clock::Clock;
use crate::engine::EngineUrl;
use crate::error::{Error, ErrorKind, Result};
use crate::logic::cache::{Said, Step};

/// The store of a cache's keys. [`ReadThrough`](super::ReadThrough) and the textbook
/// [strategies](super::strategy) are built on it. On its own it performs the bare [steps](Step)
/// that [`Entry`](crate::logic::cache::Entry) specifies.
#[derive(Clone, Debug)]
pub struct Store {
    kind: Arc<Kind>,
    timeout: Duration,
    pub(super) clock: Clock,
}

#[derive(Debug)]
enum Kind {
    Memory(Memory),
    Redis(Redis),
}

impl Store {
    /// Opens `redis:`, `rediss:`, `redis+sentinel:`, `redis+cluster:`, or `memory:` for one process
    /// only. Each operation times out after `timeout`.
    ///
    /// # Errors
    /// If the URL is invalid, or the server does not respond.
    pub async fn open(url: &str, timeout: Duration) -> Result<Self> {
        Self::connect(url, timeout, false).await
    }

    pub(crate) async fn connect(url: &str, timeout: Duration, lazy: bool) -> Result<Self> {
        let (url, clock) = (EngineUrl::parse(url)?.with_passwords()?, Clock::system());
        let kind = match url.scheme.as_str() {
            "memory" => Kind::Memory(Memory::new(&clock)),
            "redis" | "rediss" | "redis+sentinel" | "redis+cluster" => {
                let opened = Redis::open(&url, lazy).await;
                Kind::Redis(opened.map_err(|error| url.locate(error))?)
            }
            other => {
                let message = format!(
                    "a cache is in redis:, rediss:, redis+sentinel:, redis+cluster: or memory:, not in {other}:"
                );
                return Err(Error::new(ErrorKind::UnknownScheme, message));
            }
        };
        Ok(Self { kind: Arc::new(kind), timeout, clock })
    }

    /// Performs one operation.
    ///
    /// # Errors
    /// If the server did not respond in time. It may have performed the operation.
    pub async fn step(&self, key: &str, step: Step) -> Result<Said> {
        match &*self.kind {
            Kind::Memory(memory) => Ok(memory.step(key, step)),
            Kind::Redis(redis) => self.in_time(redis, redis.step(key, &step)).await,
        }
    }

    async fn in_time<T>(&self, redis: &Redis, work: impl Future<Output = Result<T>>) -> Result<T> {
        let done = self.clock.timeout(self.timeout, work).await.unwrap_or_else(|_| {
            let message = format!("no answer within {:?}", self.timeout);
            Err(Error::new(ErrorKind::Unavailable, message).retryable().effect_unknown())
        });
        done.map_err(|error| error.at_engine("redis").at_url(&redis.shown))
    }

    /// Subscribes to the ends of loads of this key, from now on.
    pub(crate) fn listen(&self, key: &str) -> Ear {
        match &*self.kind {
            Kind::Memory(memory) => memory.bells.listen(key.to_owned()),
            Kind::Redis(redis) => redis.bells.listen(redis.key(key)),
        }
    }

    pub(crate) async fn get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        match &*self.kind {
            Kind::Memory(memory) => Ok(memory.get(key)),
            Kind::Redis(redis) => self.in_time(redis, redis.get(key)).await,
        }
    }

    pub(crate) async fn put(&self, key: &str, data: Vec<u8>, ttl: Duration) -> Result<()> {
        match &*self.kind {
            Kind::Memory(memory) => {
                memory.put(key, data, ttl);
                Ok(())
            }
            Kind::Redis(redis) => self.in_time(redis, redis.put(key, &data, ttl)).await,
        }
    }

    pub(crate) async fn delete(&self, key: &str) -> Result<()> {
        match &*self.kind {
            Kind::Memory(memory) => {
                memory.delete(key);
                Ok(())
            }
            Kind::Redis(redis) => self.in_time(redis, redis.delete(key)).await,
        }
    }

    /// Evicts a key of `memory:`, as a server does that runs out of memory. Does nothing elsewhere.
    #[cfg(test)]
    pub(crate) fn evict(&self, key: &str) {
        if let Kind::Memory(memory) = &*self.kind {
            memory.evict(key);
        }
    }
}
