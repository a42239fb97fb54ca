//! Versions of a record: which one a write must find, and which one it leaves.
//!
//! | what if | then |
//! |---|---|
//! | two write over the same version | the second finds another one, and writes nothing |
//! | a writer comes late, after the record was removed and made again | the new one's version is higher than any before: it writes nothing |
//! | the engine forgot that there ever was one (it was removed long ago) | versions start at its clock's microseconds, above all that it gave before |
//! | its clock was set back | versions go on one by one from the highest that is remembered |

use std::time::Duration;

/// The longest value of a record, in bytes.
pub const MAX_RECORD: usize = 64 * 1024;

/// The version that a write leaves. `last` is the highest that the engine knows of, of this name or of all; zero if of none.
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
        fn versions_rise_whatever_the_clock_does(clocks in prop::collection::vec(0u64..1 << 53, 1..50)) {
            let mut last = 0;
            for clock in clocks {
                let next = next_version(last, Duration::from_micros(clock));
                prop_assert!(next > last && next >= clock);
                last = next;
            }
        }

        /// What was forgotten does not come back, if it was not written faster than the clock goes.
        #[test]
        fn versions_rise_over_what_was_forgotten(clock in 1u64..1 << 53, later in 1u64..1 << 20) {
            let before = next_version(0, Duration::from_micros(clock));
            prop_assert!(next_version(0, Duration::from_micros(clock + later)) > before);
        }
    }
}
