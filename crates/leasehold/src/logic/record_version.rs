//! The versions of a record: they rise over everything that is ever written under its name.
//!
//! | event | consequence |
//! |---|---|
//! | two clients write over the same version | the second write finds another version and has no effect |
//! | a write arrives late, after the record was removed and created again | the new version is higher than all before: the write has no effect |
//! | the engine no longer has a record that was removed long ago | versions start at the engine's clock in microseconds, above all versions that it gave out before |
//! | the engine's clock was set back | versions continue one by one from the highest that the engine knows |

use std::time::Duration;

/// The longest value of a record, in bytes.
pub const MAX_RECORD: usize = 64 * 1024;

/// The version that a write gives to a record. `last` is the highest version that the engine knows,
/// of this name or of all names; zero if it knows none. `now` is the engine's clock: time since
/// 1970.
pub fn next_version(last: u64, now: Duration) -> u64 {
    let clock = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
    last.saturating_add(1).max(clock)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn versions_rise_for_any_clock(clocks in prop::collection::vec(0u64..1 << 53, 1..50)) {
            let mut last = 0;
            for clock in clocks {
                let next = next_version(last, Duration::from_micros(clock));
                prop_assert!(next > last && next >= clock);
                last = next;
            }
        }

        /// Versions still rise after the engine lost a record, unless it wrote faster than one
        /// version per microsecond.
        #[test]
        fn versions_rise_after_a_loss_of_data(clock in 1u64..1 << 53, later in 1u64..1 << 20) {
            let before = next_version(0, Duration::from_micros(clock));
            prop_assert!(next_version(0, Duration::from_micros(clock + later)) > before);
        }
    }
}
