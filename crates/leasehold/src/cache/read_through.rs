//! Reads.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use super::bells::Ear;
use super::error::CacheError;
use super::flights::Flights;
use super::options::{Builder, Mode, Options, Outage, micros};
use super::row::Row;
use super::stats::{Counts, Stats, What};
use super::store::Store;
use crate::clock::Clock;
use crate::error::{Effect, Error, ErrorKind, Result as CrateResult};
use crate::logic::backoff;
use crate::logic::cache::{Ask, Data, Found, Load, Refused, Said, Step, early_factor, jittered};
use crate::random;

/// How long a reader waits for a notification before it looks again, in case the notification was
/// lost.
const LOOK: Duration = Duration::from_secs(1);
/// How many bytes of a loader's error other readers get.
const WHY: usize = 200;
/// The longest key, in bytes.
pub const MAX_KEY: usize = 512;
/// How often an invalidation, or the end of a write, is sent while there is no reply.
const TRIES: u32 = 3;

/// A cache in front of your own loader. Cheap to clone; all clones share one cache.
#[derive(Clone, Debug)]
pub struct ReadThrough {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Store,
    pub(crate) options: Options,
    pub(crate) clock: Clock,
    pub(crate) flights: Flights,
    pub(crate) counts: Counts,
}

/// How a load under a lease ended.
enum Brought {
    /// The value is valid.
    Value(Data),
    /// An invalidation overtook it: it is valid only if there is no time for another load.
    Overtaken(Data),
    /// The row is older than a known one.
    Behind(Data),
    /// No row was found where one was known: it is deleted, or the loader does not see it yet.
    Absent,
}

/// A lease, from before its request is sent. If it may be ours when this is dropped, and no value
/// was stored, it is given up.
struct Leased<'a> {
    shared: &'a Arc<Shared>,
    key: &'a str,
    lease: u128,
    /// Whether it may be ours.
    open: bool,
}

impl Drop for Leased<'_> {
    fn drop(&mut self) {
        if self.open
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let (shared, key, lease) = (Arc::clone(self.shared), self.key.to_owned(), self.lease);
            // The result is ignored: a lease that could not be given up expires. Earlier requests
            // on the same connection are done before this one.
            drop(runtime.spawn(async move { shared.insist(&key, Step::GiveUp(lease, String::new())).await }));
        }
    }
}

pub(crate) fn odd() -> CacheError {
    CacheError::unavailable(Error::new(ErrorKind::Corrupt, "the store answered another question"))
}

pub(crate) fn dice() -> u32 {
    random::unique() as u32
}

impl ReadThrough {
    /// Options for a cache to open.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Opens a cache with [`Mode::Strong`] and the defaults: see [`Builder::open`].
    ///
    /// # Errors
    /// As [`Builder::open`].
    pub async fn open(url: &str) -> CrateResult<Self> {
        Self::builder().open(url).await
    }

    /// Counters of this cache, in this process.
    pub fn stats(&self) -> Stats {
        self.shared.counts.stats()
    }

    /// The value of `key`, from the cache or from `load`, which only one of all readers calls.
    /// `load` returns a row, or none.
    ///
    /// # Guarantee
    /// With [`Mode::Strong`]: if an invalidation or a write of this key returned before this call
    /// began, the result is not older than that. If an invalidation overtakes its own load, it
    /// loads again, up to [`Builder::reloads`] times. Then it returns the result of the last load,
    /// which began after this call did.
    ///
    /// With [`Mode::ServeStale`] the result may be older, by at most [`Builder::stale_for`].
    ///
    /// # Errors
    /// The error of the loader, here or elsewhere; with [`Outage::Closed`], if the store does not
    /// respond.
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
        check(key)?;
        let load = || async { self.load(&load).await };
        let (mut lease, mut ear, mut round) = (random::unique(), None, 0);
        loop {
            let (found, leased) = match self.ask(key, lease).await {
                Ok(answer) => answer,
                Err(error) => return self.without_store(key, error, &load).await,
            };
            let brought = match found {
                Found::Hit(data) => {
                    self.shared.counts.count(What::Hit);
                    return Ok(data);
                }
                Found::Stale(data) => {
                    self.shared.counts.count(What::Stale);
                    return Ok(data);
                }
                Found::Wait(theirs, left) => {
                    self.wait(key, &mut ear, theirs, left).await?;
                    continue;
                }
                Found::Written => return self.past_store(key, &load).await,
                // If the reload fails, the old value is served.
                Found::Early(data, generation) => match self.bring(leased, generation, &load).await {
                    Err(CacheError::Loader(_)) => return Ok(data),
                    brought => brought?,
                },
                Found::Load(generation, Some(old)) => match self.bring(leased, generation, &load).await {
                    Err(CacheError::Loader(_)) => {
                        self.shared.counts.count(What::Stale);
                        return Ok(old);
                    }
                    brought => brought?,
                },
                Found::Load(generation, None) => self.bring(leased, generation, &load).await?,
            };
            let (last, strong) = (round >= self.shared.options.reloads, self.shared.options.mode == Mode::Strong);
            match brought {
                Brought::Overtaken(_) if strong && !last => {}
                Brought::Behind(_) | Brought::Absent if strong && !last => {
                    let pause = backoff::pause(round, Duration::from_millis(10), Duration::from_millis(200), dice());
                    self.shared.clock.sleep(pause).await;
                }
                Brought::Behind(_) if strong => return Err(CacheError::Behind),
                Brought::Value(data) | Brought::Overtaken(data) | Brought::Behind(data) => return Ok(data),
                // A deleted row looks the same, and must not be an error forever.
                Brought::Absent => return Ok(None),
            }
            (lease, round) = (random::unique(), round + 1);
        }
    }

    /// The state of the key, and the lease, which counts if it was granted.
    async fn ask<'a>(&'a self, key: &'a str, lease: u128) -> Result<(Found, Leased<'a>), CacheError> {
        let options = &self.shared.options;
        // Created before the request: a caller that is cancelled or times out before the reply may
        // have been granted the lease.
        let mut leased = Leased { shared: &self.shared, key, lease, open: true };
        let ask = Ask {
            lease,
            lease_for: micros(options.lease),
            keep_for: micros(options.longest_load),
            stale_for: options.stale(),
            early: early_factor(options.beta, dice()),
        };
        match self.shared.store.step(key, Step::Ask(ask)).await {
            Ok(Said::Found(found)) => {
                leased.open = matches!(found, Found::Early(..) | Found::Load(..));
                Ok((found, leased))
            }
            Ok(_) => Err(odd()),
            Err(error) => {
                leased.open = error.effect() == Effect::Unknown;
                Err(CacheError::unavailable(error))
            }
        }
    }

    /// Waits for another reader's load; the first call only subscribes.
    async fn wait(&self, key: &str, ear: &mut Option<Ear>, theirs: u128, left: u64) -> Result<(), CacheError> {
        let Some(ear) = ear else {
            self.shared.counts.count(What::Wait);
            *ear = Some(self.shared.store.listen(key));
            return Ok(());
        };
        let patience = Duration::from_micros(left).min(LOOK) + Duration::from_micros(500);
        match self.shared.clock.timeout(patience, ear.hear(theirs)).await {
            Ok(Some(why)) => Err(CacheError::LoaderElsewhere(why.to_string())),
            Ok(None) | Err(_) => Ok(()),
        }
    }

    async fn load<F, Fut, R, E>(&self, load: &F) -> Result<Option<Row>, CacheError>
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Result<Option<R>, E>>,
        R: Into<Row>,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        self.shared.counts.count(What::Load);
        let loaded = load().await.map_err(|error| CacheError::Loader(CacheError::cause(error)))?;
        Ok(loaded.map(Into::into))
    }

    /// Loads under a lease, and sends the value to the store.
    async fn bring<F, Fut>(&self, mut leased: Leased<'_>, generation: u64, load: &F) -> Result<Brought, CacheError>
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Result<Option<Row>, CacheError>>,
    {
        let (shared, key, lease) = (&self.shared, leased.key, leased.lease);
        let start = shared.clock.now();
        let row = match load().await {
            Ok(row) => row,
            Err(error) => {
                let why: String = error.to_string().chars().take(WHY).collect();
                leased.open = shared.store.step(key, Step::GiveUp(lease, why)).await.is_err();
                return Err(error);
            }
        };
        let step = Step::Set(shared.load(lease, generation, row.clone(), shared.clock.now().since(start)));
        let answer = shared.store.step(key, step).await;
        // Whatever the result: if the lease is still held, no reader must wait for it.
        leased.open = answer.is_err();
        let data = row.map(|row| row.value);
        Ok(match answer {
            Ok(Said::Set(Ok(()))) => Brought::Value(data),
            Ok(Said::Set(Err(refused))) => {
                shared.counts.count(What::Refused);
                match refused {
                    Refused::Invalidated => Brought::Overtaken(data),
                    Refused::Overtaken => Brought::Value(data),
                    Refused::Older => Brought::Behind(data),
                    Refused::Absent => Brought::Absent,
                }
            }
            Ok(_) => return Err(odd()),
            // It was loaded after this read began.
            Err(error) => {
                tracing::debug!(%error, key, "a loaded value could not be stored");
                Brought::Value(data)
            }
        })
    }

    async fn without_store<F, Fut>(&self, key: &str, error: CacheError, load: &F) -> Result<Data, CacheError>
    where
        F: Fn() -> Fut + Send + Sync,
        Fut: Future<Output = Result<Option<Row>, CacheError>> + Send,
    {
        match self.shared.options.outage {
            Outage::Closed => Err(error),
            Outage::Open => {
                tracing::debug!(%error, key, "the store does not answer: the loader is asked");
                self.past_store(key, load).await
            }
        }
    }

    async fn past_store<F, Fut>(&self, key: &str, load: &F) -> Result<Data, CacheError>
    where
        F: Fn() -> Fut + Send + Sync,
        Fut: Future<Output = Result<Option<Row>, CacheError>> + Send,
    {
        self.shared.counts.count(What::Bypass);
        let load = || async { Ok(load().await?.map(|row| row.value)) };
        self.shared.flights.join(key, load).await
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

    /// The same, and rows with a lower version than this are rejected: for loaders that read from
    /// replicas, which may lag behind. The loader must report the version of its rows.
    ///
    /// The version is known as long as the key has a record: at least
    /// [`longest_load`](Builder::longest_load), and as long as it is read, unless the server evicts
    /// it. Versions must not start over when a row is deleted and created again.
    ///
    /// "Not found" has no version. It is rejected for [`longest_load`](Builder::longest_load), and
    /// a strong read loads again, up to [`reloads`](Builder::reloads) times. Then it returns "not
    /// found", because a deleted row looks the same. To delete, write
    /// [`Nothing`](super::Now::Nothing) through, which is in the cache at once; or pass a version
    /// above that of the deleted row here.
    ///
    /// # Errors
    /// As [`invalidate`](Self::invalidate).
    pub async fn invalidate_below(&self, key: &str, version: u64) -> Result<(), CacheError> {
        check(key)?;
        let step = self.shared.forget(version);
        self.shared.insist(key, step).await.map(drop).map_err(CacheError::unavailable)
    }
}

impl Shared {
    /// An invalidation.
    pub(crate) fn forget(&self, version: u64) -> Step {
        Step::Invalidate(version, self.options.stale(), micros(self.options.longest_load))
    }

    /// Sends an operation that may safely be repeated, a few times if there is no reply.
    pub(crate) async fn insist(&self, key: &str, step: Step) -> CrateResult<Said> {
        let mut tries = 0;
        loop {
            match self.store.step(key, step.clone()).await {
                Err(error) if error.is_retryable() && tries + 1 < TRIES => {
                    let pause = backoff::pause(tries, Duration::from_millis(20), Duration::from_millis(200), dice());
                    self.clock.sleep(pause).await;
                    tries += 1;
                }
                answer => return answer,
            }
        }
    }

    /// A value to be stored, with its TTL.
    pub(crate) fn load(&self, lease: u128, generation: u64, row: Option<Row>, cost: Duration) -> Load {
        let ttl = if row.is_some() { self.options.ttl } else { self.options.negative_ttl };
        let (data, version) = row.map_or((None, None), |row| (Some(row.value), row.version));
        let fresh_for = micros(jittered(ttl, self.options.jitter, dice())).max(1);
        Load { lease, generation, data, version, cost: micros(cost), fresh_for, stale_for: self.options.stale() }
    }
}

/// Checks a key.
pub(crate) fn check(key: &str) -> Result<(), CacheError> {
    if (1..=MAX_KEY).contains(&key.len()) {
        return Ok(());
    }
    let message = format!("a key of a cache has 1 to {MAX_KEY} bytes, and not {}", key.len());
    Err(CacheError::Invalid(Arc::new(Error::new(ErrorKind::InvalidName, message))))
}
