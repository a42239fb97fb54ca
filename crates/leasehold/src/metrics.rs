//! Metrics: a hook in the manner of the `metrics` crate, free of cost when unused.
//!
//! | name | kind | label | meaning |
//! |---|---|---|---|
//! | `leasehold_acquire_total` | counter | `result`: granted, busy, timeout, cancelled, or the error's kind | ended requests |
//! | `leasehold_acquire_wait_seconds` | histogram | | time from request to grant |
//! | `leasehold_contended_total` | counter | | requests that did not get the lock at once |
//! | `leasehold_waiters` | gauge | | requests in progress in this process |
//! | `leasehold_held` | gauge | | leases held by this process |
//! | `leasehold_oldest_held_seconds` | gauge | | age of the oldest lease |
//! | `leasehold_hold_seconds` | histogram | | time from grant to end |
//! | `leasehold_renew_total` | counter | `result`: renewed, held, lost, unknown | answers to renewals |
//! | `leasehold_renew_seconds` | histogram | | duration of one batch of renewals |
//! | `leasehold_lease_remaining_seconds` | gauge | | time left of the lease that ends first |
//! | `leasehold_lost_total` | counter | `reason`: expired, taken, max-hold, release-requested | guards that ended without a release |
//! | `leasehold_release_requested_total` | counter | | releases that operators asked for |
//! | `leasehold_release_total` | counter | `result`: released, lost, error | releases |
//! | `leasehold_fencing_rejected_total` | counter | | stale tokens refused by a [`Fence`](crate::fence::Fence) |
//! | `leasehold_engine_up` | gauge | | 1 after a response of the engine, 0 while it is unreachable |
//! | `leasehold_engine_rtt_seconds` | histogram | | duration of one engine call |

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// Receives metrics. All methods are called on hot paths: they should be fast and must not block.
pub trait Metrics: Send + Sync + 'static {
    /// Adds one to a counter; `label` is a key and one of a few fixed values.
    fn increment(&self, name: &'static str, label: Option<(&'static str, &'static str)>);
    /// Sets a gauge.
    fn set_gauge(&self, name: &'static str, value: f64);
    /// Adds a value, in seconds, to a histogram.
    fn record_seconds(&self, name: &'static str, seconds: f64);
}

/// An optional meter.
#[derive(Clone, Default)]
pub struct OptionalMetrics(Option<Arc<ActiveMetrics>>);

struct ActiveMetrics {
    metrics: Arc<dyn Metrics>,
    waiters: AtomicI64,
}

impl fmt::Debug for OptionalMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "OptionalMetrics(on)" } else { "OptionalMetrics(off)" })
    }
}

impl OptionalMetrics {
    /// Reports to `metrics`.
    pub fn new(metrics: Arc<dyn Metrics>) -> Self {
        Self(Some(Arc::new(ActiveMetrics { metrics, waiters: AtomicI64::new(0) })))
    }

    /// Whether anything is reported.
    pub fn is_enabled(&self) -> bool {
        self.0.is_some()
    }

    /// Adds one to a counter.
    pub fn increment(&self, name: &'static str, label: Option<(&'static str, &'static str)>) {
        if let Some(active) = &self.0 {
            active.metrics.increment(name, label);
        }
    }

    /// Sets a gauge.
    pub fn set_gauge(&self, name: &'static str, value: f64) {
        if let Some(active) = &self.0 {
            active.metrics.set_gauge(name, value);
        }
    }

    /// Adds a duration to a histogram.
    pub fn record_duration(&self, name: &'static str, time: Duration) {
        if let Some(active) = &self.0 {
            active.metrics.record_seconds(name, time.as_secs_f64());
        }
    }

    /// Changes the number of requests in progress.
    pub fn add_waiters(&self, by: i64) {
        if let Some(active) = &self.0 {
            let now = active.waiters.fetch_add(by, Ordering::Relaxed) + by;
            active.metrics.set_gauge("leasehold_waiters", now as f64);
        }
    }
}
