//! Tests the checker with histories of ten thousand and more operations.

use leasehold_verify::history::Workload;
use leasehold_verify::verdict::SecondOpinion;

use crate::checker::history_builder::header;
use crate::checker::simulation::{SimulationPlan, simulate};

#[test]
fn ten_thousand_operations_by_fifty_workers() {
    let history =
        simulate(header(Workload::Fenced), &SimulationPlan { seed: 7, workers: 50, calls: 10_000, has_faults: true });
    let verdict = history.check();
    assert_eq!(verdict.violations, Vec::new());
    assert!(verdict.counts.calls >= 10_000 && verdict.counts.workers >= 50);
    assert_eq!(verdict.second_opinion, SecondOpinion::Agrees);
}

#[test]
fn a_hundred_thousand_operations_are_checked_without_porcupine() {
    // So long that a checker with quadratic running time would not finish in time.
    let history =
        simulate(header(Workload::Fenced), &SimulationPlan { seed: 8, workers: 50, calls: 100_000, has_faults: true });
    let verdict = history.check();
    assert_eq!(verdict.violations, Vec::new());
    assert_eq!(verdict.second_opinion, SecondOpinion::None);
}
