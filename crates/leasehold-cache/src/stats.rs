//! Counters of a cache.

use std::sync::atomic::{AtomicU64, Ordering};

use leasehold_internals::metrics::OptionalMetrics;

/// Counters of a cache in this process, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Reads that found a fresh value.
    pub hits: u64,
    /// Reads that got a stale value.
    pub stale: u64,
    /// Calls of a loader.
    pub loads: u64,
    /// Reads that waited for another reader's load.
    pub waits: u64,
    /// Reads that bypassed the store: during a write, or because it did not respond.
    pub bypasses: u64,
    /// Values that were rejected because they came too late.
    pub rejected: u64,
}

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
    pub(crate) fn new(gauges: OptionalMetrics) -> Self {
        Self { counts: Default::default(), metrics: gauges }
    }

    pub(crate) fn count(&self, what: Counter) {
        self.counts[what as usize].fetch_add(1, Ordering::Relaxed);
        let result = match what {
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
        let of = |what: Counter| self.counts[what as usize].load(Ordering::Relaxed);
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
