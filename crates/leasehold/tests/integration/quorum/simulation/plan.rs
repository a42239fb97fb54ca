//! The plan of a run: the number of nodes and actors, and the faults.

use std::time::Duration;

use leasehold::internals::logic::lease::Drift;

use super::rng::Rng;
use crate::quorum::client::LeaseTimes;

/// What a node does when it restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Restart {
    /// It has kept all data that it acknowledged.
    Durable,
    /// It has lost all data, and cools down.
    CoolingDown,
    /// It has lost all data, and continues without a cool-down.
    EmptyWithoutCoolDown,
}

/// The plan of a run. Times are in µs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) nodes: usize,
    pub(super) actors: usize,
    /// How many actors, from the first on, have the same owner; the others have none.
    pub(super) same_owner_actors: usize,
    pub(super) ttl: u64,
    /// The drift that actors deduct from their leases.
    pub(super) drift: Drift,
    /// How far a clock may deviate from true time, in parts per million, either way.
    pub(super) ppm: u64,
    pub(super) restart: Restart,
    /// The number of restarts of nodes.
    pub(super) restarts: u64,
    /// The number of pauses of actors.
    pub(super) pauses: u64,
    /// The number of jumps of nodes' clocks.
    pub(super) jumps: u64,
    /// How many of a thousand messages are lost.
    pub(super) lost_per_mille: u64,
    /// How many of a thousand messages are sent twice.
    pub(super) doubled_per_mille: u64,
    /// How many of a thousand messages are late, by up to one and a half TTLs.
    pub(super) late_per_mille: u64,
    /// The longest delay of an ordinary message is the TTL divided by this.
    pub(super) delay_divisor: u64,
    /// Whether holders keep the lock until their lease ends and do not renew, while others retry
    /// all the time.
    pub(super) hold_to_the_end: bool,
    /// Until when faults happen.
    pub(super) fault_time: u64,
}

impl Plan {
    /// A random plan.
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

    /// Removes all faults but wrong clocks, and makes holders use every lease to its end.
    pub(super) fn keep_only_clock_faults(&mut self) {
        (self.same_owner_actors, self.restarts, self.pauses, self.lost_per_mille, self.late_per_mille) =
            (0, 0, 0, 0, 0);
        (self.delay_divisor, self.hold_to_the_end) = (1000, true);
    }

    pub(super) fn lease_times(&self) -> LeaseTimes {
        LeaseTimes { ttl: Duration::from_micros(self.ttl), node_ttl: self.ttl, drift: self.drift }
    }
}
