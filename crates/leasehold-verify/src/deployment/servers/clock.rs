//! Moves a server's wall clock.
//!
//! With the fault *clock*, the clock is set back, which must not lead to a second holder. It stays
//! there, because the return would be a jump ahead. In a negative control it jumps ahead instead.
//!
//! With the fault *ahead*, the clock jumps ahead, which ends leases early. Then an engine with one
//! clock guarantees only its tokens.

use std::time::Duration;

use leasehold_testbed::WallClock;

use crate::deployment::{DeploymentOptions, RunError};
use crate::history::FaultKind;
use crate::rng::Rng;

/// The furthest jump, in seconds.
const MAX_JUMP_SECONDS: u64 = 3600;

/// The wall clock of one server.
pub(super) struct ServerClock {
    clock: WallClock,
    /// How many seconds it is ahead of the right time; negative: behind it.
    offset_seconds: i64,
    /// Whether the fault `clock` sets it back; `false`: a negative control, in which it jumps
    /// ahead.
    has_safeguards: bool,
    /// The furthest that it may go back in one jump, in seconds.
    max_jump_back: u64,
    ttl: Duration,
}

impl ServerClock {
    /// A clock for a server; `None`: no fault moves it. With `repairs_future_leases`, the engine
    /// repairs leases that begin in the future, so the clock may go back far.
    pub(super) fn for_options(
        options: &DeploymentOptions,
        repairs_future_leases: bool,
    ) -> Result<Option<Self>, RunError> {
        if !options.has_fault(FaultKind::Clock) && !options.has_fault(FaultKind::Ahead) {
            return Ok(None);
        }
        // A claim of a killed holder lasts longer by as much as the clock goes back. If holders may
        // be killed, that must be short.
        let only_clock_faults = options.faults.iter().all(|fault| *fault == FaultKind::Clock);
        let furthest = if repairs_future_leases || only_clock_faults { MAX_JUMP_SECONDS } else { 1 };
        Ok(Some(Self {
            clock: WallClock::new()?,
            offset_seconds: 0,
            has_safeguards: options.has_safeguards,
            max_jump_back: furthest,
            ttl: options.ttl,
        }))
    }

    /// The clock to start the server with.
    pub(super) fn clock(&self) -> &WallClock {
        &self.clock
    }

    /// Moves the clock; returns a description of the jump, such as `7 s back`.
    pub(super) fn jump(&mut self, fault: FaultKind, rng: &mut Rng) -> Result<String, RunError> {
        let is_back = self.has_safeguards && fault == FaultKind::Clock;
        let step =
            if is_back { -signed(rng.in_range(1, self.max_jump_back)) } else { jump_ahead_seconds(self.ttl, rng) };
        self.offset_seconds += step;
        self.clock.set_offset(self.offset_seconds)?;
        Ok(describe_offset(step))
    }

    /// A note on how far the clock stays from the right time.
    pub(super) fn offset_note(&self) -> String {
        format!("it stays {}", describe_offset(self.offset_seconds))
    }
}

/// A random jump ahead in seconds, longer than any lease.
pub(super) fn jump_ahead_seconds(ttl: Duration, rng: &mut Rng) -> i64 {
    let least = ttl.as_secs() * 2 + 1;
    signed(rng.in_range(least, MAX_JUMP_SECONDS.max(least)))
}

/// A random jump back in seconds, of at most an hour; negative.
pub(super) fn jump_back_seconds(rng: &mut Rng) -> i64 {
    -signed(rng.in_range(1, MAX_JUMP_SECONDS))
}

/// An offset in words: `7 s back`, `8 s ahead`.
pub(super) fn describe_offset(seconds: i64) -> String {
    format!("{} s {}", seconds.unsigned_abs(), if seconds < 0 { "back" } else { "ahead" })
}

fn signed(seconds: u64) -> i64 {
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_stay_within_their_bounds() {
        let mut rng = Rng::new(3);
        let ttl = Duration::from_secs(2);
        for _ in 0..1000 {
            assert!((5..=3600).contains(&jump_ahead_seconds(ttl, &mut rng)));
            assert!((-3600..=-1).contains(&jump_back_seconds(&mut rng)));
        }
        assert_eq!((describe_offset(-7), describe_offset(8)), ("7 s back".to_owned(), "8 s ahead".to_owned()));
    }

    #[test]
    fn a_clock_jumps_ahead_only_for_the_fault_ahead_or_in_a_negative_control() {
        let clock_for = |faults: &[FaultKind], has_safeguards, repairs_future_leases| {
            let options = DeploymentOptions {
                faults: faults.to_vec(),
                has_safeguards,
                ttl: Duration::from_secs(1),
                isolates_workers: false,
                option: None,
            };
            ServerClock::for_options(&options, repairs_future_leases)
        };
        assert!(clock_for(&[FaultKind::Kill], true, true).unwrap().is_none());
        let mut rng = Rng::new(3);
        // Without libfaketime on this machine, skip the test.
        let Ok(Some(mut clock)) = clock_for(&[FaultKind::Clock, FaultKind::Kill], true, false) else { return };
        for jumps in 1..5 {
            clock.jump(FaultKind::Clock, &mut rng).unwrap();
            assert_eq!(clock.offset_seconds, -jumps);
        }
        clock.jump(FaultKind::Ahead, &mut rng).unwrap();
        assert!(clock.offset_seconds >= -1, "{}", clock.offset_seconds);
        let mut clock = clock_for(&[FaultKind::Clock], false, false).unwrap().unwrap();
        clock.jump(FaultKind::Clock, &mut rng).unwrap();
        assert!(clock.offset_seconds >= 3);
    }
}
