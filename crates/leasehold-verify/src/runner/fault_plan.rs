//! Plans which fault happens when; the plan depends only on the seed and its other arguments.

use crate::history::FaultKind;
use crate::rng::Rng;

/// A planned fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlannedFault {
    /// When it begins, as a fraction of the run from 0 to 1.
    pub starts_at: f64,
    /// The kind of the fault.
    pub kind: FaultKind,
}

/// Spreads `count` faults over a run, each kind about equally often, in an order and at times that
/// depend on the seed. The last fifth of the run has no faults, so that the recovery is visible.
pub fn plan_faults(kinds: &[FaultKind], count: usize, seed: u64) -> Vec<PlannedFault> {
    if kinds.is_empty() {
        return Vec::new();
    }
    let mut rng = Rng::new(seed).fork("schedule");
    let mut bag: Vec<FaultKind> = Vec::new();
    let each = 0.8 / count.max(1) as f64;
    (0..count)
        .map(|number| {
            if bag.is_empty() {
                bag = kinds.to_vec();
            }
            let kind = bag.swap_remove(rng.below(bag.len() as u64) as usize);
            let within = 0.2 + 0.6 * (rng.below(1000) as f64 / 1000.0);
            PlannedFault { starts_at: each * (number as f64 + within), kind }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_occurs_once_before_any_repeats_and_none_in_the_last_fifth() {
        for seed in 0..200 {
            let plan = plan_faults(FaultKind::ALL, 2 * FaultKind::ALL.len(), seed);
            let (first, second) = plan.split_at(FaultKind::ALL.len());
            for half in [first, second] {
                let mut kinds: Vec<_> = half.iter().map(|planned| planned.kind).collect();
                kinds.sort_unstable();
                assert_eq!(kinds, FaultKind::ALL);
            }
            assert!(plan.windows(2).all(|pair| pair[0].starts_at < pair[1].starts_at));
            assert!(plan.iter().all(|planned| (0.0..0.8).contains(&planned.starts_at)));
            assert_eq!(plan, plan_faults(FaultKind::ALL, 2 * FaultKind::ALL.len(), seed));
        }
        assert_ne!(plan_faults(FaultKind::ALL, 5, 1), plan_faults(FaultKind::ALL, 5, 2));
        assert_eq!(plan_faults(&[], 5, 1), []);
    }
}
