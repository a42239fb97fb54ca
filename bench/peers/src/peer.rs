//! The peers, each used as its documentation shows.

use std::future::Future;
use std::time::Duration;

use distributed_lock_core::{DistributedLock as _, LockHandle as _, LockProvider as _};
use distributed_lock_mysql::lock::MySqlDistributedLock;
use distributed_lock_mysql::{MySqlLockHandle, MySqlLockProvider};
use distributed_lock_postgres::PostgresLockProvider;
use distributed_lock_postgres::handle::PostgresLockHandle;
use distributed_lock_postgres::lock::PostgresDistributedLock;
use distributed_lock_redis::{RedisDistributedLock, RedisLockHandle, RedisLockProvider};
use rslock::{LockGuard, LockManager};

use crate::Oops;

/// A client of one peer.
pub(crate) trait Peer: Sized + Send + Sync + 'static {
    /// One lock, for one task.
    type Lock: Send + Sync + 'static;
    /// What proves that it is held.
    type Guard: Send;

    /// Connects; rslock takes several URLs with commas between them.
    fn open(url: &str) -> impl Future<Output = Result<Self, Oops>> + Send;
    /// Names a lock.
    fn lock(&self, name: &str) -> Self::Lock;
    /// Takes it, for 30 seconds at most.
    fn take(lock: &Self::Lock) -> impl Future<Output = Result<Self::Guard, Oops>> + Send;
    /// Gives it back.
    fn give(guard: Self::Guard) -> impl Future<Output = Result<(), Oops>> + Send;
}

const TTL: Duration = Duration::from_secs(30);

/// The crate rslock: all locks of a manager share a connection; a waiter asks again after up to 200 ms, at random.
pub(crate) struct Rslock(LockManager);

impl Peer for Rslock {
    type Lock = (LockManager, String);
    type Guard = LockGuard;

    async fn open(url: &str) -> Result<Self, Oops> {
        Ok(Self(LockManager::new(url.split(',').collect::<Vec<_>>())))
    }

    fn lock(&self, name: &str) -> Self::Lock {
        (self.0.clone(), name.to_owned())
    }

    async fn take((manager, name): &Self::Lock) -> Result<LockGuard, Oops> {
        Ok(manager.acquire(name.as_str(), TTL).await?)
    }

    async fn give(guard: LockGuard) -> Result<(), Oops> {
        guard.release().await;
        Ok(())
    }
}

/// The crate distributed-lock: all locks of a provider share a connection. `None` is meant to wait for as long as it takes.
pub(crate) struct DistributedLock(RedisLockProvider);

impl Peer for DistributedLock {
    type Lock = RedisDistributedLock;
    type Guard = RedisLockHandle;

    async fn open(url: &str) -> Result<Self, Oops> {
        Ok(Self(RedisLockProvider::new(url).await?))
    }

    fn lock(&self, name: &str) -> Self::Lock {
        self.0.create_lock(name)
    }

    async fn take(lock: &Self::Lock) -> Result<RedisLockHandle, Oops> {
        Ok(lock.acquire(None).await?)
    }

    async fn give(guard: RedisLockHandle) -> Result<(), Oops> {
        Ok(guard.release().await?)
    }
}

/// The crate distributed-lock with PostgreSQL's advisory locks: whoever holds or waits has one of the pool's ten connections.
pub(crate) struct DistributedLockPostgres(PostgresLockProvider);

impl Peer for DistributedLockPostgres {
    type Lock = PostgresDistributedLock;
    type Guard = PostgresLockHandle;

    async fn open(url: &str) -> Result<Self, Oops> {
        Ok(Self(PostgresLockProvider::new(url).await?))
    }

    fn lock(&self, name: &str) -> Self::Lock {
        self.0.create_lock(name)
    }

    async fn take(lock: &Self::Lock) -> Result<PostgresLockHandle, Oops> {
        Ok(lock.acquire(None).await?)
    }

    async fn give(guard: PostgresLockHandle) -> Result<(), Oops> {
        Ok(guard.release().await?)
    }
}

/// The crate distributed-lock with MySQL's named locks: whoever holds or waits has one of the pool's ten connections. Without a limit
/// it does not wait in MariaDB.
pub(crate) struct DistributedLockMySql(MySqlLockProvider);

impl Peer for DistributedLockMySql {
    type Lock = MySqlDistributedLock;
    type Guard = MySqlLockHandle;

    async fn open(url: &str) -> Result<Self, Oops> {
        Ok(Self(MySqlLockProvider::new(url).await?))
    }

    fn lock(&self, name: &str) -> Self::Lock {
        self.0.create_lock(name)
    }

    async fn take(lock: &Self::Lock) -> Result<MySqlLockHandle, Oops> {
        Ok(lock.acquire(Some(TTL)).await?)
    }

    async fn give(guard: MySqlLockHandle) -> Result<(), Oops> {
        Ok(guard.release().await?)
    }
}
