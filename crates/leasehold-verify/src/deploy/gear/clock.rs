//! How far a server's wall clock jumps.
//!
//! A clock that jumps ahead ends leases early. An engine with one clock can then guarantee only its
//! tokens, so that is a separate fault, *ahead*. A clock that is set back must not let a second
//! holder in. So with *clock* and the guard on, a database's clock only goes back, and stays there,
//! because the return would be a jump ahead; with the guard off, it jumps ahead.

use std::time::Duration;

use leasehold_testbed::WallClock;

use crate::deploy::{Setup, Trouble};
use crate::dice::Dice;
use crate::history::FaultKind;

/// The furthest jump, in seconds.
const FURTHEST: u64 = 3600;

/// The clock of one database.
pub(super) struct Hand {
    clock: WallClock,
    /// Seconds ahead of the right time.
    at: i64,
    guard: bool,
    /// The furthest that it may go back in one jump.
    furthest: u64,
    ttl: Duration,
}

impl Hand {
    /// A clock, if it is to jump. `mends`: the engine mends leases that begin in the future, so the
    /// clock may go back by any amount.
    pub(super) fn wanted(setup: &Setup, mends: bool) -> Result<Option<Self>, Trouble> {
        if !setup.wants(FaultKind::Clock) && !setup.wants(FaultKind::Ahead) {
            return Ok(None);
        }
        // A claim whose holder is gone lasts longer by as much as the clock went back. Where
        // holders end, that must be short.
        let alone = setup.faults.iter().all(|fault| *fault == FaultKind::Clock);
        let furthest = if mends || alone { FURTHEST } else { 1 };
        Ok(Some(Self { clock: WallClock::new()?, at: 0, guard: setup.guard, furthest, ttl: setup.ttl }))
    }

    pub(super) fn clock(&self) -> &WallClock {
        &self.clock
    }

    /// Jumps; returns a description of the jump.
    pub(super) fn jump(&mut self, fault: FaultKind, dice: &mut Dice) -> Result<String, Trouble> {
        let is_back = self.guard && fault == FaultKind::Clock;
        let step = if is_back { -signed(dice.between(1, self.furthest)) } else { ahead(self.ttl, dice) };
        self.at += step;
        self.clock.move_to(self.at)?;
        Ok(in_words(step))
    }

    /// A description of where the clock stays.
    pub(super) fn note(&self) -> String {
        format!("it stays {}", in_words(self.at))
    }
}

/// Ahead by more than any lease.
pub(super) fn ahead(ttl: Duration, dice: &mut Dice) -> i64 {
    let least = ttl.as_secs() * 2 + 1;
    signed(dice.between(least, FURTHEST.max(least)))
}

/// Back by up to an hour.
pub(super) fn back(dice: &mut Dice) -> i64 {
    -signed(dice.between(1, FURTHEST))
}

pub(super) fn in_words(seconds: i64) -> String {
    format!("{} s {}", seconds.unsigned_abs(), if seconds < 0 { "back" } else { "ahead" })
}

fn signed(seconds: u64) -> i64 {
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_are_as_far_as_they_may_be() {
        let mut dice = Dice::new(3);
        let ttl = Duration::from_secs(2);
        for _ in 0..1000 {
            assert!((5..=3600).contains(&ahead(ttl, &mut dice)));
            assert!((-3600..=-1).contains(&back(&mut dice)));
        }
        assert_eq!((in_words(-7), in_words(8)), ("7 s back".to_owned(), "8 s ahead".to_owned()));
    }

    #[test]
    fn with_its_guard_on_a_clock_goes_ahead_only_where_that_is_the_fault() {
        let wanted = |faults: &[FaultKind], guard, mends| {
            let setup =
                Setup { faults: faults.to_vec(), guard, ttl: Duration::from_secs(1), apart: false, option: None };
            Hand::wanted(&setup, mends)
        };
        assert!(wanted(&[FaultKind::Kill], true, true).unwrap().is_none());
        let mut dice = Dice::new(3);
        // Without the library there is nothing to test.
        let Ok(Some(mut hand)) = wanted(&[FaultKind::Clock, FaultKind::Kill], true, false) else { return };
        for jumps in 1..5 {
            hand.jump(FaultKind::Clock, &mut dice).unwrap();
            assert_eq!(hand.at, -jumps);
        }
        hand.jump(FaultKind::Ahead, &mut dice).unwrap();
        assert!(hand.at >= -1, "{}", hand.at);
        let mut hand = wanted(&[FaultKind::Clock], false, false).unwrap().unwrap();
        hand.jump(FaultKind::Clock, &mut dice).unwrap();
        assert!(hand.at >= 3);
    }
}
