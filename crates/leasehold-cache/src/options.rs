//! Options of a cache.

use std::sync::Arc;
use std::time::Duration;

use super::read_through::{ReadThrough, Shared};
use super::single_flight::SingleFlight;
use super::stats::Counters;
use super::store::CacheStore;
use leasehold::clock::Clock;
use leasehold::{Error, ErrorKind, Result};
use leasehold_internals::metrics::{Metrics, OptionalMetrics};

/// How fresh a read must be.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold_cache::{Freshness, ReadThrough};
/// use std::time::Duration;
///
/// // While one reader loads, the others get the old value, for at most ten seconds.
/// let options = ReadThrough::builder().freshness(Freshness::ServeStale);
/// let cache = options.stale_for(Duration::from_secs(10)).open("memory:").await?;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Freshness {
    /// A read that begins after an invalidation has returned never gets an older value. A read
    /// waits while another one loads.
    #[default]
    Strong,
    /// While another read loads, reads get the old value, for at most [`Builder::stale_for`] after
    /// its invalidation or the end of its TTL. The loading read gets it, too, if its load fails.
    ServeStale,
}

/// What a read does when the store does not respond.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold_cache::{OutagePolicy, ReadThrough};
///
/// // Protects a database that could not serve all reads: while Redis is unreachable, reads fail.
/// let cache = ReadThrough::builder().on_outage(OutagePolicy::FailClosed).open("memory:").await?;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OutagePolicy {
    /// The read calls the loader: one load at a time per key and process. The loaded value is never
    /// stale.
    #[default]
    FailOpen,
    /// The read fails with [`CacheError::Unavailable`](super::CacheError::Unavailable).
    FailClosed,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) freshness: Freshness,
    pub(crate) on_outage: OutagePolicy,
    pub(crate) ttl: Duration,
    pub(crate) negative_ttl: Duration,
    pub(crate) stale_for: Duration,
    pub(crate) jitter: f64,
    pub(crate) beta: f64,
    pub(crate) load_lease: Duration,
    pub(crate) max_load_time: Duration,
    pub(crate) max_write_time: Duration,
    pub(crate) timeout: Duration,
    pub(crate) max_reloads: u32,
}

/// Options to open a cache with.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold_cache::ReadThrough;
/// use std::time::Duration;
///
/// let cache = ReadThrough::builder()
///     .ttl(Duration::from_secs(300))
///     .negative_ttl(Duration::from_secs(1))
///     .open("memory:").await?;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone)]
#[must_use]
pub struct Builder {
    options: Options,
    clock: Clock,
    metrics: OptionalMetrics,
}

impl Default for Builder {
    fn default() -> Self {
        let options = Options {
            freshness: Freshness::Strong,
            on_outage: OutagePolicy::FailOpen,
            ttl: Duration::from_secs(60),
            negative_ttl: Duration::from_secs(5),
            stale_for: Duration::from_secs(10),
            jitter: 0.1,
            beta: 1.0,
            load_lease: Duration::from_secs(5),
            max_load_time: Duration::from_secs(60),
            max_write_time: Duration::from_secs(10),
            timeout: Duration::from_secs(1),
            max_reloads: 3,
        };
        Self { options, clock: Clock::system(), metrics: OptionalMetrics::default() }
    }
}

impl Builder {
    /// Sets how fresh a read must be; [`Freshness::Strong`] by default.
    pub fn freshness(mut self, mode: Freshness) -> Self {
        self.options.freshness = mode;
        self
    }

    /// Sets what a read does when the store does not respond; [`OutagePolicy::FailOpen`] by
    /// default.
    pub fn on_outage(mut self, outage: OutagePolicy) -> Self {
        self.options.on_outage = outage;
        self
    }

    /// Sets how long a value is fresh without an invalidation: this limits how long any failure can
    /// leave a stale value. 60 s by default.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = ttl;
        self
    }

    /// Sets how long "not found" is cached without an invalidation; 5 s by default.
    pub fn negative_ttl(mut self, ttl: Duration) -> Self {
        self.options.negative_ttl = ttl;
        self
    }

    /// Sets how long an old value may be served with [`Freshness::ServeStale`]; 10 s by default.
    pub fn stale_for(mut self, time: Duration) -> Self {
        self.options.stale_for = time;
        self
    }

    /// Shortens each TTL at random by up to this fraction of it, so that values that were loaded
    /// together do not expire together. 0.1 by default; 0 to 1.
    pub fn jitter(mut self, fraction: f64) -> Self {
        self.options.jitter = fraction;
        self
    }

    /// Sets how early one reader reloads a value before it expires (XFetch): when `-beta *
    /// (duration of the load) * ln(random)` exceeds the time left. 1 by default; 0 means never.
    pub fn early_reload(mut self, beta: f64) -> Self {
        self.options.beta = beta;
        self
    }

    /// Sets how long other readers wait for a load before one of them takes over; it should be
    /// longer than usual loads. 5 s by default.
    pub fn load_lease(mut self, time: Duration) -> Self {
        self.options.load_lease = time;
        self
    }

    /// Sets the maximum duration of a load; the value of a longer one is never stored. The
    /// tombstone of an invalidation is kept for this long, too. 60 s by default.
    pub fn max_load_time(mut self, time: Duration) -> Self {
        self.options.max_load_time = time;
        self
    }

    /// Sets how long a key stays marked after its writer stops renewing the mark, or its commit
    /// failed. Meanwhile reads go to the loader. 10 s by default.
    pub fn max_write_time(mut self, time: Duration) -> Self {
        self.options.max_write_time = time;
        self
    }

    /// Sets the timeout of one operation of the store; 1 s by default.
    pub fn timeout(mut self, time: Duration) -> Self {
        self.options.timeout = time;
        self
    }

    /// Sets how often a read with [`Freshness::Strong`] loads again when an invalidation overtook
    /// its load; 3 times by default.
    pub fn max_reloads(mut self, times: u32) -> Self {
        self.options.max_reloads = times;
        self
    }

    /// Reports the cache's metrics to `metrics`; by default they are not reported.
    pub fn metrics(mut self, metrics: Arc<dyn Metrics>) -> Self {
        self.metrics = OptionalMetrics::new(metrics);
        self
    }

    /// Opens the cache in `redis:`, `rediss:`, `redis+sentinel:`, `redis+cluster:`, or `memory:`
    /// for one process only.
    ///
    /// # Errors
    /// If the URL or an option is invalid. With [`OutagePolicy::FailClosed`], and for a cluster,
    /// also if no server responds.
    pub async fn open(self, url: &str) -> Result<ReadThrough> {
        let Self { options, clock, metrics } = self;
        options.check()?;
        let store = CacheStore::connect(url, options.timeout, options.on_outage == OutagePolicy::FailOpen).await?;
        let (single_flight, counters) = (SingleFlight::default(), Counters::new(metrics));
        Ok(ReadThrough { shared: Arc::new(Shared { store, options, clock, single_flight, counters }) })
    }
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.options.fmt(f)
    }
}

/// The upper limit of each duration among the options.
const MAX_TIME: Duration = Duration::from_secs(366 * 24 * 3600);

impl Options {
    fn check(&self) -> Result<()> {
        let bad = |message: &str| Err(Error::new(ErrorKind::InvalidOption, message));
        let times =
            [self.ttl, self.negative_ttl, self.load_lease, self.max_load_time, self.max_write_time, self.timeout];
        if times.iter().any(|time| *time < Duration::from_millis(1) || *time > MAX_TIME) || self.stale_for > MAX_TIME {
            return bad("each time of a cache must be between 1 ms and 366 days");
        }
        if self.max_load_time < self.load_lease {
            return bad("max_load_time must be at least load_lease: a value must be accepted while its lease lasts");
        }
        if !(0.0..=1.0).contains(&self.jitter) || !(0.0..=100.0).contains(&self.beta) {
            return bad("jitter must be between 0 and 1, and early_reload between 0 and 100");
        }
        Ok(())
    }

    /// How long stale values are kept and served, in microseconds; 0 unless
    /// [`Freshness::ServeStale`].
    pub(crate) fn stale_micros(&self) -> u64 {
        if self.freshness == Freshness::ServeStale { micros(self.stale_for) } else { 0 }
    }
}

pub(crate) fn micros(time: Duration) -> u64 {
    time.as_micros() as u64
}
