//! How long a grant is valid, and when to renew it.

use std::time::Duration;

use crate::types::{Instant, nanos};

/// The safety margin by which a holder's deadline precedes the end of its lease at the engine: for
/// the drift between two clocks, and for the time that the signal of a loss takes.
///
/// ```
/// use std::time::Duration;
/// use leasehold::engine::{Capabilities, Drift};
///
/// // An engine whose server's clock is known to run within 0.1 % of ours.
/// let mut capabilities = Capabilities::exclusive_only("mine");
/// capabilities.drift = Drift { ppm: 1_000, fixed: Duration::from_millis(2) };
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Drift {
    /// The part of the margin that grows with the TTL, in parts per million of it.
    pub ppm: u32,
    /// The fixed part of the margin.
    pub fixed: Duration,
}

impl Drift {
    /// The margin for engines with a clock of their own: 1 % of the TTL and 2 ms.
    pub const REMOTE: Self = Self { ppm: 10_000, fixed: Duration::from_millis(2) };
    /// The margin for engines that read this process's clock: 5 ms for the signal of a loss.
    pub const SAME_CLOCK: Self = Self { ppm: 0, fixed: Duration::from_millis(5) };

    /// The margin for a lease of `ttl`.
    pub fn margin_for(self, ttl: Duration) -> Duration {
        if self.ppm == 0 {
            return self.fixed;
        }
        self.fixed.saturating_add(Duration::from_nanos((nanos(ttl) / 1_000_000).saturating_mul(u64::from(self.ppm))))
    }
}

/// The holder's deadline for a lease that ends at `expires_at`: earlier by the margin, and at most
/// `max_deadline`.
pub fn deadline(expires_at: Instant, drift: Drift, ttl: Duration, max_deadline: Instant) -> Instant {
    expires_at.saturating_sub(drift.margin_for(ttl)).min(max_deadline)
}

/// When to renew a lease of `ttl` that was last confirmed by a request sent at `sent`: after a
/// third of the TTL. `jitter` (any number) moves it earlier by up to a tenth of that third, so that
/// many leases do not renew at once. The result lies on a grid, so that leases due at about the
/// same time are renewed in one batch.
pub fn renew_at(sent: Instant, ttl: Duration, jitter: u32) -> Instant {
    let ttl = nanos(ttl);
    let third = ttl / 3;
    // `shortened_by` is this tenth times `jitter` / 2^32, without a 128-bit product.
    let tenth = third / 10;
    let shortened_by = (tenth >> 32) * u64::from(jitter) + (((tenth & 0xFFFF_FFFF) * u64::from(jitter)) >> 32);
    let due = sent.as_nanos().saturating_add(third - shortened_by);
    // The largest power of two within a fortieth of the TTL.
    let grid = 1 << (ttl / 40).max(1).ilog2();
    Instant::from_nanos(due & !(grid - 1)).max(sent)
}

/// When to renew a lease that is due at `due`: at the latest halfway from `sent` to its deadline,
/// for a lease that is shorter than its TTL.
pub fn limit_renew_at(due: Instant, sent: Instant, deadline: Instant) -> Instant {
    due.min(sent.saturating_add(deadline.duration_since(sent) / 2))
}

/// When to retry a renewal that did not extend the lease: after a quarter of the time left. Several
/// retries fit before the deadline, and the pause never gets so short that they flood the engine.
pub fn retry_at(now: Instant, deadline: Instant, ttl: Duration) -> Instant {
    let left = deadline.duration_since(now);
    let pause = (left / 4).clamp(Duration::from_millis(5), (ttl / 10).max(Duration::from_millis(5)));
    now.saturating_add(pause)
}

/// The timeout of one call to an engine about a lease of `ttl`: a third of it, between 50 ms and 5
/// s, so that a renewal can be retried before the lease ends.
pub fn call_timeout(ttl: Duration) -> Duration {
    (ttl / 3).clamp(Duration::from_millis(50), Duration::from_secs(5))
}

/// How long an engine that renews a batch one lease at a time waits for each answer. This is
/// shorter than the keeper's timeout for the whole batch, so that one lease without an answer does
/// not delay the others.
pub fn renewal_timeout(ttls: impl Iterator<Item = Duration>) -> Duration {
    ttls.map(call_timeout).min().unwrap_or_default() * 3 / 4
}

/// The time between two heartbeats of a waiter: a third of the TTL, so that its queue position
/// survives a lost heartbeat.
pub fn heartbeat_interval(ttl: Duration) -> Duration {
    (ttl / 3).max(Duration::from_millis(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn instant() -> impl Strategy<Value = Instant> {
        (0u64..1 << 60).prop_map(Instant::from_nanos)
    }

    fn ttl() -> impl Strategy<Value = Duration> {
        (20u64..86_400_000).prop_map(Duration::from_millis)
    }

    proptest! {
        #[test]
        fn the_holders_deadline_comes_before_another_grant(
            sent in instant(), delay in 0u64..1 << 40, ttl in ttl(), rate_ppm in 0u32..10_000,
        ) {
            // The engine starts counting `delay` after this client sent the request, on a clock
            // that runs up to 1 % fast.
            let fast = Duration::from_nanos((ttl.as_nanos() * 1_000_000 / u128::from(1_000_000 + rate_ppm)) as u64);
            let granted_to_another = sent.saturating_add(Duration::from_nanos(delay)).saturating_add(fast);
            let own_deadline = deadline(sent.saturating_add(ttl), Drift::REMOTE, ttl, Instant::NEVER);
            prop_assert!(own_deadline < granted_to_another);
        }

        #[test]
        fn a_lease_is_renewed_about_three_times_before_it_ends(sent in instant(), ttl in ttl(), jitter: u32) {
            let due = renew_at(sent, ttl, jitter);
            prop_assert!(due <= sent.saturating_add(ttl / 3));
            prop_assert!(due >= sent.saturating_add(ttl / 4));
        }

        #[test]
        fn the_retry_interval_shrinks_with_the_remaining_lease_and_is_never_zero(now in instant(), left in 0u64..1 << 40, ttl in ttl()) {
            let deadline = now.saturating_add(Duration::from_nanos(left));
            let at = retry_at(now, deadline, ttl);
            prop_assert!(at > now);
            prop_assert!(at.duration_since(now) <= (ttl / 10).max(Duration::from_millis(5)));
        }

        #[test]
        fn no_lease_exceeds_its_max_deadline(sent in instant(), ttl in ttl(), cap in instant()) {
            prop_assert!(deadline(sent.saturating_add(ttl), Drift::SAME_CLOCK, ttl, cap) <= cap);
        }
    }
}
