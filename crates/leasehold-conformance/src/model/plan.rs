//! What is done with which claims.

use std::fmt;

use leasehold::Mode;
use leasehold::engine::Capabilities;
use proptest::prelude::*;

/// The locks that are asked for.
pub(super) const LOCKS: [char; 2] = ['x', 'y'];
/// How many claims a plan has.
const CLAIMS: usize = 6;
/// How many operations a plan has at most.
const OPS: usize = 40;

/// What a claim asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Wish {
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
pub enum Op {
    /// Asks for the lock, and queues for it or does not.
    Attempt { claim: usize, queue: bool },
    /// Shows that it still waits.
    Wait { claim: usize },
    /// Extends its lease.
    Renew { claim: usize },
    /// Gives it back, or leaves the queue.
    Release { claim: usize },
    /// Is put out by somebody else.
    Evict { claim: usize },
    /// So many milliseconds pass, of a TTL of a thousand.
    Pass { ms: u64 },
}

/// Some claims, and what is done with them.
#[derive(Clone, PartialEq, Eq)]
pub struct Plan {
    /// The claims.
    pub wishes: Vec<Wish>,
    /// The steps.
    pub ops: Vec<Op>,
}

impl Plan {
    /// Plans of what an engine can do; with time passing, if somebody can move it.
    pub fn strategy(can: &Capabilities, time_passes: bool) -> impl Strategy<Value = Self> + use<> {
        let wishes = prop::collection::vec(wish(can), CLAIMS);
        let ops = prop::collection::vec(op(can.eviction, time_passes), 0..OPS);
        (wishes, ops).prop_map(|(wishes, ops)| Self { wishes, ops })
    }
}

fn wish(can: &Capabilities) -> impl Strategy<Value = Wish> + use<> {
    let mut modes = vec![Mode::Exclusive];
    if can.shared {
        modes.push(Mode::Shared);
    }
    if can.permits {
        modes.extend((1..=3).map(|n| Mode::Permits { n, limit: 3 }));
        modes.push(Mode::Permits { n: 1, limit: 4 });
    }
    let mut owners = vec![None];
    if can.reentry {
        owners.extend([Some('P'), Some('Q')]);
    }
    // Three of four at the first: that is where they meet.
    let locks = prop_oneof![3 => Just(LOCKS[0]), 1 => Just(LOCKS[1])];
    (locks, prop::sample::select(owners), prop::sample::select(modes)).prop_map(|(lock, owner, mode)| Wish {
        lock,
        owner,
        mode,
    })
}

fn op(evicts: bool, time_passes: bool) -> impl Strategy<Value = Op> + use<> {
    let claim = 0..CLAIMS;
    let attempt = |queue| claim.clone().prop_map(move |claim| Op::Attempt { claim, queue });
    prop_oneof![
        6 => attempt(true),
        2 => attempt(false),
        2 => claim.clone().prop_map(|claim| Op::Wait { claim }),
        1 => claim.clone().prop_map(|claim| Op::Renew { claim }),
        4 => claim.clone().prop_map(|claim| Op::Release { claim }),
        u32::from(evicts) => claim.clone().prop_map(|claim| Op::Evict { claim }),
        u32::from(time_passes) * 2 => (1_u64..1500).prop_map(|ms| Op::Pass { ms }),
    ]
}

/// What a claim is called.
pub(super) fn letter(claim: usize) -> char {
    char::from(b'a' + u8::try_from(claim).unwrap_or(25))
}

impl Op {
    fn claim(self) -> Option<usize> {
        match self {
            Self::Attempt { claim, .. }
            | Self::Wait { claim }
            | Self::Renew { claim }
            | Self::Release { claim }
            | Self::Evict { claim } => Some(claim),
            Self::Pass { .. } => None,
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = self.claim().map(letter).unwrap_or_default();
        match self {
            Self::Attempt { queue: true, .. } => write!(f, "{who} asks and queues"),
            Self::Attempt { .. } => write!(f, "{who} tries"),
            Self::Wait { .. } => write!(f, "{who} waits"),
            Self::Renew { .. } => write!(f, "{who} renews"),
            Self::Release { .. } => write!(f, "{who} releases"),
            Self::Evict { .. } => write!(f, "{who} is evicted"),
            Self::Pass { ms } => write!(f, "{ms} ms pass"),
        }
    }
}

impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Wish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.lock, self.mode)?;
        self.owner.map_or(Ok(()), |owner| write!(f, " for {owner}"))
    }
}

impl fmt::Debug for Wish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Plan {
    /// Only the claims that something is done with, one line each; then the steps.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (claim, wish) in self.wishes.iter().enumerate() {
            if self.ops.iter().any(|op| op.claim() == Some(claim)) {
                writeln!(f, "{} wants {wish}", letter(claim))?;
            }
        }
        self.ops.iter().enumerate().try_for_each(|(step, op)| writeln!(f, "{:>3}. {op}", step + 1))
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
