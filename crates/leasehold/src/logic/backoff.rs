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
    }
}
