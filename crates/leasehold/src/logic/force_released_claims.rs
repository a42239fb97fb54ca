//! The claims of a lock that were force released lately, for clients that could not be notified.
//!
//! A client that repeats a claim after a failed request finds it in this list. Without the list,
//! the claim would queue again and be granted although an operator ended it.
//!
//! - A claim is listed for its TTL: its queue position would have lasted as long.
//! - It is removed earlier if it is released, because its client then does not repeat it; or if
//!   [`MAX_LISTED_CLAIMS`] claims were force released after it.

use std::collections::VecDeque;
use std::time::Duration;

use crate::types::ClaimId;
use crate::types::Instant;

/// The most force-released claims that are listed at one lock.
pub const MAX_LISTED_CLAIMS: usize = 1000;

/// A claim that was force released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForceReleasedClaim {
    /// The claim's id.
    pub claim: ClaimId,
    /// The claim's TTL, for which it stays in the list.
    pub ttl: Duration,
    /// When it is removed from the list.
    pub until: Instant,
}

/// The claims of one lock that were force released lately, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForceReleasedClaims(VecDeque<ForceReleasedClaim>);

impl ForceReleasedClaims {
    /// Whether no claim is listed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The listed claims, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &ForceReleasedClaim> {
        self.0.iter()
    }

    /// The listed claims, oldest first, to change their times.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut ForceReleasedClaim> {
        self.0.iter_mut()
    }

    /// Whether this claim is listed.
    pub fn has(&self, claim: ClaimId) -> bool {
        self.0.iter().any(|listed| listed.claim == claim)
    }

    /// Lists a claim that is force released now, for its TTL.
    pub fn add(&mut self, claim: ClaimId, ttl: Duration, now: Instant) {
        self.remove(claim);
        self.0.push_back(ForceReleasedClaim { claim, ttl, until: now.saturating_add(ttl) });
        while self.0.len() > MAX_LISTED_CLAIMS {
            self.0.pop_front();
        }
    }

    /// Removes a claim that its client does not repeat.
    pub fn remove(&mut self, claim: ClaimId) {
        self.0.retain(|listed| listed.claim != claim);
    }

    /// Removes the claims whose TTL has passed since they were force released.
    pub fn expire(&mut self, now: Instant) {
        self.0.retain(|listed| listed.until > now);
    }
}

impl FromIterator<ForceReleasedClaim> for ForceReleasedClaims {
    fn from_iter<T: IntoIterator<Item = ForceReleasedClaim>>(claims: T) -> Self {
        Self(claims.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An event at the lock. Claims are numbered, and times are in seconds.
    #[derive(Clone, Debug)]
    enum Op {
        ForceRelease { claim: u128, ttl: u64 },
        Release(u128),
        AdvanceTime(u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            3 => (0u128..8, 1u64..20).prop_map(|(claim, ttl)| Op::ForceRelease { claim, ttl }),
            1 => (0u128..8).prop_map(Op::Release),
            2 => (1u64..15).prop_map(Op::AdvanceTime),
        ]
    }

    proptest! {
        /// Exactly the claims that were force released within their TTL, and not released since.
        #[test]
        fn a_force_released_claim_is_listed_for_its_ttl(ops in prop::collection::vec(op(), 0..60)) {
            let (mut list, mut now) = (ForceReleasedClaims::default(), Instant::default());
            let mut ends = [Instant::default(); 8];
            for op in ops {
                match op {
                    Op::ForceRelease { claim, ttl } => {
                        let ttl = Duration::from_secs(ttl);
                        list.add(ClaimId::from_bits(claim), ttl, now);
                        ends[claim as usize] = now.saturating_add(ttl);
                    }
                    Op::Release(claim) => {
                        list.remove(ClaimId::from_bits(claim));
                        ends[claim as usize] = Instant::default();
                    }
                    Op::AdvanceTime(seconds) => now = now.saturating_add(Duration::from_secs(seconds)),
                }
                list.expire(now);
                for (claim, end) in ends.iter().enumerate() {
                    prop_assert_eq!(list.has(ClaimId::from_bits(claim as u128)), *end > now);
                }
                prop_assert!(list.iter().count() <= ends.len());
            }
        }
    }

    #[test]
    fn only_the_latest_claims_are_listed() {
        let mut list = ForceReleasedClaims::default();
        let (count, ttl) = (MAX_LISTED_CLAIMS as u128 + 5, Duration::from_secs(1));
        for claim in 0..count {
            list.add(ClaimId::from_bits(claim), ttl, Instant::default());
        }
        assert_eq!(list.iter().count(), MAX_LISTED_CLAIMS);
        assert!(!list.has(ClaimId::from_bits(4)) && list.has(ClaimId::from_bits(5)));
        assert!(list.has(ClaimId::from_bits(count - 1)));
    }
}
