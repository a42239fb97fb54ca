//! Reading through the cache, and invalidating a key.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use super::error::CacheError;
use super::options::{Builder, Freshness, Options, OutagePolicy, micros};
use super::row::Row;
use super::single_flight::SingleFlight;
use super::stats::{CacheStats, Counter, Counters};
use super::store::CacheStore;
use super::wakeups::Subscriber;
use crate::logic::{
    Data, LoadedValue, Operation, OperationReply, ReadReply, ReadRequest, StoreRefusal, early_factor, jittered,
};
use leasehold::clock::Clock;
use leasehold::{Effect, Error, ErrorKind, Result as CrateResult};
use leasehold_internals::logic::backoff;
use leasehold_internals::random;

/// How long a reader waits for a notification before it reads again, in case the notification was
/// lost.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum length of a loader's error that other readers get, in bytes.
const MAX_ERROR_TEXT: usize = 200;
/// The longest key, in bytes.
pub const MAX_KEY: usize = 512;
/// How many times an invalidation, or the end of a write, is sent at most while there is no reply.
const MAX_SEND_ATTEMPTS: u32 = 3;

/// A cache in front of your own loader. Cheap to clone; all clones share one cache.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold_cache::ReadThrough;
///
/// let cache = ReadThrough::open("memory:").await?;
/// let name = cache.get_or_load("user:42", || async { Ok::<_, std::io::Error>(Some("Ada")) }).await?;
/// assert_eq!(name.as_deref(), Some(&b"Ada"[..]));
/// cache.invalidate("user:42").await?;            // after the commit of a change
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct ReadThrough {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: CacheStore,
    pub(crate) options: Options,
    pub(crate) clock: Clock,
    pub(crate) single_flight: SingleFlight,
    pub(crate) counters: Counters,
}

/// How a load under a lease ended.
enum LoadOutcome {
    /// The value is not older than the beginning of this read.
    Value(Data),
    /// The key was invalidated during the load: the read loads again, or returns this value if no
    /// further load is allowed.
    Invalidated(Data),
    /// The loader returned an older version of the row than a known one.
    Behind(Data),
    /// The loader found no row where one was known: it is deleted, or the loader does not see it
    /// yet.
    Absent,
}

/// A requested or granted lease. Dropping this releases the lease, if `may_be_held`.
struct LeaseGuard<'a> {
    shared: &'a Arc<Shared>,
    key: &'a str,
    lease: u128,
    /// Whether this reader may have the lease: from before the request is sent until the store has
    /// refused it or has the value.
    may_be_held: bool,
}

impl Drop for LeaseGuard<'_> {
    fn drop(&mut self) {
        if self.may_be_held
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let (shared, key, lease) = (Arc::clone(self.shared), self.key.to_owned(), self.lease);
            // The result is ignored: a lease that could not be released expires. Earlier requests
            // on the same connection are done before this one.
            drop(
                runtime.spawn(
                    async move { shared.send_with_retries(&key, Operation::GiveUp(lease, String::new())).await },
                ),
            );
        }
    }
}

pub(crate) fn unexpected_reply_error() -> CacheError {
    CacheError::unavailable(Error::new(ErrorKind::Corrupt, "unexpected reply of the store"))
}

pub(crate) fn random_u32() -> u32 {
    random::unique_id() as u32
}

impl ReadThrough {
    /// Options for a cache to open.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Opens a cache with [`Freshness::Strong`] and the defaults: see [`Builder::open`].
    ///
    /// # Errors
    /// As [`Builder::open`].
    pub async fn open(url: &str) -> CrateResult<Self> {
        Self::builder().open(url).await
    }

    /// How many reads hit, waited or loaded in this process since the cache was opened.
    pub fn stats(&self) -> CacheStats {
        self.shared.counters.snapshot()
    }

    /// The value of `key`, from the cache or from `load`, which only one of all readers calls.
    /// `load` returns a row, or none.
    ///
    /// # Guarantee
    /// With [`Freshness::Strong`]: if an invalidation or a write of this key returned before this
    /// call began, the result is not older than that. If an invalidation overtakes its own load, it
    /// loads again, up to [`Builder::max_reloads`] times. Then it returns the result of the last
    /// load, which began after this call did.
    ///
    /// With [`Freshness::ServeStale`] the result may be older, by at most [`Builder::stale_for`].
    ///
    /// # Errors
    /// The error of the loader, here or elsewhere; with [`OutagePolicy::FailClosed`], if the store
    /// does not respond.
    ///
    /// # Cancellation safety
    /// May be dropped at any time. If this call was loading, another reader takes over at once.
    pub async fn get_or_load<F, Fut, R, E>(&self, key: &str, load: F) -> Result<Data, CacheError>
    where
        F: Fn() -> Fut + Send + Sync,
        Fut: Future<Output = Result<Option<R>, E>> + Send,
        R: Into<Row>,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        check_key(key)?;
        let load = || async { self.load(&load).await };
        let (mut lease, mut subscriber, mut reloads) = (random::unique_id(), None, 0);
        loop {
            let (found, leased) = match self.request(key, lease).await {
                Ok(answer) => answer,
                Err(error) => return self.handle_outage(key, error, &load).await,
            };
            let result = match found {
                ReadReply::Hit(data) => {
                    self.shared.counters.count(Counter::Hit);
                    return Ok(data);
                }
                ReadReply::Stale(data) => {
                    self.shared.counters.count(Counter::Stale);
                    return Ok(data);
                }
                ReadReply::Wait(awaited_lease, left) => {
                    self.wait(key, &mut subscriber, awaited_lease, left).await?;
                    continue;
                }
                ReadReply::WriteInProgress => return self.load_bypassing_store(key, &load).await,
                // If the reload fails, the old value is served.
                ReadReply::Early(data, generation) => match self.load_under_lease(leased, generation, &load).await {
                    Err(CacheError::Loader(_)) => return Ok(data),
                    result => result?,
                },
                ReadReply::Load(generation, Some(old)) => {
                    match self.load_under_lease(leased, generation, &load).await {
                        Err(CacheError::Loader(_)) => {
                            self.shared.counters.count(Counter::Stale);
                            return Ok(old);
                        }
                        result => result?,
                    }
                }
                ReadReply::Load(generation, None) => self.load_under_lease(leased, generation, &load).await?,
            };
            let (last, strong) =
                (reloads >= self.shared.options.max_reloads, self.shared.options.freshness == Freshness::Strong);
            match result {
                LoadOutcome::Invalidated(_) if strong && !last => {}
                LoadOutcome::Behind(_) | LoadOutcome::Absent if strong && !last => {
                    let pause =
                        backoff::pause(reloads, Duration::from_millis(10), Duration::from_millis(200), random_u32());
                    self.shared.clock.sleep(pause).await;
                }
                LoadOutcome::Behind(_) if strong => return Err(CacheError::LoaderBehind),
                LoadOutcome::Value(data) | LoadOutcome::Invalidated(data) | LoadOutcome::Behind(data) => {
                    return Ok(data);
                }
                // A deleted row looks the same, and must not be an error forever.
                LoadOutcome::Absent => return Ok(None),
            }
            (lease, reloads) = (random::unique_id(), reloads + 1);
        }
    }

    /// Sends a read to the store, which may grant the lease with this id.
    async fn request<'a>(&'a self, key: &'a str, lease: u128) -> Result<(ReadReply, LeaseGuard<'a>), CacheError> {
        let options = &self.shared.options;
        // Created before the request: a caller that is cancelled or times out before the reply may
        // have been granted the lease.
        let mut leased = LeaseGuard { shared: &self.shared, key, lease, may_be_held: true };
        let request = ReadRequest {
            lease,
            lease_time: micros(options.load_lease),
            keep_for: micros(options.max_load_time),
            stale_for: options.stale_micros(),
            early_factor: early_factor(options.beta, random_u32()),
        };
        match self.shared.store.apply(key, Operation::Read(request)).await {
            Ok(OperationReply::Read(found)) => {
                leased.may_be_held = matches!(found, ReadReply::Early(..) | ReadReply::Load(..));
                Ok((found, leased))
            }
            Ok(_) => Err(unexpected_reply_error()),
            Err(error) => {
                leased.may_be_held = error.effect() == Effect::Unknown;
                Err(CacheError::unavailable(error))
            }
        }
    }

    /// Waits until another reader's lease ends, at most for the `left` microseconds of that lease.
    /// The first call only subscribes, and returns at once: the read must be repeated first.
    async fn wait(
        &self,
        key: &str,
        subscriber: &mut Option<Subscriber>,
        awaited_lease: u128,
        left: u64,
    ) -> Result<(), CacheError> {
        let Some(subscribed) = subscriber else {
            self.shared.counters.count(Counter::Wait);
            *subscriber = Some(self.shared.store.subscribe(key));
            return Ok(());
        };
        let timeout = Duration::from_micros(left).min(RECHECK_INTERVAL) + Duration::from_micros(500);
        match self.shared.clock.timeout(timeout, subscribed.wait(awaited_lease)).await {
            Ok(Some(error)) => Err(CacheError::RemoteLoader(error.to_string())),
            Ok(None) | Err(_) => Ok(()),
        }
    }

    /// Calls the loader, and counts the call.
    async fn load<F, Fut, R, E>(&self, load: &F) -> Result<Option<Row>, CacheError>
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Result<Option<R>, E>>,
        R: Into<Row>,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        self.shared.counters.count(Counter::Load);
        let loaded = load().await.map_err(|error| CacheError::Loader(CacheError::cause(error)))?;
        Ok(loaded.map(Into::into))
    }

    /// Loads under a lease, and sends the value to the store.
    async fn load_under_lease<F, Fut>(
        &self,
        mut leased: LeaseGuard<'_>,
        generation: u64,
        load: &F,
    ) -> Result<LoadOutcome, CacheError>
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Result<Option<Row>, CacheError>>,
    {
        let (shared, key, lease) = (&self.shared, leased.key, leased.lease);
        let start = shared.clock.now();
        let row = match load().await {
            Ok(row) => row,
            Err(error) => {
                let text: String = error.to_string().chars().take(MAX_ERROR_TEXT).collect();
                leased.may_be_held = shared.store.apply(key, Operation::GiveUp(lease, text)).await.is_err();
                return Err(error);
            }
        };
        let operation = Operation::Store(shared.loaded_value(
            lease,
            generation,
            row.clone(),
            shared.clock.now().duration_since(start),
        ));
        let answer = shared.store.apply(key, operation).await;
        // Without a reply the lease may still be held: it is released, so that no reader waits for
        // it.
        leased.may_be_held = answer.is_err();
        let data = row.map(|row| row.value);
        Ok(match answer {
            Ok(OperationReply::Stored(Ok(()))) => LoadOutcome::Value(data),
            Ok(OperationReply::Stored(Err(refused))) => {
                shared.counters.count(Counter::Rejected);
                match refused {
                    StoreRefusal::Invalidated => LoadOutcome::Invalidated(data),
                    StoreRefusal::Overtaken => LoadOutcome::Value(data),
                    StoreRefusal::Older => LoadOutcome::Behind(data),
                    StoreRefusal::NoRow => LoadOutcome::Absent,
                }
            }
            Ok(_) => return Err(unexpected_reply_error()),
            // The value is not stored, but valid: it was loaded after this read began.
            Err(error) => {
                tracing::debug!(%error, key, "a loaded value could not be stored");
                LoadOutcome::Value(data)
            }
        })
    }

    /// What a read returns when the store failed with `error`: that error, or the loader's value.
    async fn handle_outage<F, Fut>(&self, key: &str, error: CacheError, load: &F) -> Result<Data, CacheError>
    where
        F: Fn() -> Fut + Send + Sync,
        Fut: Future<Output = Result<Option<Row>, CacheError>> + Send,
    {
        match self.shared.options.on_outage {
            OutagePolicy::FailClosed => Err(error),
            OutagePolicy::FailOpen => {
                tracing::debug!(%error, key, "the store does not respond: using the loader");
                self.load_bypassing_store(key, load).await
            }
        }
    }

    /// Loads without the store, sharing the load with other reads of this process.
    async fn load_bypassing_store<F, Fut>(&self, key: &str, load: &F) -> Result<Data, CacheError>
    where
        F: Fn() -> Fut + Send + Sync,
        Fut: Future<Output = Result<Option<Row>, CacheError>> + Send,
    {
        let count = || self.shared.counters.count(Counter::Bypass);
        let load = || async { Ok(load().await?.map(|row| row.value)) };
        self.shared.single_flight.load_once(key, count, load).await
    }

    /// Invalidates a key: reads that begin after this has returned get no older value. Call it
    /// after your commit.
    ///
    /// # Errors
    /// If the store does not respond: the cached value may be stale until its TTL ends. Call it
    /// again.
    pub async fn invalidate(&self, key: &str) -> Result<(), CacheError> {
        self.invalidate_below(key, 0).await
    }

    /// Invalidates a key, and from then on rejects rows with a lower version than `version`; 0
    /// rejects none. For loaders that read from replicas, which may lag behind. The loader must
    /// report the version of its rows.
    ///
    /// The version is known as long as the key has a record: at least
    /// [`max_load_time`](Builder::max_load_time), and as long as it is read, unless the server
    /// evicts it. Versions must not start over when a row is deleted and created again.
    ///
    /// "Not found" has no version. It is rejected for [`max_load_time`](Builder::max_load_time),
    /// and a strong read loads again, up to [`max_reloads`](Builder::max_reloads) times. Then it
    /// returns "not found", because a deleted row looks the same. To delete, write
    /// [`Absent`](super::RowState::Absent) through, which is in the cache at once; or pass a
    /// version above that of the deleted row here.
    ///
    /// # Errors
    /// As [`invalidate`](Self::invalidate).
    pub async fn invalidate_below(&self, key: &str, version: u64) -> Result<(), CacheError> {
        check_key(key)?;
        let operation = self.shared.invalidation(version);
        self.shared.send_with_retries(key, operation).await.map(drop).map_err(CacheError::unavailable)
    }
}

impl Shared {
    /// The operation that invalidates a key, and rejects rows below `version`; 0 rejects none.
    pub(crate) fn invalidation(&self, version: u64) -> Operation {
        Operation::Invalidate(version, self.options.stale_micros(), micros(self.options.max_load_time))
    }

    /// Sends an operation that may safely be repeated, a few times if there is no reply.
    pub(crate) async fn send_with_retries(&self, key: &str, operation: Operation) -> CrateResult<OperationReply> {
        let mut tries = 0;
        loop {
            match self.store.apply(key, operation.clone()).await {
                Err(error) if error.is_retryable() && tries + 1 < MAX_SEND_ATTEMPTS => {
                    let pause =
                        backoff::pause(tries, Duration::from_millis(20), Duration::from_millis(200), random_u32());
                    self.clock.sleep(pause).await;
                    tries += 1;
                }
                answer => return answer,
            }
        }
    }

    /// A value to be stored, with its TTL.
    pub(crate) fn loaded_value(&self, lease: u128, generation: u64, row: Option<Row>, cost: Duration) -> LoadedValue {
        let ttl = if row.is_some() { self.options.ttl } else { self.options.negative_ttl };
        let (data, version) = row.map_or((None, None), |row| (Some(row.value), row.version));
        let fresh_for = micros(jittered(ttl, self.options.jitter, random_u32())).max(1);
        LoadedValue {
            lease,
            generation,
            data,
            version,
            load_cost: micros(cost),
            fresh_for,
            stale_for: self.options.stale_micros(),
        }
    }
}

/// `Invalid` unless `key` has 1 to [`MAX_KEY`] bytes.
pub(crate) fn check_key(key: &str) -> Result<(), CacheError> {
    if (1..=MAX_KEY).contains(&key.len()) {
        return Ok(());
    }
    let message = format!("a key of a cache has 1 to {MAX_KEY} bytes, and not {}", key.len());
    Err(CacheError::Invalid(Arc::new(Error::new(ErrorKind::InvalidName, message))))
}
