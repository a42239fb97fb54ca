//! How long to wait before another try.

use std::time::Duration;

/// The pause before try number `attempt` (from 0): doubling from `first` up to `most`, of which a random half is taken
/// off by `dice` (any number), so that contenders do not collide for ever.
pub fn pause(attempt: u32, first: Duration, most: Duration, dice: u32) -> Duration {
    let full = first.saturating_mul(1u32.checked_shl(attempt.min(20)).unwrap_or(u32::MAX)).min(most);
    full - (full / 2).mul_f64(f64::from(dice) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn grows_to_its_bound_and_is_never_nothing(attempt: u32, dice: u32) {
            let (first, most) = (Duration::from_millis(10), Duration::from_secs(1));
            let this = pause(attempt, first, most, dice);
            prop_assert!(this >= first / 2 && this <= most);
            prop_assert!(pause(attempt.saturating_add(1), first, most, 0) >= pause(attempt, first, most, 0));
        }

        #[test]
        fn doubles_until_its_bound(attempt in 0u32..40, first in 1u64..100, dice: u32) {
            let (first, most) = (Duration::from_millis(first), Duration::from_secs(1));
            let (this, next) = (pause(attempt, first, most, dice), pause(attempt + 1, first, most, dice));
            let full = pause(attempt, first, most, 0);
            let near = |a: Duration, b: Duration| a.abs_diff(b) < Duration::from_micros(1);
            if full * 2 <= most {
                prop_assert!(near(next, this * 2), "{this:?}, {next:?}");
            } else {
                prop_assert_eq!(pause(attempt + 1, first, most, 0), most);
            }
        }

        /// Two who failed together come again together only if they have thrown the same.
        #[test]
        fn is_as_random_as_the_dice(attempt in 0u32..40, a: u32, b: u32) {
            let (first, most) = (Duration::from_millis(5), Duration::from_millis(250));
            let (one, other) = (pause(attempt, first, most, a), pause(attempt, first, most, b));
            let full = pause(attempt, first, most, 0);
            let apart = (full / 2).mul_f64(f64::from(a.abs_diff(b)) / f64::from(u32::MAX));
            prop_assert!(one.abs_diff(other).abs_diff(apart) < Duration::from_micros(1), "{one:?} {other:?} {apart:?}");
        }
    }
}
