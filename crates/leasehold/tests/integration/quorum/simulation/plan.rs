//! The plan of a run: the number of participants, and the faults.

use std::time::Duration;

use leasehold::logic::lease::Drift;

use super::chance::Dice;
use crate::quorum::client::Terms;

/// What a node knows after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Restart {
    /// Everything that it had acknowledged.
    Durable,
    /// Nothing: it cools down.
    Abstaining,
    /// Nothing, and it continues without a cool-down.
    Forgetful,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) nodes: usize,
    pub(super) actors: usize,
    /// How many of the first actors have the same owner.
    pub(super) together: usize,
    pub(super) ttl: u64,
    pub(super) drift: Drift,
    /// How far a clock may deviate from true time, in parts per million, either way.
    pub(super) ppm: u64,
    pub(super) restart: Restart,
    /// How many restarts, pauses and jumps of clocks happen while faults last.
    pub(super) restarts: u64,
    pub(super) pauses: u64,
    pub(super) jumps: u64,
    /// Per mille of the messages.
    pub(super) lost: u64,
    pub(super) doubled: u64,
    pub(super) late: u64,
    /// Messages take up to a TTL divided by this.
    pub(super) pace: u64,
    /// Holders keep the lock until the last moment and do not renew, and others retry all the time.
    pub(super) greedy: bool,
    /// How long faults happen.
    pub(super) lasts: u64,
}

impl Plan {
    pub(super) fn draw(dice: &mut Dice) -> Self {
        let ttl = dice.between(200_000, 2_000_000);
        let actors = dice.between(2, 6) as usize;
        Self {
            nodes: if dice.happens(500) { 3 } else { 5 },
            actors,
            together: if dice.happens(500) { dice.between(2, actors as u64 + 1) as usize } else { 0 },
            ttl,
            drift: Drift::REMOTE,
            ppm: 4_900,
            restart: if dice.happens(500) { Restart::Durable } else { Restart::Abstaining },
            restarts: [0, 2, 4, 12][dice.between(0, 4) as usize],
            pauses: dice.between(0, 5),
            jumps: 0,
            lost: dice.between(0, 150),
            doubled: dice.between(0, 100),
            late: dice.between(0, 60),
            pace: 100,
            greedy: false,
            lasts: ttl * 5,
        }
    }

    /// The only faults are those of the clocks, and every lease is used to its end.
    pub(super) fn only_clocks(&mut self) {
        (self.together, self.restarts, self.pauses, self.lost, self.late) = (0, 0, 0, 0, 0);
        (self.pace, self.greedy) = (1000, true);
    }

    pub(super) fn terms(&self) -> Terms {
        Terms { ttl: Duration::from_micros(self.ttl), node_ttl: self.ttl, drift: self.drift }
    }
}
