//! Runs in virtual time, each determined by its seed: thousands of them take seconds. For tests
//! only.
//!
//! `LEASEHOLD_SEED=7` does only this run and shows it event by event; `LEASEHOLD_SEEDS=100000` does
//! this many runs.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "tests: what fails here is the finding")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::random::seeded;

/// Randomness determined by a seed.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x2545_F491_4F6C_DD1D) ^ 0x5DEE_CE66)
    }

    /// A number from `from` up to, but excluding, `to`; `from` if there is none.
    pub(crate) fn between(&mut self, from: u64, to: u64) -> u64 {
        from + seeded::next_u64(&mut self.0) % to.saturating_sub(from).max(1)
    }

    /// Whether an event happens that has this probability, in thousandths.
    pub(crate) fn happens(&mut self, in_a_thousand: u64) -> bool {
        self.between(0, 1000) < in_a_thousand
    }

    /// A time below `max`.
    pub(crate) fn duration(&mut self, max: Duration) -> Duration {
        Duration::from_micros(self.between(0, max.as_micros() as u64))
    }

    pub(crate) fn choose<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.between(0, all.len() as u64) as usize]
    }
}

/// The result of a run: counted events, and breaches of the guarantees.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) counts: BTreeMap<&'static str, u64>,
    pub(crate) violations: Vec<String>,
    pub(crate) log: Vec<String>,
}

impl Report {
    pub(crate) fn count(&mut self, label: &'static str) {
        *self.counts.entry(label).or_default() += 1;
    }
}

/// Runs one simulation, in a new runtime with paused time and with randomness from the seed alone.
pub(crate) fn run_seed<T>(seed: u64, world: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    seeded::set_seed(Some(seed));
    let outcome = runtime.expect("a runtime").block_on(world);
    seeded::set_seed(None);
    outcome
}

/// Does many runs on two threads, or only the requested one. No run may have a breach. Together
/// they must have counted enough of each event that a breach would show.
pub(crate) fn run_many_seeds(
    test: &str,
    seeds: u64,
    run_one: impl Fn(u64, bool) -> Report + Sync,
    enough: &[(&'static str, u64)],
) -> BTreeMap<&'static str, u64> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    if let Some(seed) = number("LEASEHOLD_SEED") {
        let report = run_one(seed, true);
        println!("{test}, LEASEHOLD_SEED={seed}\n{}\n{:?}", report.log.join("\n"), report.counts);
        assert!(report.violations.is_empty(), "{:#?}", report.violations);
        return report.counts;
    }
    let asked = number("LEASEHOLD_SEEDS");
    let seeds = asked.unwrap_or(seeds);
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
    let bad: Vec<_> = reports.iter().filter(|(_, report)| !report.violations.is_empty()).collect();
    if let Some((seed, report)) = bad.first() {
        let shown = &report.violations[..report.violations.len().min(3)];
        panic!(
            "{} of {seeds} runs broke a promise; the first, to be seen with\n\
             LEASEHOLD_SEED={seed} cargo test -p leasehold --all-features --lib {test} -- --nocapture\n{shown:#?}",
            bad.len()
        );
    }
    for (label, min) in enough {
        let found = counts.get(label).copied().unwrap_or_default();
        assert!(asked.is_some() || found >= *min, "it would show: {found} of {label}, and {min} are wanted");
    }
    counts
}
