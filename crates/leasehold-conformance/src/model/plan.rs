//! What is done with which claims.

use std::fmt;

use leasehold::Mode;
use leasehold::engine::Capabilities;
use proptest::prelude::*;

/// The locks that are asked for.
pub(super) const LOCKS: [char; 2] = ['x', 'y'];
/// How many claims a plan has.
const CLAIM_COUNT: usize = 6;
/// How many operations a plan has at most.
const MAX_OPERATIONS: usize = 40;

/// What a claim asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ClaimSpec {
    /// Which lock: one of two.
    pub lock: char,
    /// Who may re-enter: one of two, or nobody.
    pub owner: Option<char>,
    /// How.
    pub mode: Mode,
}

/// A step. Claims are named by their place in the plan.
#[derive(Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the field is the claim")]
pub enum Operation {
    /// Asks for the lock, and queues for it or does not.
    Attempt { claim: usize, queue: bool },
    /// Shows that it still waits.
    Wait { claim: usize },
    /// Extends its lease.
    Renew { claim: usize },
    /// Gives it back, or leaves the queue.
    Release { claim: usize },
    /// Is put out by somebody else.
    ForceRelease { claim: usize },
    /// So many milliseconds pass, of a TTL of a thousand.
    AdvanceTime { ms: u64 },
}

/// Some claims, and what is done with them.
#[derive(Clone, PartialEq, Eq)]
pub struct Plan {
    /// The claims.
    pub claim_specs: Vec<ClaimSpec>,
    /// The steps.
    pub operations: Vec<Operation>,
}

impl Plan {
    /// Plans of what an engine can do; with time passing, if somebody can move it.
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
    // Three of four at the first: that is where they meet.
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

/// What a claim is called.
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
            Self::Attempt { queue: true, .. } => write!(f, "{who} asks and queues"),
            Self::Attempt { .. } => write!(f, "{who} tries"),
            Self::Wait { .. } => write!(f, "{who} waits"),
            Self::Renew { .. } => write!(f, "{who} renews"),
            Self::Release { .. } => write!(f, "{who} releases"),
            Self::ForceRelease { .. } => write!(f, "{who} is evicted"),
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
    /// Only the claims that something is done with, one line each; then the steps.
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
