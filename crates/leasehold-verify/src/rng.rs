//! Pseudo-random numbers, the same for the same seed: the source of every random choice in a test
//! run.

use std::time::Duration;

/// The increment of the generator's state: the golden ratio in 64 bits, whose multiples are spread
/// evenly.
const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// A seeded random number generator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rng {
    /// The seed, from which [`fork`](Self::fork) makes other seeds.
    seed: u64,
    state: u64,
}

impl Rng {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Self {
        Self { seed, state: seed }
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN_GAMMA);
        mix(self.state)
    }

    /// A random number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        // The upper half of the product is almost equally likely to be any number below n.
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// A random number from `min` to `max`, both included; `min` if `max` is below it.
    pub fn in_range(&mut self, min: u64, max: u64) -> u64 {
        let range = max.saturating_sub(min);
        min + if range == u64::MAX { self.next_u64() } else { self.below(range + 1) }
    }

    /// A random duration from `min` to `max`; `min` if `max` is below it.
    pub fn duration_in(&mut self, min: Duration, max: Duration) -> Duration {
        let range = u64::try_from(max.saturating_sub(min).as_nanos()).unwrap_or(u64::MAX);
        min + Duration::from_nanos(self.in_range(0, range))
    }

    /// True with probability 1 / `n`.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// A random item; `None` if there are none.
    pub fn choose<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        items.get(self.below(items.len() as u64) as usize)
    }

    /// A random selection of `count` numbers below `n`, in ascending order; all of them if there
    /// are fewer.
    pub fn choose_indices(&mut self, count: usize, n: usize) -> Vec<usize> {
        let mut left: Vec<usize> = (0..n).collect();
        while left.len() > count {
            let at = self.below(left.len() as u64) as usize;
            left.remove(at);
        }
        left
    }

    /// An independent generator for the purpose `label`. Its numbers depend only on the seed and
    /// the label, and not on how many numbers were drawn here before.
    pub fn fork(&self, label: &str) -> Self {
        let seed = label.bytes().fold(mix(self.seed ^ GOLDEN_GAMMA), |seed, byte| mix(seed ^ u64::from(byte)));
        Self::new(seed)
    }
}

/// The output function of splitmix64: every output bit depends on every input bit.
fn mix(state: u64) -> u64 {
    let state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Duration, Rng};

    #[test]
    fn the_first_numbers_are_those_of_splitmix64() {
        let mut rng = Rng::new(1_234_567);
        let first = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([rng.next_u64(), rng.next_u64(), rng.next_u64()], first);
    }

    #[test]
    fn numbers_below_a_bound_are_uniform() {
        let mut rng = Rng::new(7);
        let mut sides = [0_u32; 6];
        for _ in 0..60_000 {
            sides[rng.below(6) as usize] += 1;
        }
        assert!(sides.iter().all(|count| (9_600..10_400).contains(count)), "{sides:?}");
    }

    #[test]
    fn a_fork_depends_on_the_seed_and_its_name_only() {
        let mut rng = Rng::new(1);
        let before = rng.fork("faults");
        rng.next_u64();
        assert_eq!(rng.fork("faults"), before);
        assert_ne!(rng.fork("load"), before);
        assert_ne!(Rng::new(2).fork("faults"), before);
        assert_ne!(before, Rng::new(1));
    }

    #[test]
    fn an_empty_range_yields_its_lower_bound() {
        let mut rng = Rng::new(1);
        assert_eq!((rng.below(0), rng.in_range(5, 3), rng.choose::<u8>(&[])), (0, 5, None));
        assert_eq!(rng.duration_in(Duration::from_secs(2), Duration::ZERO), Duration::from_secs(2));
        assert!(rng.choose_indices(3, 0).is_empty());
    }

    proptest! {
        #[test]
        fn numbers_are_within_bounds_and_repeat_for_a_seed(seed: u64, least: u64, most: u64) {
            let (mut one, mut two) = (Rng::new(seed), Rng::new(seed));
            let (least, most) = (least.min(most), least.max(most));
            prop_assert!((least..=most).contains(&one.in_range(least, most)));
            two.in_range(least, most);
            let some = one.choose_indices(2, 5);
            prop_assert_eq!(some.len(), 2);
            prop_assert!(some[0] < some[1] && some[1] < 5);
            prop_assert_eq!(two.choose_indices(2, 5), some);
            prop_assert_eq!(one, two);
        }
    }
}
