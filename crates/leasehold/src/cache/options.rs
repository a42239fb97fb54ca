//! How a cache behaves.

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
    /// A read that begins after an invalidation has returned never gets an older value. Whoever comes while another loads waits.
    #[default]
    Strong,
    /// Whoever comes while another loads gets the old value, for at most [`Builder::stale_for`] after it was invalidated or its
    /// TTL ended; and so does the one who loads, if its load fails.
    ServeStale,
}

/// What a read does when the store does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Outage {
    /// It goes to the loader: one load at a time for each key in each process. What it gets is never stale.
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

/// A cache to be opened.
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
    /// How fresh a read must be; [`Mode::Strong`] if you do not say.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.options.mode = mode;
        self
    }

    /// What a read does when the store does not answer; [`Outage::Open`] if you do not say.
    pub fn outage(mut self, outage: Outage) -> Self {
        self.options.outage = outage;
        self
    }

    /// How long a value is fresh if nobody invalidates it: the bound for everything that goes wrong. 60 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = ttl;
        self
    }

    /// The same for "there is nothing". 5 s.
    pub fn negative_ttl(mut self, ttl: Duration) -> Self {
        self.options.negative_ttl = ttl;
        self
    }

    /// With [`Mode::ServeStale`], how long an old value may be served. 10 s.
    pub fn stale_for(mut self, time: Duration) -> Self {
        self.options.stale_for = time;
        self
    }

    /// Which part of a TTL is left to chance, so that what was loaded together does not end together. 0.1.
    pub fn jitter(mut self, part: f64) -> Self {
        self.options.jitter = part;
        self
    }

    /// How eagerly one reader loads a value anew before it ends (XFetch): when `-beta * (what the load took) * ln(random)` is more than what is left. 1; 0 is never.
    pub fn early(mut self, beta: f64) -> Self {
        self.options.beta = beta;
        self
    }

    /// How long others leave a load to one reader before one of them takes over: longer than loads usually take. 5 s.
    pub fn lease(mut self, time: Duration) -> Self {
        self.options.lease = time;
        self
    }

    /// How long the longest load takes; what comes later is never let in. So long is also the life of the tombstone that an
    /// invalidation leaves. 60 s.
    pub fn longest_load(mut self, time: Duration) -> Self {
        self.options.longest_load = time;
        self
    }

    /// How long a key stays marked as being written when its writer is not heard of any more, or its commit failed: while it is, reads go to the loader. 10 s.
    pub fn longest_write(mut self, time: Duration) -> Self {
        self.options.longest_write = time;
        self
    }

    /// How long one step of the store may take. 1 s.
    pub fn timeout(mut self, time: Duration) -> Self {
        self.options.timeout = time;
        self
    }

    /// With [`Mode::Strong`], how often a read loads again when its load was overtaken by an invalidation. 3.
    pub fn reloads(mut self, times: u32) -> Self {
        self.options.reloads = times;
        self
    }

    /// Where figures go: see [`meter`](crate::meter).
    pub fn meter(mut self, meter: Arc<dyn Meter>) -> Self {
        self.gauges = Gauges::new(meter);
        self
    }

    /// Opens the cache in `redis:`, `rediss:`, `redis+sentinel:`, `redis+cluster:`, or `memory:` for one process alone.
    ///
    /// # Errors
    /// If the URL or an option cannot be used. With [`Outage::Closed`], and for a cluster, also if no server answers.
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

/// The longest of all times.
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
