//! Negative controls: test runs with one safeguard turned off, in which the checker must find a
//! violation.

use std::time::Duration;

use crate::deployment::LocalEngine;
use crate::history::{FaultKind, Workload};
use crate::runner::EngineTarget;
use crate::verdict::Guarantee;
use crate::worker::LockImplementation;

/// A negative control, named after what replaces the safeguard that is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NegativeControl {
    /// The resource checks no fencing tokens.
    NoFencing,
    /// Locks are plain `SET NX PX` keys, and the master is replaced by a replica that lacks them.
    PlainSet,
    /// Redlock's nodes restart empty and vote again at once, without a cool-down.
    EmptyNodes,
    /// Holders decide by the wall clock, which is set back, whether they still hold the lock.
    WallClock,
    /// The Redis server may evict lock keys when its memory is full.
    KeyEviction,
}

impl NegativeControl {
    /// Every negative control.
    pub const ALL: [Self; 5] = [Self::NoFencing, Self::PlainSet, Self::EmptyNodes, Self::WallClock, Self::KeyEviction];

    /// The negative control for a run with this engine, workload and faults.
    ///
    /// # Errors
    /// If there is none: the message lists the runs that have one.
    pub fn for_run(target: &EngineTarget, workload: Workload, faults: &[FaultKind]) -> Result<Self, String> {
        let redis = matches!(target, EngineTarget::Local(LocalEngine::Redis));
        let replaced = matches!(target, EngineTarget::Local(LocalEngine::RedisSentinel));
        let only = |kind| faults == [kind];
        // With `memory:` all workers share one process and are stopped together, so no other worker
        // can write while a holder is stopped.
        if !target.is_in_memory()
            && matches!(workload, Workload::Fenced | Workload::Unfenced | Workload::Counter)
            && only(FaultKind::Stop)
        {
            return Ok(Self::NoFencing);
        }
        match target {
            _ if replaced && only(FaultKind::Failover) => Ok(Self::PlainSet),
            _ if redis && only(FaultKind::Clock) => Ok(Self::WallClock),
            _ if redis && only(FaultKind::Evict) => Ok(Self::KeyEviction),
            EngineTarget::Local(LocalEngine::Redlock) if only(FaultKind::Wipe) => Ok(Self::EmptyNodes),
            _ => Err(Self::list_controls()),
        }
    }

    /// The error message that lists the runs with a negative control.
    fn list_controls() -> String {
        let mut text = "this run has no safeguard to turn off; --guard off works with:".to_owned();
        for control in Self::ALL {
            let (engine, workload, fault) = control.example_run();
            text.push_str(&format!(
                "\n  --guard off --local {engine} --workload {workload} --faults {fault}: {}",
                control.description()
            ));
        }
        text
    }

    /// The engine, workload and fault of a run that demonstrates the control.
    pub fn example_run(self) -> (LocalEngine, Workload, FaultKind) {
        match self {
            Self::NoFencing => (LocalEngine::Redis, Workload::Unfenced, FaultKind::Stop),
            Self::PlainSet => (LocalEngine::RedisSentinel, Workload::Mutex, FaultKind::Failover),
            Self::EmptyNodes => (LocalEngine::Redlock, Workload::Mutex, FaultKind::Wipe),
            Self::WallClock => (LocalEngine::Redis, Workload::Mutex, FaultKind::Clock),
            Self::KeyEviction => (LocalEngine::Redis, Workload::Mutex, FaultKind::Evict),
        }
    }

    /// The guarantees of which the run must break at least one; other violations do not count.
    pub(super) fn broken_guarantees(self) -> &'static [Guarantee] {
        match self {
            Self::NoFencing => &[Guarantee::Fencing, Guarantee::Counter],
            _ => &[Guarantee::Exclusion],
        }
    }

    /// What is wrong in the run, in words.
    pub fn description(self) -> &'static str {
        match self {
            Self::NoFencing => "the resource checks no tokens",
            Self::PlainSet => "plain SET NX PX, and a replica without the key replaces the master",
            Self::EmptyNodes => "Redlock's nodes restart empty and vote again at once",
            Self::WallClock => "holders use the wall clock to decide whether they hold",
            Self::KeyEviction => "the server may evict locks when its memory is full",
        }
    }

    /// Whether the servers run without their safeguard; otherwise the workers or the resource do.
    pub(super) fn misconfigures_servers(self) -> bool {
        matches!(self, Self::PlainSet | Self::EmptyNodes | Self::KeyEviction)
    }

    /// Whether a fault of this kind hits the workers instead of the servers.
    pub(super) fn redirects_fault_to_workers(self, kind: FaultKind) -> bool {
        self == Self::WallClock && kind == FaultKind::Clock
    }

    /// How long every lock is held: until the server has lost it, or longer than its lease. `None`:
    /// the same random times as in other runs.
    pub(super) fn hold_time(self, ttl: Duration) -> Option<Duration> {
        match self {
            Self::NoFencing => None,
            Self::WallClock => Some(ttl * 2),
            Self::PlainSet | Self::EmptyNodes | Self::KeyEviction => Some(ttl * 9 / 10),
        }
    }

    /// The TTL that leaves enough time for the violation; `None`: the engine's default.
    pub(super) fn required_ttl(self) -> Option<Duration> {
        match self {
            Self::KeyEviction => Some(Duration::from_secs(2)),
            // The servers must be back, or replaced, and must have granted the lock to others long
            // before the TTL ends.
            Self::EmptyNodes => Some(Duration::from_secs(9)),
            Self::PlainSet => Some(Duration::from_secs(10)),
            _ => None,
        }
    }

    /// Whether all holders are stopped during the fault. A running holder would notice its closed
    /// connections and write its lock to the empty nodes again, often before another worker
    /// acquires it.
    pub(super) fn stops_holders(self) -> bool {
        self == Self::EmptyNodes
    }

    /// Whether each fault begins just after a grant, so that the holder still relies on the lost
    /// lease for long.
    pub(super) fn starts_faults_at_a_grant(self) -> bool {
        matches!(self, Self::PlainSet | Self::EmptyNodes)
    }

    /// How many calls and how many faults a run needs to demonstrate it.
    pub fn run_size(self) -> (u64, usize) {
        match self {
            // Many: in some faults no other worker writes before the stopped holder continues.
            Self::NoFencing => (300, 6),
            // Many faults: in some, no other worker acquires the lock before the holder checks it.
            Self::KeyEviction => (60, 6),
            // Several faults: a slow machine may restart or replace the servers only after the
            // leases have expired.
            Self::PlainSet | Self::EmptyNodes => (20, 3),
            Self::WallClock => (20, 2),
        }
    }

    /// How the workers acquire locks.
    pub(super) fn lock_implementation(self) -> LockImplementation {
        match self {
            Self::PlainSet => LockImplementation::PlainSet,
            Self::WallClock => LockImplementation::WallClock,
            _ => LockImplementation::Leasehold,
        }
    }
}
