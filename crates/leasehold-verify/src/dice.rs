//! The source of every choice in a run: pseudo-random numbers, the same for the same seed.

use std::time::Duration;

/// The golden ratio in 64 bits: its multiples are spread evenly.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A seeded random number generator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dice {
    seed: u64,
    state: u64,
}

impl Dice {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Self {
        Self { seed, state: seed }
    }

    /// The next 64 bits.
    pub fn roll(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        mixed(self.state)
    }

    /// A number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        // The upper half of the product: the numbers are equally likely, up to one in 2^64 / n.
        ((u128::from(self.roll()) * u128::from(n)) >> 64) as u64
    }

    /// A number from `least` to `most`, both included; `least` if `most` is below it.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        let room = most.saturating_sub(least);
        least + if room == u64::MAX { self.roll() } else { self.below(room + 1) }
    }

    /// A duration from `least` to `most`; `least` if `most` is below it.
    pub fn time(&mut self, least: Duration, most: Duration) -> Duration {
        let room = u64::try_from(most.saturating_sub(least).as_nanos()).unwrap_or(u64::MAX);
        least + Duration::from_nanos(self.between(0, room))
    }

    /// True with probability 1 / `n`.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// A random element; `None` only for an empty slice.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        of.get(self.below(of.len() as u64) as usize)
    }

    /// `count` of the numbers below `n`, in ascending order; all of them if there are fewer.
    pub fn some(&mut self, count: usize, n: usize) -> Vec<usize> {
        let mut left: Vec<usize> = (0..n).collect();
        while left.len() > count {
            let at = self.below(left.len() as u64) as usize;
            left.remove(at);
        }
        left
    }

    /// An independent generator for a named purpose: its use does not affect this one. It depends
    /// on the seed and the name, and not on earlier numbers.
    pub fn fork(&self, label: &str) -> Self {
        let seed = label.bytes().fold(mixed(self.seed ^ STEP), |seed, byte| mixed(seed ^ u64::from(byte)));
        Self::new(seed)
    }
}

/// Every output bit depends on every input bit (splitmix64).
fn mixed(state: u64) -> u64 {
    let state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_known_answers_of_splitmix64() {
        let mut dice = Dice::new(1_234_567);
        let first = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([dice.roll(), dice.roll(), dice.roll()], first);
    }

    #[test]
    fn every_side_comes_up_about_as_often() {
        let mut dice = Dice::new(7);
        let mut sides = [0_u32; 6];
        for _ in 0..60_000 {
            sides[dice.below(6) as usize] += 1;
        }
        assert!(sides.iter().all(|count| (9_600..10_400).contains(count)), "{sides:?}");
    }

    #[test]
    fn a_fork_depends_on_the_seed_and_its_name_only() {
        let mut dice = Dice::new(1);
        let before = dice.fork("faults");
        dice.roll();
        assert_eq!(dice.fork("faults"), before);
        assert_ne!(dice.fork("load"), before);
        assert_ne!(Dice::new(2).fork("faults"), before);
        assert_ne!(before, Dice::new(1));
    }

    #[test]
    fn nothing_to_choose_from() {
        let mut dice = Dice::new(1);
        assert_eq!((dice.below(0), dice.between(5, 3), dice.pick::<u8>(&[])), (0, 5, None));
        assert_eq!(dice.time(Duration::from_secs(2), Duration::ZERO), Duration::from_secs(2));
        assert!(dice.some(3, 0).is_empty());
    }

    proptest! {
        #[test]
        fn what_comes_is_in_its_bounds_and_comes_again(seed: u64, least: u64, most: u64) {
            let (mut one, mut two) = (Dice::new(seed), Dice::new(seed));
            let (least, most) = (least.min(most), least.max(most));
            prop_assert!((least..=most).contains(&one.between(least, most)));
            two.between(least, most);
            let some = one.some(2, 5);
            prop_assert_eq!(some.len(), 2);
            prop_assert!(some[0] < some[1] && some[1] < 5);
            prop_assert_eq!(two.some(2, 5), some);
            prop_assert_eq!(one, two);
        }
    }
}
