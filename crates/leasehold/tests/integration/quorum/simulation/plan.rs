//! What a run is like: how many take part, and what goes wrong.

use std::time::Duration;

use leasehold::logic::lease::Drift;

use super::chance::Dice;
use crate::quorum::client::Terms;

/// What a node knows after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Restart {
    /// Everything that it had acknowledged.
    Durable,
    /// Nothing: it abstains.
    Abstaining,
    /// Nothing, and it goes on as if nothing had been.
    Forgetful,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) nodes: usize,
    pub(super) actors: usize,
    /// So many of the first actors are one owner.
    pub(super) together: usize,
    pub(super) ttl: u64,
    pub(super) drift: Drift,
    /// How far a clock may be from true, in parts per million, either way.
    pub(super) ppm: u64,
    pub(super) restart: Restart,
    /// How many restarts, pauses and jumps of clocks there are in so many TTLs.
    pub(super) restarts: u64,
    pub(super) pauses: u64,
    pub(super) jumps: u64,
    /// Per mille of the messages.
    pub(super) lost: u64,
    pub(super) doubled: u64,
    pub(super) late: u64,
    /// Messages take up to a TTL divided by this.
    pub(super) pace: u64,
    /// Holders keep the lock to the last moment, do not renew, and others try again all the time.
    pub(super) greedy: bool,
    /// How long faults go on.
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

    /// Nothing goes wrong but the clocks, and every lease is used to its end.
    pub(super) fn only_clocks(&mut self) {
        (self.together, self.restarts, self.pauses, self.lost, self.late) = (0, 0, 0, 0, 0);
        (self.pace, self.greedy) = (1000, true);
    }

    pub(super) fn terms(&self) -> Terms {
        Terms { ttl: Duration::from_micros(self.ttl), node_ttl: self.ttl, drift: self.drift }
    }
}
