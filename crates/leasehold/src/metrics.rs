//! The metrics that the library reports to a [`Metrics`] of yours; without one they cost nothing.
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
//! | `leasehold_lost_total` | counter | `reason`: expired, revoked, max-hold, release-requested | guards that ended without a release |
//! | `leasehold_release_requested_total` | counter | | releases that operators requested |
//! | `leasehold_release_total` | counter | `result`: released, lost, error | releases |
//! | `leasehold_fencing_rejected_total` | counter | | stale tokens refused by a [`Fence`](crate::fence::Fence) |
//! | `leasehold_engine_up` | gauge | | 1 after a response of the engine, 0 while it is unreachable |
//! | `leasehold_engine_rtt_seconds` | histogram | | duration of one engine call |

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// Receives metrics. All methods are called on hot paths: they should be fast and must not block.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use std::collections::BTreeMap;
/// use std::sync::{Arc, Mutex};
/// use leasehold::{Locks, metrics::Metrics};
///
/// #[derive(Default)]
/// struct Counters(Mutex<BTreeMap<&'static str, u32>>);
///
/// impl Metrics for Counters {
///     fn increment(&self, name: &'static str, _label: Option<(&'static str, &'static str)>) {
///         *self.0.lock().unwrap().entry(name).or_default() += 1;
///     }
///     fn set_gauge(&self, _name: &'static str, _value: f64) {}
///     fn record_seconds(&self, _name: &'static str, _seconds: f64) {}
/// }
///
/// let counters = Arc::new(Counters::default());
/// let locks = Locks::builder().metrics(counters.clone()).open("memory:").await?;
/// let guard = locks.mutex("stock:42").lock().await?;
/// assert_eq!(counters.0.lock().unwrap()["leasehold_acquire_total"], 1);
/// # drop(guard);
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
pub trait Metrics: Send + Sync + 'static {
    /// Adds one to the counter `name`; `label` is a label's key and value, from the table above.
    fn increment(&self, name: &'static str, label: Option<(&'static str, &'static str)>);
    /// Sets the gauge `name` to this value.
    fn set_gauge(&self, name: &'static str, value: f64);
    /// Adds a duration, in seconds, to the histogram `name`.
    fn record_seconds(&self, name: &'static str, seconds: f64);
}

/// A [`Metrics`], or none: then nothing is reported. Clones report to the same one.
///
/// ```
/// use leasehold::metrics::OptionalMetrics;
///
/// let metrics = OptionalMetrics::default();
/// assert!(!metrics.is_enabled());
/// metrics.increment("leasehold_lost_total", None);   // has no effect
/// ```
#[derive(Clone, Default)]
pub struct OptionalMetrics(Option<Arc<ActiveMetrics>>);

/// The receiver of the metrics, and the value of a gauge that several requests change.
struct ActiveMetrics {
    metrics: Arc<dyn Metrics>,
    /// The value of the gauge `leasehold_waiters`.
    waiters: AtomicI64,
}

impl fmt::Debug for OptionalMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "OptionalMetrics(on)" } else { "OptionalMetrics(off)" })
    }
}

impl OptionalMetrics {
    /// Reports to `metrics` from now on.
    pub fn new(metrics: Arc<dyn Metrics>) -> Self {
        Self(Some(Arc::new(ActiveMetrics { metrics, waiters: AtomicI64::new(0) })))
    }

    /// Whether there is a [`Metrics`] to report to.
    pub fn is_enabled(&self) -> bool {
        self.0.is_some()
    }

    /// Adds one to a counter, as [`Metrics::increment`].
    pub fn increment(&self, name: &'static str, label: Option<(&'static str, &'static str)>) {
        if let Some(active) = &self.0 {
            active.metrics.increment(name, label);
        }
    }

    /// Sets a gauge, as [`Metrics::set_gauge`].
    pub fn set_gauge(&self, name: &'static str, value: f64) {
        if let Some(active) = &self.0 {
            active.metrics.set_gauge(name, value);
        }
    }

    /// Adds a duration to a histogram, as [`Metrics::record_seconds`].
    pub fn record_duration(&self, name: &'static str, time: Duration) {
        if let Some(active) = &self.0 {
            active.metrics.record_seconds(name, time.as_secs_f64());
        }
    }

    /// Adds `change`, which may be negative, to the gauge `leasehold_waiters`: the requests in
    /// progress.
    pub fn add_waiters(&self, change: i64) {
        if let Some(active) = &self.0 {
            let waiters = active.waiters.fetch_add(change, Ordering::Relaxed) + change;
            active.metrics.set_gauge("leasehold_waiters", waiters as f64);
        }
    }
}
