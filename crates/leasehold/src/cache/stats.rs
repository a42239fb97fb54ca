//! Counters of a cache.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::meter::Gauges;

/// Counters of a cache in this process, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
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
    pub refused: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    Hit,
    Stale,
    Load,
    Wait,
    Bypass,
    Refused,
}

#[derive(Debug)]
pub(crate) struct Counts {
    counts: [AtomicU64; 6],
    gauges: Gauges,
}

impl Counts {
    pub(crate) fn new(gauges: Gauges) -> Self {
        Self { counts: Default::default(), gauges }
    }

    pub(crate) fn count(&self, what: What) {
        self.counts[what as usize].fetch_add(1, Ordering::Relaxed);
        let result = match what {
            What::Hit => "hit",
            What::Stale => "stale",
            What::Load => "load",
            What::Wait => "wait",
            What::Bypass => "bypass",
            What::Refused => return self.gauges.count("leasehold_cache_stale_set_rejected_total", None),
        };
        self.gauges.count("leasehold_cache_get_total", Some(("result", result)));
    }

    pub(crate) fn stats(&self) -> Stats {
        let of = |what: What| self.counts[what as usize].load(Ordering::Relaxed);
        Stats {
            hits: of(What::Hit),
            stale: of(What::Stale),
            loads: of(What::Load),
            waits: of(What::Wait),
            bypasses: of(What::Bypass),
            refused: of(What::Refused),
        }
    }
}
