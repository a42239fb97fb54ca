//! Negative controls: a safeguard is off, and the checker must detect it.

use std::time::Duration;

use crate::deployment::LocalEngine;
use crate::history::{FaultKind, Workload};
use crate::runner::EngineTarget;
use crate::verdict::Guarantee;
use crate::worker::LockImplementation;

/// The safeguard that is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NegativeControl {
    /// The resource checks no tokens.
    NoFencing,
    /// `SET NX PX` on a master that is replaced.
    PlainSet,
    /// Redlock's nodes restart empty and vote again at once.
    EmptyNodes,
    /// Holders use the wall clock.
    WallClock,
    /// The server evicts any key.
    Eviction,
}

impl NegativeControl {
    /// All controls.
    pub const ALL: [Self; 5] = [Self::NoFencing, Self::PlainSet, Self::EmptyNodes, Self::WallClock, Self::Eviction];

    /// The control that applies to such a run.
    ///
    /// # Errors
    /// If there is none: the message lists the possible controls.
    pub fn for_run(target: &EngineTarget, workload: Workload, faults: &[FaultKind]) -> Result<Self, String> {
        let redis = matches!(target, EngineTarget::Local(LocalEngine::Redis));
        let replaced = matches!(target, EngineTarget::Local(LocalEngine::RedisSentinel));
        let only = |kind| faults == [kind];
        // There all workers share one process, and are stopped together.
        if !target.is_in_memory()
            && matches!(workload, Workload::Fenced | Workload::Unfenced | Workload::Counter)
            && only(FaultKind::Stop)
        {
            return Ok(Self::NoFencing);
        }
        match target {
            _ if replaced && only(FaultKind::Failover) => Ok(Self::PlainSet),
            _ if redis && only(FaultKind::Clock) => Ok(Self::WallClock),
            _ if redis && only(FaultKind::Evict) => Ok(Self::Eviction),
            EngineTarget::Local(LocalEngine::Redlock) if only(FaultKind::Wipe) => Ok(Self::EmptyNodes),
            _ => Err(Self::list_controls()),
        }
    }

    fn list_controls() -> String {
        let mut text = "this run has no guard to turn off; runs with a guard are:".to_owned();
        for control in Self::ALL {
            let (engine, workload, fault) = control.example_run();
            text.push_str(&format!(
                "\n  --guard off --local {engine} --workload {workload} --faults {fault}: {}",
                control.description()
            ));
        }
        text
    }

    /// A run that demonstrates the control.
    pub fn example_run(self) -> (LocalEngine, Workload, FaultKind) {
        match self {
            Self::NoFencing => (LocalEngine::Redis, Workload::Unfenced, FaultKind::Stop),
            Self::PlainSet => (LocalEngine::RedisSentinel, Workload::Mutex, FaultKind::Failover),
            Self::EmptyNodes => (LocalEngine::Redlock, Workload::Mutex, FaultKind::Wipe),
            Self::WallClock => (LocalEngine::Redis, Workload::Mutex, FaultKind::Clock),
            Self::Eviction => (LocalEngine::Redis, Workload::Mutex, FaultKind::Evict),
        }
    }

    /// The guarantees of which at least one must be broken: no other violation would show the
    /// control.
    pub(super) fn broken_guarantees(self) -> &'static [Guarantee] {
        match self {
            Self::NoFencing => &[Guarantee::Fencing, Guarantee::Counter],
            _ => &[Guarantee::Exclusion],
        }
    }

    /// A description in words.
    pub fn description(self) -> &'static str {
        match self {
            Self::NoFencing => "the resource checks no tokens",
            Self::PlainSet => "plain SET NX PX, and a replica without the key replaces the master",
            Self::EmptyNodes => "Redlock's nodes restart empty and vote again at once",
            Self::WallClock => "holders use the wall clock to decide whether they hold",
            Self::Eviction => "the server may evict locks when its memory is full",
        }
    }

    /// Whether the control misconfigures the servers.
    pub(super) fn misconfigures_servers(self) -> bool {
        matches!(self, Self::PlainSet | Self::EmptyNodes | Self::Eviction)
    }

    /// Whether this fault hits the workers under this control, and not the servers.
    pub(super) fn redirects_fault_to_workers(self, kind: FaultKind) -> bool {
        self == Self::WallClock && kind == FaultKind::Clock
    }

    /// How long locks are held, where that matters: until after the server has lost them, or for
    /// longer than their leases.
    pub(super) fn hold_time(self, ttl: Duration) -> Option<Duration> {
        match self {
            Self::NoFencing => None,
            Self::WallClock => Some(ttl * 2),
            Self::PlainSet | Self::EmptyNodes | Self::Eviction => Some(ttl * 9 / 10),
        }
    }

    /// A TTL that leaves time for the violation.
    pub(super) fn required_ttl(self) -> Option<Duration> {
        match self {
            Self::Eviction => Some(Duration::from_secs(2)),
            // The servers must be back, or replaced, and must have granted the lock to others long
            // before the TTL ends.
            Self::EmptyNodes => Some(Duration::from_secs(9)),
            Self::PlainSet => Some(Duration::from_secs(10)),
            _ => None,
        }
    }

    /// Whether holders are stopped during the fault. A running holder notices its closed
    /// connections and writes its lock to the empty nodes again, often before another worker
    /// acquires it.
    pub(super) fn stops_holders(self) -> bool {
        self == Self::EmptyNodes
    }

    /// Whether its faults begin just after a grant: then the lost lease stays valid for long. For a
    /// fail-over, that is the first grant after the replica was cut off.
    pub(super) fn starts_faults_at_a_grant(self) -> bool {
        matches!(self, Self::PlainSet | Self::EmptyNodes)
    }

    /// How many calls and faults demonstrate it. Where locks are held for long, there are few
    /// calls.
    pub fn run_size(self) -> (u64, usize) {
        match self {
            // By chance, no other worker may have written before the stopped holder continues.
            Self::NoFencing => (300, 6),
            // By chance, no other worker may acquire the lock before the holder checks.
            Self::Eviction => (60, 6),
            // A slow machine may not replace the master, or restart the servers, before the leases
            // expire.
            Self::PlainSet | Self::EmptyNodes => (20, 3),
            Self::WallClock => (20, 2),
        }
    }

    pub(super) fn lock_implementation(self) -> LockImplementation {
        match self {
            Self::PlainSet => LockImplementation::PlainSet,
            Self::WallClock => LockImplementation::WallClock,
            _ => LockImplementation::Leasehold,
        }
    }
}
