//! Options of a cache.

use std::sync::Arc;
use std::time::Duration;

use super::flights::Flights;
use super::read_through::{ReadThrough, Shared};
use super::stats::Counts;
use super::store::Store;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::meter::{Gauges, Meter};

/// How fresh a read must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// A read that begins after an invalidation has returned never gets an older value. A read
    /// waits while another one loads.
    #[default]
    Strong,
    /// While another read loads, reads get the old value, for at most [`Builder::stale_for`] after
    /// its invalidation or the end of its TTL. The loading read gets it, too, if its load fails.
    ServeStale,
}

/// What a read does when the store does not respond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Outage {
    /// It goes to the loader: one load at a time per key and process. The loaded value is never
    /// stale.
    #[default]
    Open,
    /// It fails.
    Closed,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) mode: Mode,
    pub(crate) outage: Outage,
    pub(crate) ttl: Duration,
    pub(crate) negative_ttl: Duration,
    pub(crate) stale_for: Duration,
    pub(crate) jitter: f64,
    pub(crate) beta: f64,
    pub(crate) lease: Duration,
    pub(crate) longest_load: Duration,
    pub(crate) longest_write: Duration,
    pub(crate) timeout: Duration,
    pub(crate) reloads: u32,
}

/// Options to open a cache with.
#[derive(Clone)]
#[must_use]
pub struct Builder {
    options: Options,
    clock: Clock,
    gauges: Gauges,
}

impl Default for Builder {
    fn default() -> Self {
        let options = Options {
            mode: Mode::Strong,
            outage: Outage::Open,
            ttl: Duration::from_secs(60),
            negative_ttl: Duration::from_secs(5),
            stale_for: Duration::from_secs(10),
            jitter: 0.1,
            beta: 1.0,
            lease: Duration::from_secs(5),
            longest_load: Duration::from_secs(60),
            longest_write: Duration::from_secs(10),
            timeout: Duration::from_secs(1),
            reloads: 3,
        };
        Self { options, clock: Clock::system(), gauges: Gauges::default() }
    }
}

impl Builder {
    /// How fresh a read must be; [`Mode::Strong`] by default.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.options.mode = mode;
        self
    }

    /// What a read does when the store does not respond; [`Outage::Open`] by default.
    pub fn outage(mut self, outage: Outage) -> Self {
        self.options.outage = outage;
        self
    }

    /// How long a value is fresh without an invalidation: this limits how long any failure can
    /// leave a stale value. 60 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = ttl;
        self
    }

    /// The same for "not found". 5 s.
    pub fn negative_ttl(mut self, ttl: Duration) -> Self {
        self.options.negative_ttl = ttl;
        self
    }

    /// With [`Mode::ServeStale`], how long an old value may be served. 10 s.
    pub fn stale_for(mut self, time: Duration) -> Self {
        self.options.stale_for = time;
        self
    }

    /// Which part of a TTL is random, so that values that were loaded together do not expire
    /// together. 0.1.
    pub fn jitter(mut self, part: f64) -> Self {
        self.options.jitter = part;
        self
    }

    /// How early one reader reloads a value before it expires (XFetch): when `-beta * (duration of
    /// the load) * ln(random)` exceeds the time left. 1; 0 means never.
    pub fn early(mut self, beta: f64) -> Self {
        self.options.beta = beta;
        self
    }

    /// How long readers leave a load to one of them before another takes over: longer than loads
    /// usually take. 5 s.
    pub fn lease(mut self, time: Duration) -> Self {
        self.options.lease = time;
        self
    }

    /// How long the longest load takes; later values are never accepted. The tombstone of an
    /// invalidation is kept for this long, too. 60 s.
    pub fn longest_load(mut self, time: Duration) -> Self {
        self.options.longest_load = time;
        self
    }

    /// How long a key stays marked after its writer stops renewing the mark, or its commit failed.
    /// Meanwhile reads go to the loader. 10 s.
    pub fn longest_write(mut self, time: Duration) -> Self {
        self.options.longest_write = time;
        self
    }

    /// Timeout of one operation of the store. 1 s.
    pub fn timeout(mut self, time: Duration) -> Self {
        self.options.timeout = time;
        self
    }

    /// With [`Mode::Strong`], how often a read loads again when an invalidation overtook its load.
    /// 3.
    pub fn reloads(mut self, times: u32) -> Self {
        self.options.reloads = times;
        self
    }

    /// The meter for the cache's figures: see [`meter`](crate::meter).
    pub fn meter(mut self, meter: Arc<dyn Meter>) -> Self {
        self.gauges = Gauges::new(meter);
        self
    }

    /// Opens the cache in `redis:`, `rediss:`, `redis+sentinel:`, `redis+cluster:`, or `memory:`
    /// for one process only.
    ///
    /// # Errors
    /// If the URL or an option is invalid. With [`Outage::Closed`], and for a cluster, also if no
    /// server responds.
    pub async fn open(self, url: &str) -> Result<ReadThrough> {
        let Self { options, clock, gauges } = self;
        options.check()?;
        let store = Store::connect(url, options.timeout, options.outage == Outage::Open).await?;
        let (flights, counts) = (Flights::default(), Counts::new(gauges));
        Ok(ReadThrough { shared: Arc::new(Shared { store, options, clock, flights, counts }) })
    }
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.options.fmt(f)
    }
}

/// The upper limit of all times.
const YEAR: Duration = Duration::from_secs(366 * 24 * 3600);

impl Options {
    fn check(&self) -> Result<()> {
        let bad = |message: &str| Err(Error::new(ErrorKind::InvalidOption, message));
        let times = [self.ttl, self.negative_ttl, self.lease, self.longest_load, self.longest_write, self.timeout];
        if times.iter().any(|time| *time < Duration::from_millis(1) || *time > YEAR) || self.stale_for > YEAR {
            return bad("each time of a cache is between 1 ms and 366 days");
        }
        if self.longest_load < self.lease {
            return bad("longest_load is at least as long as lease: a value must be let in as long as its lease lasts");
        }
        if !(0.0..=1.0).contains(&self.jitter) || !(0.0..=100.0).contains(&self.beta) {
            return bad("jitter is between 0 and 1, and early between 0 and 100");
        }
        Ok(())
    }

    /// How long stale values are kept and served.
    pub(crate) fn stale(&self) -> u64 {
        if self.mode == Mode::ServeStale { micros(self.stale_for) } else { 0 }
    }
}

pub(crate) fn micros(time: Duration) -> u64 {
    time.as_micros() as u64
}
