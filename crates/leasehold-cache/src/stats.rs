//! Counters of a cache.

use std::sync::atomic::{AtomicU64, Ordering};

use leasehold_internals::metrics::OptionalMetrics;

/// Counters of a cache in this process, since it was opened.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold_cache::ReadThrough;
///
/// let cache = ReadThrough::open("memory:").await?;
/// let load = || async { Ok::<_, std::io::Error>(Some("Ada")) };
/// cache.get_or_load("user:42", load).await?;
/// cache.get_or_load("user:42", load).await?;
/// assert_eq!((cache.stats().loads, cache.stats().hits), (1, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Reads that found a fresh value in the cache.
    pub hits: u64,
    /// Reads that got a stale value.
    pub stale: u64,
    /// How often a loader was called.
    pub loads: u64,
    /// Reads that waited for another reader's load.
    pub waits: u64,
    /// Reads that bypassed the store: during a write, or because it did not respond.
    pub bypasses: u64,
    /// Loaded values that the store rejected, because the key was invalidated meanwhile or the row
    /// was too old.
    pub rejected: u64,
}

/// A counter; each is a field of [`CacheStats`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Counter {
    Hit,
    Stale,
    Load,
    Wait,
    Bypass,
    Rejected,
}

#[derive(Debug)]
pub(crate) struct Counters {
    counts: [AtomicU64; 6],
    metrics: OptionalMetrics,
}

impl Counters {
    pub(crate) fn new(metrics: OptionalMetrics) -> Self {
        Self { counts: Default::default(), metrics }
    }

    /// Adds one to a counter and to its metric.
    pub(crate) fn count(&self, counter: Counter) {
        self.counts[counter as usize].fetch_add(1, Ordering::Relaxed);
        let result = match counter {
            Counter::Hit => "hit",
            Counter::Stale => "stale",
            Counter::Load => "load",
            Counter::Wait => "wait",
            Counter::Bypass => "bypass",
            Counter::Rejected => return self.metrics.increment("leasehold_cache_stale_set_rejected_total", None),
        };
        self.metrics.increment("leasehold_cache_get_total", Some(("result", result)));
    }

    pub(crate) fn snapshot(&self) -> CacheStats {
        let of = |counter: Counter| self.counts[counter as usize].load(Ordering::Relaxed);
        CacheStats {
            hits: of(Counter::Hit),
            stale: of(Counter::Stale),
            loads: of(Counter::Load),
            waits: of(Counter::Wait),
            bypasses: of(Counter::Bypass),
            rejected: of(Counter::Rejected),
        }
    }
}
