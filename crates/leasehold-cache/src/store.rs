//! Where the keys are stored: in Redis, or in this process.

use std::sync::Arc;
use std::time::Duration;

use super::memory::MemoryStore;
use super::redis::RedisStore;
use super::wakeups::Subscriber;
use crate::logic::{Operation, OperationReply};
use leasehold::clock::Clock;
use leasehold::engine::EngineUrl;
use leasehold::{Error, ErrorKind, Result};

/// The store of a cache's keys. [`ReadThrough`](super::ReadThrough) and the textbook
/// [strategies](super::strategy) are built on it. On its own it performs the bare
/// [operations](Operation) that [`CacheEntry`](crate::logic::CacheEntry) specifies.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold_cache::{CacheStore, strategy::CacheAside};
/// use std::time::Duration;
///
/// let store = CacheStore::open("memory:", Duration::from_secs(1)).await?;
/// // A textbook cache in this store, for comparison.
/// let cache = CacheAside::new(&store, Duration::from_secs(60));
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct CacheStore {
    backend: Arc<Backend>,
    timeout: Duration,
    pub(super) clock: Clock,
}

#[derive(Debug)]
enum Backend {
    Memory(MemoryStore),
    Redis(RedisStore),
}

impl CacheStore {
    /// Opens `redis:`, `rediss:`, `redis+sentinel:`, `redis+cluster:`, or `memory:` for one process
    /// only. Each operation times out after `timeout`.
    ///
    /// # Errors
    /// If the URL is invalid, or the server does not respond.
    pub async fn open(url: &str, timeout: Duration) -> Result<Self> {
        Self::connect(url, timeout, false).await
    }

    /// Opens a store; with `lazy`, a single Redis need not respond yet.
    pub(crate) async fn connect(url: &str, timeout: Duration, lazy: bool) -> Result<Self> {
        let (url, clock) = (EngineUrl::parse(url)?.read_password_files()?, Clock::system());
        let backend = match url.scheme.as_str() {
            "memory" => Backend::Memory(MemoryStore::new(&clock)),
            "redis" | "rediss" | "redis+sentinel" | "redis+cluster" => {
                let opened = RedisStore::open(&url, lazy).await;
                Backend::Redis(opened.map_err(|error| url.add_location(error))?)
            }
            other => {
                let message = format!(
                    "a cache is in redis:, rediss:, redis+sentinel:, redis+cluster: or memory:, not in {other}:"
                );
                return Err(Error::new(ErrorKind::UnknownScheme, message));
            }
        };
        Ok(Self { backend: Arc::new(backend), timeout, clock })
    }

    /// Performs one operation on a key.
    ///
    /// # Errors
    /// If the server did not respond in time. It may have performed the operation.
    pub async fn apply(&self, key: &str, operation: Operation) -> Result<OperationReply> {
        match &*self.backend {
            Backend::Memory(memory) => Ok(memory.apply(key, operation)),
            Backend::Redis(redis) => self.with_timeout(redis, redis.apply(key, &operation)).await,
        }
    }

    async fn with_timeout<T>(&self, redis: &RedisStore, work: impl Future<Output = Result<T>>) -> Result<T> {
        let done = self.clock.timeout(self.timeout, work).await.unwrap_or_else(|_| {
            let message = format!("no answer within {:?}", self.timeout);
            Err(Error::new(ErrorKind::Unavailable, message).retryable().effect_unknown())
        });
        done.map_err(|error| error.at_engine("redis").at_url(&redis.display_url))
    }

    /// Subscribes to notifications of when a load of this key ends, from now on.
    pub(crate) fn subscribe(&self, key: &str) -> Subscriber {
        match &*self.backend {
            Backend::Memory(memory) => memory.wakeups.subscribe(key.to_owned()),
            Backend::Redis(redis) => redis.wakeups.subscribe(redis.key(key)),
        }
    }

    /// The value of a textbook strategy; `None` if there is none or it has expired.
    pub(crate) async fn get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        match &*self.backend {
            Backend::Memory(memory) => Ok(memory.get(key)),
            Backend::Redis(redis) => self.with_timeout(redis, redis.get(key)).await,
        }
    }

    /// Stores a value of a textbook strategy.
    pub(crate) async fn put(&self, key: &str, data: Vec<u8>, ttl: Duration) -> Result<()> {
        match &*self.backend {
            Backend::Memory(memory) => {
                memory.put(key, data, ttl);
                Ok(())
            }
            Backend::Redis(redis) => self.with_timeout(redis, redis.put(key, &data, ttl)).await,
        }
    }

    /// Removes a value of a textbook strategy.
    pub(crate) async fn delete(&self, key: &str) -> Result<()> {
        match &*self.backend {
            Backend::Memory(memory) => {
                memory.delete(key);
                Ok(())
            }
            Backend::Redis(redis) => self.with_timeout(redis, redis.delete(key)).await,
        }
    }

    /// Evicts a key of `memory:`, as a server does that runs out of memory. Has no effect on other
    /// stores.
    #[cfg(test)]
    pub(crate) fn evict(&self, key: &str) {
        if let Backend::Memory(memory) = &*self.backend {
            memory.evict(key);
        }
    }
}
