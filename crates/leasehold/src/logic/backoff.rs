//! How long to wait before a retry.

use std::time::Duration;

use crate::types::Instant;

/// The pause after the failed attempt number `attempt`, counted from 0. It doubles from `first` up
/// to `max`. `random` (any number) shortens it by up to half, so that contenders do not keep
/// colliding.
pub fn pause(attempt: u32, first: Duration, max: Duration, random: u32) -> Duration {
    let full = first.saturating_mul(1u32.checked_shl(attempt.min(20)).unwrap_or(u32::MAX)).min(max);
    full - (full / 2).mul_f64(f64::from(random) / f64::from(u32::MAX))
}

/// While a lease is due for renewal, a pause between connection attempts is at most its TTL divided
/// by this. The keeper retries as often.
pub const MAX_PAUSE_DIVISOR: u32 = 10;

/// Limits the pause between two connection attempts while a lease is due for renewal: it cannot be
/// renewed without a connection. The limit ends with the lease, so the number of connection
/// attempts stays bounded.
#[derive(Clone, Copy, Debug, Default)]
pub struct RenewalUrgency {
    /// The shortest TTL of the leases that are due.
    ttl: Duration,
    /// When the last of them ends.
    until: Instant,
}

impl RenewalUrgency {
    /// Stores that a lease with this TTL is due for renewal and ends at `deadline`. Only the
    /// shortest TTL is kept: the keeper retries renewals, so it reports a longer one again.
    pub fn note_renewal(&mut self, now: Instant, ttl: Duration, deadline: Instant) {
        if now >= self.until || ttl < self.ttl {
            *self = Self { ttl, until: deadline };
        } else if ttl == self.ttl {
            self.until = self.until.max(deadline);
        }
    }

    /// The longest pause now: `max`, or less while a lease is due for renewal.
    pub fn max_pause(&self, now: Instant, max: Duration) -> Duration {
        if now >= self.until { max } else { max.min(self.ttl / MAX_PAUSE_DIVISOR) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Leases are renewed in any order, each with its TTL and its remaining time.
        #[test]
        fn pauses_stay_short_relative_to_a_due_lease_and_end_with_it(
            renewals in prop::collection::vec((0u64..500, 100u64..60_000, 1u64..=1000), 1..30),
        ) {
            let max_pause = Duration::from_secs(1);
            let (mut urgency, mut now, mut leases) = (RenewalUrgency::default(), 0, Vec::new());
            for (passed, ttl, left) in renewals {
                now += passed;
                let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
                let (ttl, deadline) = (Duration::from_millis(ttl), now + ttl * left / 1000);
                urgency.note_renewal(at(now), ttl, at(deadline));
                leases.push((ttl, deadline));
                let longest = urgency.max_pause(at(now), max_pause);
                prop_assert!(deadline <= now || longest <= ttl / MAX_PAUSE_DIVISOR);
                prop_assert!(leases.iter().any(|(ttl, _)| longest == max_pause || longest == *ttl / MAX_PAUSE_DIVISOR));
                let last = leases.iter().map(|(_, deadline)| *deadline).max().unwrap_or_default();
                prop_assert_eq!(urgency.max_pause(at(last), max_pause), max_pause);
            }
        }

        #[test]
        fn the_pause_grows_to_its_bound_and_is_never_zero(attempt: u32, random: u32) {
            let (first, max_pause) = (Duration::from_millis(10), Duration::from_secs(1));
            let this = pause(attempt, first, max_pause, random);
            prop_assert!(this >= first / 2 && this <= max_pause);
            prop_assert!(pause(attempt.saturating_add(1), first, max_pause, 0) >= pause(attempt, first, max_pause, 0));
        }

        #[test]
        fn the_pause_doubles_until_its_bound(attempt in 0u32..40, first in 1u64..100, random: u32) {
            let (first, max_pause) = (Duration::from_millis(first), Duration::from_secs(1));
            let (this, next) = (pause(attempt, first, max_pause, random), pause(attempt + 1, first, max_pause, random));
            let full = pause(attempt, first, max_pause, 0);
            let near = |a: Duration, b: Duration| a.abs_diff(b) < Duration::from_micros(1);
            if full * 2 <= max_pause {
                prop_assert!(near(next, this * 2), "{this:?}, {next:?}");
            } else {
                prop_assert_eq!(pause(attempt + 1, first, max_pause, 0), max_pause);
            }
        }

        /// Two clients that failed together retry together only if their random numbers are equal.
        #[test]
        fn equal_pauses_need_equal_random_numbers(attempt in 0u32..40, a: u32, b: u32) {
            let (first, max_pause) = (Duration::from_millis(5), Duration::from_millis(250));
            let (one, other) = (pause(attempt, first, max_pause, a), pause(attempt, first, max_pause, b));
            let full = pause(attempt, first, max_pause, 0);
            let distance = (full / 2).mul_f64(f64::from(a.abs_diff(b)) / f64::from(u32::MAX));
            prop_assert!(one.abs_diff(other).abs_diff(distance) < Duration::from_micros(1), "{one:?} {other:?} {distance:?}");
        }
    }
}
