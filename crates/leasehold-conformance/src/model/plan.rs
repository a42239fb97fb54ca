//! Plans: claims, and operations on them.

use std::fmt;

use leasehold::Mode;
use leasehold::engine::Capabilities;
use proptest::prelude::*;

/// The names of the locks.
pub(super) const LOCKS: [char; 2] = ['x', 'y'];
/// The number of claims in a plan.
const CLAIM_COUNT: usize = 6;
/// The maximum number of operations in a plan.
const MAX_OPERATIONS: usize = 40;

/// The lock, the owner and the mode of a claim in a plan.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ClaimSpec {
    /// One of two locks.
    pub lock: char,
    /// One of two owners, or none.
    pub owner: Option<char>,
    /// The lock mode.
    pub mode: Mode,
}

/// One step of a plan. A claim is identified by its index in the plan.
#[derive(Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the field is the claim")]
pub enum Operation {
    /// Attempts to acquire the lock, with or without queueing.
    Attempt { claim: usize, queue: bool },
    /// Sends a waiter's heartbeat.
    Wait { claim: usize },
    /// Renews the lease.
    Renew { claim: usize },
    /// Releases the lock, or leaves the queue.
    Release { claim: usize },
    /// Force-releases the claim.
    ForceRelease { claim: usize },
    /// Advances the time by milliseconds; the TTL is a thousand.
    AdvanceTime { ms: u64 },
}

/// A sequence of operations on a few claims.
#[derive(Clone, PartialEq, Eq)]
pub struct Plan {
    /// The claims that the steps use, by their index.
    pub claim_specs: Vec<ClaimSpec>,
    /// The steps, in order.
    pub operations: Vec<Operation>,
}

impl Plan {
    /// Random plans for an engine's capabilities, with advancing time if the clock is manual.
    pub fn strategy(capabilities: &Capabilities, time_passes: bool) -> impl Strategy<Value = Self> + use<> {
        let wishes = prop::collection::vec(claim_strategy(capabilities), CLAIM_COUNT);
        let ops = prop::collection::vec(operation_strategy(capabilities.force_release, time_passes), 0..MAX_OPERATIONS);
        (wishes, ops).prop_map(|(wishes, ops)| Self { claim_specs: wishes, operations: ops })
    }
}

fn claim_strategy(capabilities: &Capabilities) -> impl Strategy<Value = ClaimSpec> + use<> {
    let mut modes = vec![Mode::Exclusive];
    if capabilities.shared {
        modes.push(Mode::Shared);
    }
    if capabilities.permits {
        modes.extend((1..=3).map(|n| Mode::Permits { n, limit: 3 }));
        modes.push(Mode::Permits { n: 1, limit: 4 });
    }
    let mut owners = vec![None];
    if capabilities.reentrancy {
        owners.extend([Some('P'), Some('Q')]);
    }
    // Three of four claims use the first lock, so that they contend.
    let locks = prop_oneof![3 => Just(LOCKS[0]), 1 => Just(LOCKS[1])];
    (locks, prop::sample::select(owners), prop::sample::select(modes)).prop_map(|(lock, owner, mode)| ClaimSpec {
        lock,
        owner,
        mode,
    })
}

fn operation_strategy(can_force_release: bool, time_passes: bool) -> impl Strategy<Value = Operation> + use<> {
    let claim = 0..CLAIM_COUNT;
    let attempt = |queue| claim.clone().prop_map(move |claim| Operation::Attempt { claim, queue });
    prop_oneof![
        6 => attempt(true),
        2 => attempt(false),
        2 => claim.clone().prop_map(|claim| Operation::Wait { claim }),
        1 => claim.clone().prop_map(|claim| Operation::Renew { claim }),
        4 => claim.clone().prop_map(|claim| Operation::Release { claim }),
        u32::from(can_force_release) => claim.clone().prop_map(|claim| Operation::ForceRelease { claim }),
        u32::from(time_passes) * 2 => (1_u64..1500).prop_map(|ms| Operation::AdvanceTime { ms }),
    ]
}

/// The letter of a claim.
pub(super) fn claim_letter(claim: usize) -> char {
    char::from(b'a' + u8::try_from(claim).unwrap_or(25))
}

impl Operation {
    fn claim(self) -> Option<usize> {
        match self {
            Self::Attempt { claim, .. }
            | Self::Wait { claim }
            | Self::Renew { claim }
            | Self::Release { claim }
            | Self::ForceRelease { claim } => Some(claim),
            Self::AdvanceTime { .. } => None,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = self.claim().map(claim_letter).unwrap_or_default();
        match self {
            Self::Attempt { queue: true, .. } => write!(f, "{who} acquires or queues"),
            Self::Attempt { .. } => write!(f, "{who} tries"),
            Self::Wait { .. } => write!(f, "{who} waits"),
            Self::Renew { .. } => write!(f, "{who} renews"),
            Self::Release { .. } => write!(f, "{who} releases"),
            Self::ForceRelease { .. } => write!(f, "{who} is force-released"),
            Self::AdvanceTime { ms } => write!(f, "{ms} ms pass"),
        }
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for ClaimSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.lock, self.mode)?;
        self.owner.map_or(Ok(()), |owner| write!(f, " for {owner}"))
    }
}

impl fmt::Debug for ClaimSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Plan {
    /// Lists the claims that occur in a step, one per line, and then the steps.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (claim, wish) in self.claim_specs.iter().enumerate() {
            if self.operations.iter().any(|op| op.claim() == Some(claim)) {
                writeln!(f, "{} wants {wish}", claim_letter(claim))?;
            }
        }
        self.operations.iter().enumerate().try_for_each(|(step, op)| writeln!(f, "{:>3}. {op}", step + 1))
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
