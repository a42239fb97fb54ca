//! What to do after each attempt of an update by version.

use std::time::Duration;

use super::backoff::pause;

/// How often and for how long an update by version is attempted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RetryLimits {
    /// The maximum number of attempts, including the first.
    pub max_attempts: u32,
    /// No further attempt begins after this time.
    pub time_limit: Duration,
    /// The pause after the first conflict. Each further pause is twice the one before, less a
    /// random part of up to half.
    pub first_pause: Duration,
    /// The longest pause between two attempts.
    pub max_pause: Duration,
}

impl Default for RetryLimits {
    fn default() -> Self {
        Self {
            max_attempts: 50,
            time_limit: Duration::from_secs(10),
            first_pause: Duration::from_millis(1),
            max_pause: Duration::from_millis(100),
        }
    }
}

/// How one attempt of an update ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AttemptResult {
    /// The row has the new values.
    Written,
    /// Another client wrote first: this attempt had no effect.
    Conflict,
    /// The attempt failed and had no effect.
    Failed,
    /// The attempt failed, and it is unknown whether it took effect.
    Unknown,
}

/// What the caller does after an attempt of an update.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NextStep {
    /// The update is done.
    Done,
    /// Read and try again after this pause.
    Retry(Duration),
    /// There is too much contention: stop retrying.
    TooContended,
    /// Report the failure.
    Fail,
    /// Report that the outcome is unknown. Another attempt could apply the same change twice.
    Unknown,
}

/// What to do after attempt number `attempt`, counted from 1, ended with `result`. `elapsed` is the
/// time since the first attempt began; `random` (any number) shortens the pause.
pub fn next_step(
    result: AttemptResult,
    attempt: u32,
    elapsed: Duration,
    limits: &RetryLimits,
    random: u32,
) -> NextStep {
    match result {
        AttemptResult::Written => NextStep::Done,
        AttemptResult::Failed => NextStep::Fail,
        AttemptResult::Unknown => NextStep::Unknown,
        AttemptResult::Conflict => {
            let pause = pause(attempt.saturating_sub(1), limits.first_pause, limits.max_pause, random);
            let exceeds_limit = elapsed.saturating_add(pause) > limits.time_limit;
            if attempt >= limits.max_attempts || exceeds_limit {
                NextStep::TooContended
            } else {
                NextStep::Retry(pause)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_end() -> impl Strategy<Value = AttemptResult> {
        prop::sample::select(vec![
            AttemptResult::Written,
            AttemptResult::Conflict,
            AttemptResult::Failed,
            AttemptResult::Unknown,
        ])
    }

    proptest! {
        /// Only a conflict is retried: a change that may have taken effect is not applied twice.
        #[test]
        fn only_a_conflict_is_retried(end in any_end(), tries in 1u32..100, ms in 0u64..20_000, random: u32) {
            let next = next_step(end, tries, Duration::from_millis(ms), &RetryLimits::default(), random);
            if matches!(next, NextStep::Retry(_) | NextStep::TooContended) {
                prop_assert_eq!(end, AttemptResult::Conflict);
            }
            prop_assert_eq!(next == NextStep::Done, end == AttemptResult::Written);
            prop_assert_eq!(next == NextStep::Unknown, end == AttemptResult::Unknown);
        }

        /// However long each attempt takes: never more attempts than allowed, none begins too late,
        /// and the loop always ends.
        #[test]
        fn retries_on_a_permanently_contended_row_stop_in_time(
            tries in 0u32..30, within in 0u64..500, first in 0u64..20, most in 0u64..100,
            costs in prop::collection::vec(0u64..50, 40), random: u32,
        ) {
            let ms = Duration::from_millis;
            let limits = RetryLimits { max_attempts: tries, time_limit: ms(within), first_pause: ms(first), max_pause: ms(most) };
            let (mut elapsed, mut done) = (Duration::ZERO, 0);
            for cost in costs {
                prop_assert!(elapsed <= limits.time_limit);
                done += 1;
                elapsed += ms(cost);
                match next_step(AttemptResult::Conflict, done, elapsed, &limits, random) {
                    NextStep::Retry(rest) => {
                        prop_assert!(rest <= limits.max_pause);
                        elapsed += rest;
                    }
                    other => {
                        prop_assert_eq!(other, NextStep::TooContended);
                        break;
                    }
                }
            }
            prop_assert!(done <= tries.max(1));
        }
    }
}
