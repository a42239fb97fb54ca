//! What to do after each attempt of an update by version.

use std::time::Duration;

use super::backoff::pause;

/// How often and for how long to try.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The maximum number of attempts, including the first.
    pub tries: u32,
    /// No further attempt begins after this time.
    pub within: Duration,
    /// The pause after the first conflict. Each further pause is twice as long, minus a random
    /// half.
    pub first: Duration,
    /// The longest pause.
    pub most: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            tries: 50,
            within: Duration::from_secs(10),
            first: Duration::from_millis(1),
            most: Duration::from_millis(100),
        }
    }
}

/// How one attempt ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tried {
    /// The row has the new values.
    Written,
    /// Another client wrote first: this attempt changed nothing.
    Conflict,
    /// It failed and changed nothing.
    Failed,
    /// It failed, and it is unknown whether it took effect.
    Unknown,
}

/// What to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// The update is done.
    Done,
    /// Read and try again after this pause.
    Again(Duration),
    /// Give up: there is too much contention.
    TooContended,
    /// Report the failure.
    Fail,
    /// Report that the outcome is unknown. Another attempt could apply the same change twice.
    Unknown,
}

/// What to do after attempt number `tries` (from 1) ended with `tried`, `elapsed` after the first
/// attempt began.
pub fn next(tried: Tried, tries: u32, elapsed: Duration, limits: &Limits, dice: u32) -> Next {
    match tried {
        Tried::Written => Next::Done,
        Tried::Failed => Next::Fail,
        Tried::Unknown => Next::Unknown,
        Tried::Conflict => {
            let rest = pause(tries.saturating_sub(1), limits.first, limits.most, dice);
            let late = elapsed.saturating_add(rest) > limits.within;
            if tries >= limits.tries || late { Next::TooContended } else { Next::Again(rest) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_end() -> impl Strategy<Value = Tried> {
        prop::sample::select(vec![Tried::Written, Tried::Conflict, Tried::Failed, Tried::Unknown])
    }

    proptest! {
        /// Only a conflict is retried: a change that may have taken effect is not applied twice.
        #[test]
        fn only_a_conflict_is_tried_again(end in any_end(), tries in 1u32..100, ms in 0u64..20_000, dice: u32) {
            let next = next(end, tries, Duration::from_millis(ms), &Limits::default(), dice);
            if matches!(next, Next::Again(_) | Next::TooContended) {
                prop_assert_eq!(end, Tried::Conflict);
            }
            prop_assert_eq!(next == Next::Done, end == Tried::Written);
            prop_assert_eq!(next == Next::Unknown, end == Tried::Unknown);
        }

        /// However long each attempt takes: never more attempts than allowed, none begins too late,
        /// and the loop always ends.
        #[test]
        fn a_row_that_is_always_contended_is_given_up_in_time(
            tries in 0u32..30, within in 0u64..500, first in 0u64..20, most in 0u64..100,
            costs in prop::collection::vec(0u64..50, 40), dice: u32,
        ) {
            let ms = Duration::from_millis;
            let limits = Limits { tries, within: ms(within), first: ms(first), most: ms(most) };
            let (mut elapsed, mut done) = (Duration::ZERO, 0);
            for cost in costs {
                prop_assert!(elapsed <= limits.within);
                done += 1;
                elapsed += ms(cost);
                match next(Tried::Conflict, done, elapsed, &limits, dice) {
                    Next::Again(rest) => {
                        prop_assert!(rest <= limits.most);
                        elapsed += rest;
                    }
                    other => {
                        prop_assert_eq!(other, Next::TooContended);
                        break;
                    }
                }
            }
            prop_assert!(done <= tries.max(1));
        }
    }
}
