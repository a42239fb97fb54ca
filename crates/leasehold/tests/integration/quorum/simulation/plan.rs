//! The plan of a run: the number of participants, and the faults.

use std::time::Duration;

use leasehold::internals::logic::lease::Drift;

use super::rng::Rng;
use crate::quorum::client::LeaseTimes;

/// The data that a node keeps over a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Restart {
    /// Everything that it had acknowledged.
    Durable,
    /// No data; it cools down.
    CoolingDown,
    /// No data; it continues without a cool-down.
    EmptyWithoutCoolDown,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) nodes: usize,
    pub(super) actors: usize,
    /// How many of the first actors have the same owner.
    pub(super) same_owner_actors: usize,
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
    pub(super) lost_per_mille: u64,
    pub(super) doubled_per_mille: u64,
    pub(super) late_per_mille: u64,
    /// Messages take up to a TTL divided by this.
    pub(super) delay_divisor: u64,
    /// Holders keep the lock until the last moment and do not renew, and others retry all the time.
    pub(super) hold_to_the_end: bool,
    /// How long faults happen.
    pub(super) fault_time: u64,
}

impl Plan {
    pub(super) fn random(random: &mut Rng) -> Self {
        let ttl = random.between(200_000, 2_000_000);
        let actors = random.between(2, 6) as usize;
        Self {
            nodes: if random.happens(500) { 3 } else { 5 },
            actors,
            same_owner_actors: if random.happens(500) { random.between(2, actors as u64 + 1) as usize } else { 0 },
            ttl,
            drift: Drift::REMOTE,
            ppm: 4_900,
            restart: if random.happens(500) { Restart::Durable } else { Restart::CoolingDown },
            restarts: [0, 2, 4, 12][random.between(0, 4) as usize],
            pauses: random.between(0, 5),
            jumps: 0,
            lost_per_mille: random.between(0, 150),
            doubled_per_mille: random.between(0, 100),
            late_per_mille: random.between(0, 60),
            delay_divisor: 100,
            hold_to_the_end: false,
            fault_time: ttl * 5,
        }
    }

    /// The only faults are those of the clocks, and every lease is used to its end.
    pub(super) fn keep_only_clock_faults(&mut self) {
        (self.same_owner_actors, self.restarts, self.pauses, self.lost_per_mille, self.late_per_mille) =
            (0, 0, 0, 0, 0);
        (self.delay_divisor, self.hold_to_the_end) = (1000, true);
    }

    pub(super) fn lease_times(&self) -> LeaseTimes {
        LeaseTimes { ttl: Duration::from_micros(self.ttl), node_ttl: self.ttl, drift: self.drift }
    }
}
