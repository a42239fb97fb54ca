//! The textbook strategies to keep a cache beside a database, by name, and leasehold's behind the
//! same trait, for comparison.
//!
//! | strategy | on a read | on a write | failure cases |
//! |---|---|---|---|
//! | [`TtlOnly`] | load on a miss | commit | always stale until the TTL ends |
//! | [`DeleteFirst`] | load on a miss | delete, commit | a read in between stores the old value, until the TTL ends |
//! | [`DeleteAfter`] | load on a miss | commit, delete | a read before the commit that stores after the delete; a crash in between |
//! | [`DelayedDoubleDelete`] | load on a miss | delete, commit, wait, delete | the same until the second delete, and afterwards a reader slower than the wait; a crash before the second delete; twice the loads |
//! | [`LockProtected`] | load under a lock on a miss | commit and delete under the lock | a lost lock (a pause, a partition) stops no client: a late value is stored; a crash between commit and delete |
//! | [`InvalidateAfterCommit`] (leasehold) | [`get_or_load`](ReadThrough::get_or_load) | commit, [`invalidate`](ReadThrough::invalidate) | a crash between commit and invalidation, until the TTL ends |
//! | [`WriteThrough`] (leasehold) | [`get_or_load`](ReadThrough::get_or_load) | [`write_through`](ReadThrough::write_through) under a lock | a writer that is suspended for longer than its mark, then commits and dies |
//!
//! With several writers of one key, [`DeleteFirst`] and [`DeleteAfter`] also depend on timing. With
//! every strategy, the database itself must order the writes (a [fence](leasehold::fence), a
//! [version](leasehold_internals::logic::optimistic_update)).

use std::pin::Pin;
use std::time::Duration;

use super::error::CacheError;
use super::read_through::ReadThrough;
use super::row::{Row, RowState};
use super::store::CacheStore;
use crate::logic::Data;
use leasehold::Locks;
use leasehold::Token;

/// The result of a database or a strategy.
///
/// ```
/// use leasehold_cache::strategy::StrategyFuture;
///
/// fn answer<'a>() -> StrategyFuture<'a, u32> {
///     Box::pin(async { Ok(42) })
/// }
/// ```
pub type StrategyFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, CacheError>> + Send + 'a>>;

/// The database, as a strategy sees it.
///
/// ```
/// use leasehold::Token;
/// use leasehold_cache::{Row, RowState, strategy::{Database, StrategyFuture}};
///
/// struct Table(std::sync::Mutex<Vec<u8>>);
///
/// impl Database for Table {
///     fn load<'a>(&'a self, _: &'a str) -> StrategyFuture<'a, Option<Row>> {
///         Box::pin(async { Ok(Some(self.0.lock().unwrap().clone().into())) })
///     }
///     fn store<'a>(&'a self, _: &'a str, value: Vec<u8>, _: Option<Token>) -> StrategyFuture<'a, RowState> {
///         Box::pin(async { *self.0.lock().unwrap() = value; Ok(RowState::Unknown) })
///     }
/// }
/// ```
pub trait Database: Send + Sync {
    /// Reads the row; `None` if it does not exist.
    fn load<'a>(&'a self, key: &'a str) -> StrategyFuture<'a, Option<Row>>;
    /// Writes the row and commits. The token is that of the writer's lock, if it has one: reject
    /// tokens lower than one seen before.
    fn store<'a>(&'a self, key: &'a str, value: Vec<u8>, token: Option<Token>) -> StrategyFuture<'a, RowState>;
}

/// A strategy to keep a cache beside a database.
///
/// ```
/// use leasehold_cache::{CacheError, strategy::{Database, Strategy}};
///
/// async fn rename(strategy: &dyn Strategy, database: &dyn Database) -> Result<(), CacheError> {
///     strategy.write(database, "user:42", b"Grace".to_vec()).await?;
///     println!("{}: {:?}", strategy.name(), strategy.read(database, "user:42").await?);
///     Ok(())
/// }
/// ```
pub trait Strategy: Send + Sync {
    /// The name of the strategy in reports.
    fn name(&self) -> &'static str;
    /// Reads a key as the strategy does: from the cache or, on a miss, from the database. `None` if
    /// the row does not exist.
    fn read<'a>(&'a self, source: &'a dyn Database, key: &'a str) -> StrategyFuture<'a, Data>;
    /// Writes to the database, and updates the cache as the strategy requires.
    fn write<'a>(&'a self, source: &'a dyn Database, key: &'a str, value: Vec<u8>) -> StrategyFuture<'a, ()>;
}

/// Common to all textbook strategies: the store, and the TTL of values.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold_cache::{CacheStore, strategy::{CacheAside, TtlOnly}};
/// use std::time::Duration;
///
/// let store = CacheStore::open("memory:", Duration::from_secs(1)).await?;
/// let cache = CacheAside::new(&store, Duration::from_secs(60));
/// let strategy = TtlOnly(cache);                 // or DeleteFirst, DeleteAfter, …
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct CacheAside {
    store: CacheStore,
    ttl: Duration,
}

impl CacheAside {
    /// Values in this store, with this TTL.
    pub fn new(store: &CacheStore, ttl: Duration) -> Self {
        Self { store: store.clone(), ttl }
    }

    async fn get(&self, key: &str) -> Result<Data, CacheError> {
        self.store.get(key).await.map_err(CacheError::unavailable)
    }

    async fn delete(&self, key: &str) -> Result<(), CacheError> {
        self.store.delete(key).await.map_err(CacheError::unavailable)
    }

    /// Reads the database, and stores the row in the cache.
    async fn load(&self, source: &dyn Database, key: &str) -> Result<Data, CacheError> {
        let Some(row) = source.load(key).await? else { return Ok(None) };
        self.store.put(key, row.value.clone(), self.ttl).await.map_err(CacheError::unavailable)?;
        Ok(Some(row.value))
    }

    /// Reads the cache; on a miss, reads the database and stores the row in the cache.
    async fn read_aside(&self, source: &dyn Database, key: &str) -> Result<Data, CacheError> {
        match self.get(key).await? {
            Some(data) => Ok(Some(data)),
            None => self.load(source, key).await,
        }
    }
}

/// Writes do not touch the cache: its values only expire.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold_cache::{CacheStore, strategy::{CacheAside, Strategy, TtlOnly}};
/// use std::time::Duration;
///
/// let store = CacheStore::open("memory:", Duration::from_secs(1)).await?;
/// let strategy = TtlOnly(CacheAside::new(&store, Duration::from_secs(60)));
/// assert_eq!(strategy.name(), "ttl-only");
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct TtlOnly(pub CacheAside);

impl Strategy for TtlOnly {
    fn name(&self) -> &'static str {
        "ttl-only"
    }

    fn read<'a>(&'a self, source: &'a dyn Database, key: &'a str) -> StrategyFuture<'a, Data> {
        Box::pin(self.0.read_aside(source, key))
    }

    fn write<'a>(&'a self, source: &'a dyn Database, key: &'a str, value: Vec<u8>) -> StrategyFuture<'a, ()> {
        Box::pin(async move { source.store(key, value, None).await.map(drop) })
    }
}

/// Cache-aside; a write deletes the cached value and then commits.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold_cache::{CacheStore, strategy::{CacheAside, DeleteFirst, Strategy}};
/// use std::time::Duration;
///
/// let store = CacheStore::open("memory:", Duration::from_secs(1)).await?;
/// let strategy = DeleteFirst(CacheAside::new(&store, Duration::from_secs(60)));
/// assert_eq!(strategy.name(), "delete-first");
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct DeleteFirst(pub CacheAside);

impl Strategy for DeleteFirst {
    fn name(&self) -> &'static str {
        "delete-first"
    }

    fn read<'a>(&'a self, source: &'a dyn Database, key: &'a str) -> StrategyFuture<'a, Data> {
        Box::pin(self.0.read_aside(source, key))
    }

    fn write<'a>(&'a self, source: &'a dyn Database, key: &'a str, value: Vec<u8>) -> StrategyFuture<'a, ()> {
        Box::pin(async move {
            self.0.delete(key).await?;
            source.store(key, value, None).await.map(drop)
        })
    }
}

/// Cache-aside; a write commits and then deletes the cached value.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold_cache::{CacheStore, strategy::{CacheAside, DeleteAfter, Strategy}};
/// use std::time::Duration;
///
/// let store = CacheStore::open("memory:", Duration::from_secs(1)).await?;
/// let strategy = DeleteAfter(CacheAside::new(&store, Duration::from_secs(60)));
/// assert_eq!(strategy.name(), "delete-after");
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct DeleteAfter(pub CacheAside);

impl Strategy for DeleteAfter {
    fn name(&self) -> &'static str {
        "delete-after"
    }

    fn read<'a>(&'a self, source: &'a dyn Database, key: &'a str) -> StrategyFuture<'a, Data> {
        Box::pin(self.0.read_aside(source, key))
    }

    fn write<'a>(&'a self, source: &'a dyn Database, key: &'a str, value: Vec<u8>) -> StrategyFuture<'a, ()> {
        Box::pin(async move {
            source.store(key, value, None).await?;
            self.0.delete(key).await
        })
    }
}

/// Delete, commit, and delete again in the background after a delay.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold_cache::{CacheStore, strategy::{CacheAside, DelayedDoubleDelete, Strategy}};
/// use std::time::Duration;
///
/// let store = CacheStore::open("memory:", Duration::from_secs(1)).await?;
/// let cache = CacheAside::new(&store, Duration::from_secs(60));
/// let strategy = DelayedDoubleDelete { cache, delay: Duration::from_millis(500) };
/// assert_eq!(strategy.name(), "delayed-double-delete");
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct DelayedDoubleDelete {
    /// The store and the TTL of the cached values.
    pub cache: CacheAside,
    /// The time from the commit to the second delete.
    pub delay: Duration,
}

impl Strategy for DelayedDoubleDelete {
    fn name(&self) -> &'static str {
        "delayed-double-delete"
    }

    fn read<'a>(&'a self, source: &'a dyn Database, key: &'a str) -> StrategyFuture<'a, Data> {
        Box::pin(self.cache.read_aside(source, key))
    }

    fn write<'a>(&'a self, source: &'a dyn Database, key: &'a str, value: Vec<u8>) -> StrategyFuture<'a, ()> {
        Box::pin(async move {
            self.cache.delete(key).await?;
            source.store(key, value, None).await?;
            let (aside, delay, key) = (self.cache.clone(), self.delay, key.to_owned());
            // As in the textbook: the result is ignored.
            drop(tokio::spawn(async move {
                aside.store.clock.sleep(delay).await;
                aside.delete(&key).await
            }));
            Ok(())
        })
    }
}

/// Loads and writes exclude each other by a lock with the key's name. The database does not check
/// its token.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold::Locks;
/// use leasehold_cache::{CacheStore, strategy::{CacheAside, LockProtected, Strategy}};
/// use std::time::Duration;
///
/// let store = CacheStore::open("memory:", Duration::from_secs(1)).await?;
/// let cache = CacheAside::new(&store, Duration::from_secs(60));
/// let strategy = LockProtected { cache, locks: Locks::open("memory:").await? };
/// assert_eq!(strategy.name(), "lock-protected");
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct LockProtected {
    /// The store and the TTL of the cached values.
    pub cache: CacheAside,
    /// Where the locks are held.
    pub locks: Locks,
}

fn lock_error(error: leasehold::Error) -> CacheError {
    CacheError::Lost(error.into())
}

impl Strategy for LockProtected {
    fn name(&self) -> &'static str {
        "lock-protected"
    }

    fn read<'a>(&'a self, source: &'a dyn Database, key: &'a str) -> StrategyFuture<'a, Data> {
        Box::pin(async move {
            if let Some(data) = self.cache.get(key).await? {
                return Ok(Some(data));
            }
            let guard = self.locks.mutex(key).lock().await.map_err(lock_error)?;
            let data = self.cache.read_aside(source, key).await;
            let _ = guard.release().await;
            data
        })
    }

    fn write<'a>(&'a self, source: &'a dyn Database, key: &'a str, value: Vec<u8>) -> StrategyFuture<'a, ()> {
        Box::pin(async move {
            let guard = self.locks.mutex(key).lock().await.map_err(lock_error)?;
            source.store(key, value, None).await?;
            let deleted = self.cache.delete(key).await;
            let _ = guard.release().await;
            deleted
        })
    }
}

fn read_through<'a>(cache: &'a ReadThrough, source: &'a dyn Database, key: &'a str) -> StrategyFuture<'a, Data> {
    Box::pin(cache.get_or_load(key, move || source.load(key)))
}

/// Leasehold's cache; a write commits and then invalidates the key.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold_cache::{ReadThrough, strategy::{InvalidateAfterCommit, Strategy}};
///
/// let strategy = InvalidateAfterCommit(ReadThrough::open("memory:").await?);
/// assert_eq!(strategy.name(), "leasehold, invalidate");
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct InvalidateAfterCommit(pub ReadThrough);

impl Strategy for InvalidateAfterCommit {
    fn name(&self) -> &'static str {
        "leasehold, invalidate"
    }

    fn read<'a>(&'a self, source: &'a dyn Database, key: &'a str) -> StrategyFuture<'a, Data> {
        read_through(&self.0, source, key)
    }

    fn write<'a>(&'a self, source: &'a dyn Database, key: &'a str, value: Vec<u8>) -> StrategyFuture<'a, ()> {
        Box::pin(async move {
            source.store(key, value, None).await?;
            self.0.invalidate(key).await
        })
    }
}

/// Leasehold's cache; a write is announced, committed and stored in the cache under a lock with the
/// key's name, whose token the database can check.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold::Locks;
/// use leasehold_cache::{ReadThrough, strategy::{Strategy, WriteThrough}};
///
/// let (cache, locks) = (ReadThrough::open("memory:").await?, Locks::open("memory:").await?);
/// let strategy = WriteThrough { cache, locks };
/// assert_eq!(strategy.name(), "leasehold, write through");
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct WriteThrough {
    /// The cache that is read and written through.
    pub cache: ReadThrough,
    /// Where the locks are held.
    pub locks: Locks,
}

impl Strategy for WriteThrough {
    fn name(&self) -> &'static str {
        "leasehold, write through"
    }

    fn read<'a>(&'a self, source: &'a dyn Database, key: &'a str) -> StrategyFuture<'a, Data> {
        read_through(&self.cache, source, key)
    }

    fn write<'a>(&'a self, source: &'a dyn Database, key: &'a str, value: Vec<u8>) -> StrategyFuture<'a, ()> {
        Box::pin(async move {
            let guard = self.locks.mutex(key).lock().await.map_err(lock_error)?;
            let commit = |token| source.store(key, value, Some(token));
            let written = self.cache.write_through(key, &guard, commit).await;
            let _ = guard.release().await;
            written
        })
    }
}
