//! Negative controls: what should guard is off, and the checker must find out.

use std::time::Duration;

use crate::conduct::Target;
use crate::deploy::Local;
use crate::history::{FaultKind, Workload};
use crate::verdict::Promise;
use crate::worker::Hands;

/// What is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// The resource asks for no tokens.
    NoFencing,
    /// `SET NX PX` on a master that is replaced.
    PlainSet,
    /// Redlock's nodes come back empty and vote again at once.
    EmptyNodes,
    /// Holders look at the wall clock.
    WallClock,
    /// The server throws away whatever it likes.
    Eviction,
}

impl Control {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::NoFencing, Self::PlainSet, Self::EmptyNodes, Self::WallClock, Self::Eviction];

    /// What there is to turn off in such a run.
    ///
    /// # Errors
    /// There is nothing: the words say what there would be.
    pub fn of(target: &Target, workload: Workload, faults: &[FaultKind]) -> Result<Self, String> {
        let redis = matches!(target, Target::Local(Local::Redis));
        let replaced = matches!(target, Target::Local(Local::RedisSentinel));
        let only = |kind| faults == [kind];
        // There all workers are in one process, and stand still together.
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
            Target::Local(Local::Redlock) if only(FaultKind::Wipe) => Ok(Self::EmptyNodes),
            _ => Err(Self::choice()),
        }
    }

    fn choice() -> String {
        let mut text = "there is no guard to turn off here; these can be:".to_owned();
        for control in Self::ALL {
            let (engine, workload, fault) = control.command();
            text.push_str(&format!(
                "\n  --guard off --local {engine} --workload {workload} --faults {fault}: {}",
                control.about()
            ));
        }
        text
    }

    /// A run that shows it.
    pub fn command(self) -> (Local, Workload, FaultKind) {
        match self {
            Self::NoFencing => (Local::Redis, Workload::Unfenced, FaultKind::Stop),
            Self::PlainSet => (Local::RedisSentinel, Workload::Mutex, FaultKind::Failover),
            Self::EmptyNodes => (Local::Redlock, Workload::Mutex, FaultKind::Wipe),
            Self::WallClock => (Local::Redis, Workload::Mutex, FaultKind::Clock),
            Self::Eviction => (Local::Redis, Workload::Mutex, FaultKind::Evict),
        }
    }

    /// The promises of which at least one must be seen broken: nothing else would show it.
    pub(super) fn breaks(self) -> &'static [Promise] {
        match self {
            Self::NoFencing => &[Promise::Fencing, Promise::Counter],
            _ => &[Promise::Exclusion],
        }
    }

    /// In words.
    pub fn about(self) -> &'static str {
        match self {
            Self::NoFencing => "the resource asks for no tokens",
            Self::PlainSet => "plain SET NX PX, and the master is replaced by a replica that had not seen it",
            Self::EmptyNodes => "Redlock's nodes come back empty and vote again at once",
            Self::WallClock => "holders look at the wall clock to know whether they hold",
            Self::Eviction => "the server may throw locks away when its memory is full",
        }
    }

    /// Whether it is the servers that are set up carelessly.
    pub(super) fn is_of_the_servers(self) -> bool {
        matches!(self, Self::PlainSet | Self::EmptyNodes | Self::Eviction)
    }

    /// Whether this fault hits the workers here, and not the servers.
    pub(super) fn takes(self, kind: FaultKind) -> bool {
        self == Self::WallClock && kind == FaultKind::Clock
    }

    /// How long locks are held, where that matters: until after the server has forgotten them, or for longer than their leases.
    pub(super) fn hold(self, ttl: Duration) -> Option<Duration> {
        match self {
            Self::NoFencing => None,
            Self::WallClock => Some(ttl * 2),
            Self::PlainSet | Self::EmptyNodes | Self::Eviction => Some(ttl * 9 / 10),
        }
    }

    /// A TTL that leaves time to see it.
    pub(super) fn ttl(self) -> Option<Duration> {
        match self {
            Self::Eviction => Some(Duration::from_secs(2)),
            // The servers must be back, or replaced, and others let in, long before it is over.
            Self::EmptyNodes => Some(Duration::from_secs(9)),
            Self::PlainSet => Some(Duration::from_secs(10)),
            _ => None,
        }
    }

    /// Whether whoever holds is stopped meanwhile. Otherwise it notices that its connections are gone, and puts its lock back on the nodes that forgot,
    /// often before others come.
    pub(super) fn stops_holders(self) -> bool {
        self == Self::EmptyNodes
    }

    /// Whether its faults come when a lock was granted just now: then what is forgotten is valid for long. With a fail-over that is the grant after
    /// that one, which comes while the replica is cut off.
    pub(super) fn strikes_at_a_grant(self) -> bool {
        matches!(self, Self::PlainSet | Self::EmptyNodes)
    }

    /// How many calls and faults show it. Where locks are held for long there are few.
    pub fn extent(self) -> (u64, usize) {
        match self {
            // Whether somebody else has written by the time when a stopped holder goes on is up to chance.
            Self::NoFencing => (300, 6),
            // Whether somebody else comes in before the holder looks is, too.
            Self::Eviction => (60, 6),
            // Whether a master is replaced, and servers are back, before the leases are over is up to the machine.
            Self::PlainSet | Self::EmptyNodes => (20, 3),
            Self::WallClock => (20, 2),
        }
    }

    pub(super) fn hands(self) -> Hands {
        match self {
            Self::PlainSet => Hands::PlainSet,
            Self::WallClock => Hands::WallClock,
            _ => Hands::Leasehold,
        }
    }
}
