//! The library reports every metric in the table of its documentation, and no others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::engine::RenewReply;
use leasehold::fence::Fence;
use leasehold::metrics::Metrics;
use leasehold::{Locks, Token};

use crate::library::spy::{Call, ScriptedReply, Spy};
use crate::library::time::{TTL, advance, advance_in_steps, builder_with_clock, run_until_idle};

/// A receiver of metrics that stores all of them.
#[derive(Default)]
struct RecordedMetrics(Mutex<MetricValues>);

#[derive(Default)]
struct MetricValues {
    /// The kind of each metric (`counter`, `gauge` or `histogram`), by its name.
    kinds: BTreeMap<&'static str, &'static str>,
    /// The count of each counter, by its name and the value of its label; empty: without a label.
    counts: BTreeMap<(&'static str, &'static str), u32>,
    gauges: BTreeMap<&'static str, f64>,
    histograms: BTreeMap<&'static str, Vec<f64>>,
}

impl Metrics for RecordedMetrics {
    fn increment(&self, name: &'static str, label: Option<(&'static str, &'static str)>) {
        let mut recorded = self.0.lock().unwrap();
        recorded.kinds.insert(name, "counter");
        *recorded.counts.entry((name, label.map_or("", |(_, value)| value))).or_default() += 1;
    }

    fn set_gauge(&self, name: &'static str, value: f64) {
        let mut recorded = self.0.lock().unwrap();
        recorded.kinds.insert(name, "gauge");
        recorded.gauges.insert(name, value);
    }

    fn record_seconds(&self, name: &'static str, seconds: f64) {
        let mut recorded = self.0.lock().unwrap();
        recorded.kinds.insert(name, "histogram");
        recorded.histograms.entry(name).or_default().push(seconds);
    }
}

impl RecordedMetrics {
    fn count(&self, name: &'static str, label_value: &'static str) -> u32 {
        self.0.lock().unwrap().counts.get(&(name, label_value)).copied().unwrap_or_default()
    }

    fn gauge(&self, name: &'static str) -> f64 {
        self.0.lock().unwrap().gauges[name]
    }

    /// The latest value of a histogram, in seconds.
    fn last(&self, name: &'static str) -> f64 {
        *self.0.lock().unwrap().histograms[name].last().unwrap()
    }
}

/// The rows of the table in the documentation of `leasehold::metrics`: the name of a metric, its
/// kind, and the possible values of its label.
fn documented_metrics() -> Vec<(&'static str, &'static str, Vec<&'static str>)> {
    let text = include_str!("../../../src/metrics.rs");
    let rows = text.lines().filter_map(|line| line.strip_prefix("//! | `"));
    rows.map(|row| {
        let cells: Vec<_> = row.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        let values = cells[2].split_once(": ").map_or("", |(_, values)| values);
        (cells[0], cells[1], values.split(", ").filter(|value| !value.is_empty() && !value.contains(' ')).collect())
    })
    .collect()
}

/// `memory:` with a spy, on a manual clock, that reports to the returned metrics.
async fn metered_locks() -> (leasehold::clock::ManualClock, Arc<Spy>, Arc<RecordedMetrics>, Locks) {
    let manual_clock = leasehold::clock::ManualClock::new();
    let (spy, metrics) = (Spy::new(&manual_clock.clock()).await, Arc::new(RecordedMetrics::default()));
    let locks = builder_with_clock(&manual_clock).metrics(metrics.clone()).open_engine(spy.clone());
    (manual_clock, spy, metrics, locks)
}

/// Makes the library report every metric at least once.
async fn trigger_every_metric() -> Arc<RecordedMetrics> {
    let (manual_clock, spy, metrics, locks) = metered_locks().await;
    let fence = Fence::with_metrics(metrics.clone());
    let guard = locks.mutex("a").lock().await.unwrap();
    assert!(locks.mutex("a").try_lock().await.unwrap().is_none());
    assert!(locks.mutex("a").timeout(Duration::ZERO).lock().await.is_err());
    let cancelled = tokio::spawn({
        let mutex = locks.mutex("a");
        async move { mutex.lock().await }
    });
    run_until_idle().await;
    cancelled.abort();
    run_until_idle().await;
    advance_in_steps(&manual_clock, TTL, Duration::from_millis(500)).await;
    let answers = [RenewReply::Held, RenewReply::Unknown];
    for answer in answers {
        spy.reply_next(Call::Renew, ScriptedReply::RenewAs(answer));
    }
    advance_in_steps(&manual_clock, TTL, Duration::from_millis(500)).await;
    fence.admit("a", Token(9)).unwrap();
    fence.admit("a", guard.token()).unwrap_err();
    let _ = guard.release().await.unwrap();
    for (name, reply) in [("revoked", ScriptedReply::RenewAs(RenewReply::Lost)), ("expired", ScriptedReply::Fail(true))]
    {
        spy.reply_always(Call::Renew, reply);
        let guard = locks.mutex(name).lock().await.unwrap();
        advance_in_steps(&manual_clock, TTL, Duration::from_millis(500)).await;
        let _ = guard.release().await.unwrap();
    }
    let guard = locks.mutex("max").max_hold(TTL / 2).lock().await.unwrap();
    advance_in_steps(&manual_clock, TTL / 2, Duration::from_millis(500)).await;
    drop(guard);
    let guard = locks.mutex("asked").lock().await.unwrap();
    locks.request_release("asked", guard.claim_id(), "").await.unwrap().unwrap();
    advance_in_steps(&manual_clock, TTL, Duration::from_millis(500)).await;
    drop(guard);
    let guard = locks.mutex("b").lock().await.unwrap();
    spy.reply_always(Call::Release, ScriptedReply::Fail(false));
    assert!(guard.release().await.is_err());
    metrics
}

#[tokio::test]
async fn documented_and_reported_metrics_agree() {
    let metrics = trigger_every_metric().await;
    let table = documented_metrics();
    assert!(table.len() > 10, "the table was not found");
    let documented: BTreeMap<_, _> = table.iter().map(|(name, kind, _)| (*name, *kind)).collect();
    let recorded = metrics.0.lock().unwrap();
    assert_eq!(documented, recorded.kinds.clone().into_iter().collect());
    for (name, _, values) in &table {
        let seen: BTreeSet<_> = recorded.counts.keys().filter(|(n, _)| n == name).map(|(_, value)| *value).collect();
        for value in values {
            assert!(seen.contains(value), "{name} was never counted as {value}, only {seen:?}");
        }
    }
}

#[tokio::test]
async fn counters_count_each_request_and_release_once() {
    let metrics = trigger_every_metric().await;
    for (name, value, times) in [
        ("leasehold_acquire_total", "granted", 6),
        ("leasehold_acquire_total", "busy", 1),
        ("leasehold_acquire_total", "timeout", 1),
        ("leasehold_acquire_total", "cancelled", 1),
        ("leasehold_contended_total", "", 3),
        ("leasehold_lost_total", "revoked", 1),
        ("leasehold_lost_total", "expired", 1),
        ("leasehold_lost_total", "max-hold", 1),
        ("leasehold_lost_total", "release-requested", 1),
        ("leasehold_release_requested_total", "", 1),
        ("leasehold_release_total", "released", 1),
        ("leasehold_release_total", "lost", 2),
        ("leasehold_release_total", "error", 1),
        ("leasehold_fencing_rejected_total", "", 1),
    ] {
        assert_eq!(metrics.count(name, value), times, "{name} {value}");
    }
    assert!(metrics.count("leasehold_renew_total", "renewed") >= 3);
    assert!(metrics.gauge("leasehold_waiters").abs() < f64::EPSILON, "all requests have ended");
}

#[tokio::test]
async fn gauges_follow_the_held_locks_without_waiting_for_a_renewal() {
    let (_manual_clock, _spy, metrics, locks) = metered_locks().await;
    let held = || metrics.gauge("leasehold_held") as u32;
    let one = locks.mutex("a").lock().await.unwrap();
    run_until_idle().await;
    assert_eq!(held(), 1);
    let two = locks.mutex("b").ttl(TTL * 10).lock().await.unwrap();
    run_until_idle().await;
    assert_eq!(held(), 2);
    let _ = two.release().await.unwrap();
    run_until_idle().await;
    assert_eq!(held(), 1);
    drop(one);
    run_until_idle().await;
    assert_eq!(held(), 0);
}

#[tokio::test]
async fn gauges_report_the_oldest_lease_the_next_expiry_and_the_engine_state() {
    let (manual_clock, spy, metrics, locks) = metered_locks().await;
    let _old = locks.mutex("a").ttl(TTL * 10).lock().await.unwrap();
    advance(&manual_clock, Duration::from_secs(7)).await;
    let _young = locks.mutex("b").lock().await.unwrap();
    run_until_idle().await;
    let close = |name, expected: f64| {
        let value = metrics.gauge(name);
        assert!((value - expected).abs() < 0.01, "{name} is {value}, not {expected}");
    };
    close("leasehold_oldest_held_seconds", 7.0);
    close("leasehold_lease_remaining_seconds", 29.995);
    close("leasehold_engine_up", 1.0);
    spy.reply_always(Call::Renew, ScriptedReply::NoResponse);
    advance(&manual_clock, TTL / 3).await;
    advance(&manual_clock, Duration::from_secs(5)).await;
    close("leasehold_engine_up", 0.0);
}

#[tokio::test]
async fn histograms_report_the_documented_durations() {
    let (manual_clock, _spy, metrics, locks) = metered_locks().await;
    let guard = locks.mutex("a").lock().await.unwrap();
    run_until_idle().await;
    let waiter = tokio::spawn({
        let mutex = locks.mutex("a");
        async move { mutex.lock().await }
    });
    advance(&manual_clock, Duration::from_secs(3)).await;
    let _ = guard.release().await.unwrap();
    let close = |name, expected: f64| {
        let value = metrics.last(name);
        assert!((value - expected).abs() < 0.01, "{name} is {value}, not {expected}");
    };
    close("leasehold_hold_seconds", 3.0);
    let second = waiter.await.unwrap().unwrap();
    close("leasehold_acquire_wait_seconds", 3.0);
    run_until_idle().await;
    advance(&manual_clock, Duration::from_secs(2)).await;
    let claim = locks.inspect("a").await.unwrap().holders[0].claim;
    locks.force_release("a", claim).await.unwrap();
    run_until_idle().await;
    assert!(!second.is_held());
    close("leasehold_hold_seconds", 2.0);
    // Waiting in the queue is no round trip.
    let slowest =
        metrics.0.lock().unwrap().histograms["leasehold_engine_rtt_seconds"].iter().copied().fold(0.0, f64::max);
    assert!(slowest < 1.0, "a round trip of {slowest} s though the engine answers at once");
}
