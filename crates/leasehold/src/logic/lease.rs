//! Until when a grant may be relied on, and when to renew it.

use std::time::Duration;

use crate::clock::{Moment, nanos};

/// How far two clocks may run apart, and how much time a signal needs: taken off every lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Drift {
    /// Parts per million of the TTL.
    pub ppm: u32,
    /// And this much in any case.
    pub fixed: Duration,
}

impl Drift {
    /// For engines with a clock of their own: 1 % and 2 ms.
    pub const REMOTE: Self = Self { ppm: 10_000, fixed: Duration::from_millis(2) };
    /// For engines that read our own clock: only the time that a signal needs to arrive.
    pub const SAME_CLOCK: Self = Self { ppm: 0, fixed: Duration::from_millis(5) };

    /// What is taken off a lease of `ttl`.
    pub fn of(self, ttl: Duration) -> Duration {
        if self.ppm == 0 {
            return self.fixed;
        }
        self.fixed.saturating_add(Duration::from_nanos((nanos(ttl) / 1_000_000).saturating_mul(u64::from(self.ppm))))
    }
}

/// What an engine says about the length of its grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Validity {
    /// So long, from some moment after the request was sent: only the send time is known to be early enough.
    FromSend(Duration),
    /// Until this moment of our own clock: the engine reads the same one.
    Until(Moment),
}

/// The moment from which the holder must not rely on the grant any more: `sent + ttl - drift`, never later than `cap`.
pub fn deadline(sent: Moment, validity: Validity, drift: Drift, ttl: Duration, cap: Moment) -> Moment {
    let end = match validity {
        Validity::FromSend(lasts) => sent.after(lasts),
        Validity::Until(end) => end,
    };
    end.before(drift.of(ttl)).min(cap)
}

/// When to renew a lease of `ttl` that was last confirmed by a request sent at `sent`: after a third, a little less by
/// `jitter` (any number), so that many leases do not renew at once; on a grid, so that those due together go together.
pub fn renew_at(sent: Moment, ttl: Duration, jitter: u32) -> Moment {
    let ttl = nanos(ttl);
    let third = ttl / 3;
    // A tenth of it times a number below one.
    let tenth = third / 10;
    let less = (tenth >> 32) * u64::from(jitter) + (((tenth & 0xFFFF_FFFF) * u64::from(jitter)) >> 32);
    let due = sent.as_nanos().saturating_add(third - less);
    // The largest power of two within a fortieth of the TTL.
    let grid = 1 << (ttl / 40).max(1).ilog2();
    Moment::from_nanos(due & !(grid - 1)).max(sent)
}

/// Not later than half of what a shorter grant has left.
pub fn renew_in_time(due: Moment, sent: Moment, deadline: Moment) -> Moment {
    due.min(sent.after(deadline.since(sent) / 2))
}

/// When to ask again after an answer that did not extend the lease: a quarter of what is left, so that several tries
/// fit before the deadline, and never a storm.
pub fn retry_at(now: Moment, deadline: Moment, ttl: Duration) -> Moment {
    let left = deadline.since(now);
    let pause = (left / 4).clamp(Duration::from_millis(5), (ttl / 10).max(Duration::from_millis(5)));
    now.after(pause)
}

/// How long one call to an engine may take: short enough that a renewal can be tried again before the lease ends.
pub fn call_timeout(ttl: Duration) -> Duration {
    (ttl / 3).clamp(Duration::from_millis(50), Duration::from_secs(5))
}

/// How long an engine waits for what it hears of each lease of a batch, where they are renewed one by one: less than the keeper waits for the
/// whole, so that one without an answer costs the others nothing.
pub fn renewal_timeout(ttls: impl Iterator<Item = Duration>) -> Duration {
    ttls.map(call_timeout).min().unwrap_or_default() * 3 / 4
}

/// How often a waiter shows that it is alive, so that its place in the queue outlives one lost heartbeat.
pub fn heartbeat(ttl: Duration) -> Duration {
    (ttl / 3).max(Duration::from_millis(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn moment() -> impl Strategy<Value = Moment> {
        (0u64..1 << 60).prop_map(Moment::from_nanos)
    }

    fn ttl() -> impl Strategy<Value = Duration> {
        (20u64..86_400_000).prop_map(Duration::from_millis)
    }

    proptest! {
        #[test]
        fn the_holder_stops_before_the_engine_lets_another_in(
            sent in moment(), delay in 0u64..1 << 40, ttl in ttl(), rate_ppm in 0u32..10_000,
        ) {
            // The engine starts counting `delay` after we sent, on a clock that runs up to 1 % fast.
            let fast = Duration::from_nanos((ttl.as_nanos() * 1_000_000 / u128::from(1_000_000 + rate_ppm)) as u64);
            let granted_to_another = sent.after(Duration::from_nanos(delay)).after(fast);
            let ours = deadline(sent, Validity::FromSend(ttl), Drift::REMOTE, ttl, Moment::NEVER);
            prop_assert!(ours < granted_to_another);
        }

        #[test]
        fn a_lease_is_renewed_about_three_times_before_it_ends(sent in moment(), ttl in ttl(), jitter: u32) {
            let due = renew_at(sent, ttl, jitter);
            prop_assert!(due <= sent.after(ttl / 3));
            prop_assert!(due >= sent.after(ttl / 4));
        }

        #[test]
        fn a_retry_comes_sooner_the_less_is_left_and_never_at_once(now in moment(), left in 0u64..1 << 40, ttl in ttl()) {
            let deadline = now.after(Duration::from_nanos(left));
            let at = retry_at(now, deadline, ttl);
            prop_assert!(at > now);
            prop_assert!(at.since(now) <= (ttl / 10).max(Duration::from_millis(5)));
        }

        #[test]
        fn no_lease_passes_its_cap(sent in moment(), ttl in ttl(), cap in moment()) {
            for validity in [Validity::FromSend(ttl), Validity::Until(sent.after(ttl))] {
                prop_assert!(deadline(sent, validity, Drift::SAME_CLOCK, ttl, cap) <= cap);
            }
        }
    }
}
