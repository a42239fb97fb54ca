//! Simulations in virtual time, for tests: a seed determines each run, and thousands of runs take
//! seconds.
//!
//! `LEASEHOLD_SEED=7` does only the run with this seed and prints its log; `LEASEHOLD_SEEDS=100000`
//! does this many runs.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "a panic fails the test that uses this")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::random::seeded;

/// A generator of random numbers, determined by a seed.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x2545_F491_4F6C_DD1D) ^ 0x5DEE_CE66)
    }

    /// A number from `from` up to, but excluding, `to`; `from` if `to` is not above it.
    pub(crate) fn between(&mut self, from: u64, to: u64) -> u64 {
        from + seeded::next_u64(&mut self.0) % to.saturating_sub(from).max(1)
    }

    /// `true` with this probability, in thousandths.
    pub(crate) fn happens(&mut self, per_mille: u64) -> bool {
        self.between(0, 1000) < per_mille
    }

    /// A duration below `max`.
    pub(crate) fn duration(&mut self, max: Duration) -> Duration {
        Duration::from_micros(self.between(0, max.as_micros() as u64))
    }

    /// One of these items, each with the same probability.
    pub(crate) fn choose<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.between(0, items.len() as u64) as usize]
    }
}

/// The result of one run.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// How often each kind of event happened, by its label.
    pub(crate) counts: BTreeMap<&'static str, u64>,
    /// A description of each violated guarantee.
    pub(crate) violations: Vec<String>,
    /// The events, one per line; empty unless the run was requested by its seed.
    pub(crate) log: Vec<String>,
}

impl Report {
    /// Counts an event with this label.
    pub(crate) fn count(&mut self, label: &'static str) {
        *self.counts.entry(label).or_default() += 1;
    }
}

/// Runs one simulation in a new runtime with paused time; all random bits of the library follow
/// from the seed.
pub(crate) fn run_seed<T>(seed: u64, simulation: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    seeded::set_seed(Some(seed));
    let outcome = runtime.expect("a runtime").block_on(simulation);
    seeded::set_seed(None);
    outcome
}

/// How many times as many seeds the nightly run tries.
const NIGHTLY_FACTOR: u64 = 10;

/// Does the runs with the seeds 0 to `seeds` on two threads (nightly: [`NIGHTLY_FACTOR`] times as
/// many), or only the run that `LEASEHOLD_SEED`
/// requests. Panics if a run violates a guarantee, or if all runs together count an event of
/// `min_counts` less often than required: a violation might then not show. `run_one` gets the seed,
/// and whether to keep a log. Returns the counts of all runs.
pub(crate) fn run_many_seeds(
    test: &str,
    seeds: u64,
    run_one: impl Fn(u64, bool) -> Report + Sync,
    min_counts: &[(&'static str, u64)],
) -> BTreeMap<&'static str, u64> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    if let Some(seed) = number("LEASEHOLD_SEED") {
        let report = run_one(seed, true);
        println!("{test}, LEASEHOLD_SEED={seed}\n{}\n{:?}", report.log.join("\n"), report.counts);
        assert!(report.violations.is_empty(), "{:#?}", report.violations);
        return report.counts;
    }
    let requested_seeds = number("LEASEHOLD_SEEDS");
    let seeds = requested_seeds.unwrap_or(if cfg!(feature = "nightly") { seeds * NIGHTLY_FACTOR } else { seeds });
    let next = AtomicU64::new(0);
    let work = || {
        let mut reports = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                return reports;
            }
            reports.push((seed, run_one(seed, false)));
        }
    };
    let mut reports = std::thread::scope(|scope| {
        let other = scope.spawn(work);
        let mut reports = work();
        reports.extend(other.join().expect("no run panics"));
        reports
    });
    reports.sort_by_key(|(seed, _)| *seed);
    let mut counts = BTreeMap::new();
    for (_, report) in &reports {
        for (label, count) in &report.counts {
            *counts.entry(*label).or_default() += count;
        }
    }
    println!("{test}: {seeds} runs, {counts:?}");
    let failed: Vec<_> = reports.iter().filter(|(_, report)| !report.violations.is_empty()).collect();
    if let Some((seed, report)) = failed.first() {
        let shown = &report.violations[..report.violations.len().min(3)];
        panic!(
            "{} of {seeds} runs violated a guarantee; show the first of them with\n\
             LEASEHOLD_SEED={seed} cargo test -p leasehold --all-features --lib {test} -- --nocapture\n{shown:#?}",
            failed.len()
        );
    }
    for (label, min) in min_counts {
        let found = counts.get(label).copied().unwrap_or_default();
        assert!(
            requested_seeds.is_some() || found >= *min,
            "{found} events `{label}`, and at least {min} are needed to show a violation"
        );
    }
    counts
}
