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

use crate::BoxError;

/// A client of another lock library.
pub(crate) trait Peer: Sized + Send + Sync + 'static {
    /// One lock, for one task.
    type Lock: Send + Sync + 'static;
    /// A held lock.
    type Guard: Send;

    /// Connects to the server at `url`; rslock also accepts several URLs with commas in between.
    fn open(url: &str) -> impl Future<Output = Result<Self, BoxError>> + Send;
    /// The lock with this name, which is not acquired yet.
    fn lock(&self, name: &str) -> Self::Lock;
    /// Acquires the lock, waiting for it; where there are leases, for 30 seconds.
    fn acquire(lock: &Self::Lock) -> impl Future<Output = Result<Self::Guard, BoxError>> + Send;
    /// Releases the lock.
    fn release(guard: Self::Guard) -> impl Future<Output = Result<(), BoxError>> + Send;
}

const TTL: Duration = Duration::from_secs(30);

/// The crate rslock. All locks of a manager share a connection; a waiter retries after a random
/// pause of up to 200 ms.
pub(crate) struct Rslock(LockManager);

impl Peer for Rslock {
    type Lock = (LockManager, String);
    type Guard = LockGuard;

    async fn open(url: &str) -> Result<Self, BoxError> {
        Ok(Self(LockManager::new(url.split(',').collect::<Vec<_>>())))
    }

    fn lock(&self, name: &str) -> Self::Lock {
        (self.0.clone(), name.to_owned())
    }

    async fn acquire((manager, name): &Self::Lock) -> Result<LockGuard, BoxError> {
        Ok(manager.acquire(name.as_str(), TTL).await?)
    }

    async fn release(guard: LockGuard) -> Result<(), BoxError> {
        guard.release().await;
        Ok(())
    }
}

/// The crate distributed-lock on Redis. All locks of a provider share a connection. The timeout
/// `None` means an unlimited wait.
pub(crate) struct DistributedLock(RedisLockProvider);

impl Peer for DistributedLock {
    type Lock = RedisDistributedLock;
    type Guard = RedisLockHandle;

    async fn open(url: &str) -> Result<Self, BoxError> {
        Ok(Self(RedisLockProvider::new(url).await?))
    }

    fn lock(&self, name: &str) -> Self::Lock {
        self.0.create_lock(name)
    }

    async fn acquire(lock: &Self::Lock) -> Result<RedisLockHandle, BoxError> {
        Ok(lock.acquire(None).await?)
    }

    async fn release(guard: RedisLockHandle) -> Result<(), BoxError> {
        Ok(guard.release().await?)
    }
}

/// The crate distributed-lock on PostgreSQL's advisory locks. Each holder and each waiter occupies
/// one of the pool's ten connections.
pub(crate) struct DistributedLockPostgres(PostgresLockProvider);

impl Peer for DistributedLockPostgres {
    type Lock = PostgresDistributedLock;
    type Guard = PostgresLockHandle;

    async fn open(url: &str) -> Result<Self, BoxError> {
        Ok(Self(PostgresLockProvider::new(url).await?))
    }

    fn lock(&self, name: &str) -> Self::Lock {
        self.0.create_lock(name)
    }

    async fn acquire(lock: &Self::Lock) -> Result<PostgresLockHandle, BoxError> {
        Ok(lock.acquire(None).await?)
    }

    async fn release(guard: PostgresLockHandle) -> Result<(), BoxError> {
        Ok(guard.release().await?)
    }
}

/// The crate distributed-lock on MySQL's named locks. Each holder and each waiter occupies one of
/// the pool's ten connections. In MariaDB it does not wait without a timeout.
pub(crate) struct DistributedLockMySql(MySqlLockProvider);

impl Peer for DistributedLockMySql {
    type Lock = MySqlDistributedLock;
    type Guard = MySqlLockHandle;

    async fn open(url: &str) -> Result<Self, BoxError> {
        Ok(Self(MySqlLockProvider::new(url).await?))
    }

    fn lock(&self, name: &str) -> Self::Lock {
        self.0.create_lock(name)
    }

    async fn acquire(lock: &Self::Lock) -> Result<MySqlLockHandle, BoxError> {
        Ok(lock.acquire(Some(TTL)).await?)
    }

    async fn release(guard: MySqlLockHandle) -> Result<(), BoxError> {
        Ok(guard.release().await?)
    }
}
