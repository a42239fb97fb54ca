//! The latest evictions at a lock, for clients that could not be notified.
//!
//! A client that repeats a claim after a failed request finds the claim's eviction here. Without
//! this list, the claim would queue again and run although an operator removed it.
//!
//! - An eviction is kept for the claim's TTL: the claim's position would have lasted as long.
//! - It is dropped earlier if the claim is released, because the client then sends it no more; or
//!   if [`MOST`] newer ones are kept.

use std::collections::VecDeque;
use std::time::Duration;

use crate::types::ClaimId;
use crate::types::Instant;

/// How many evictions are kept at one lock.
pub const MOST: usize = 1000;

/// An evicted claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// The claim's id.
    pub claim: ClaimId,
    /// How long the eviction is kept.
    pub ttl: Duration,
    /// When it is dropped.
    pub until: Instant,
}

/// The latest evictions, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evictions(VecDeque<Eviction>);

impl Evictions {
    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those that are kept, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Eviction> {
        self.0.iter()
    }

    /// The same, to change their times.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Eviction> {
        self.0.iter_mut()
    }

    /// Whether this claim was evicted.
    pub fn has(&self, claim: ClaimId) -> bool {
        self.0.iter().any(|eviction| eviction.claim == claim)
    }

    /// Adds the eviction of a claim with this TTL.
    pub fn add(&mut self, claim: ClaimId, ttl: Duration, now: Instant) {
        self.remove(claim);
        self.0.push_back(Eviction { claim, ttl, until: now.saturating_add(ttl) });
        while self.0.len() > MOST {
            self.0.pop_front();
        }
    }

    /// Drops the eviction of a claim that is not sent again.
    pub fn remove(&mut self, claim: ClaimId) {
        self.0.retain(|eviction| eviction.claim != claim);
    }

    /// Drops those whose TTL has passed.
    pub fn expire(&mut self, now: Instant) {
        self.0.retain(|eviction| eviction.until > now);
    }
}

impl FromIterator<Eviction> for Evictions {
    fn from_iter<T: IntoIterator<Item = Eviction>>(evictions: T) -> Self {
        Self(evictions.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Op {
        Evict { claim: u128, ttl: u64 },
        Release(u128),
        Pass(u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            3 => (0u128..8, 1u64..20).prop_map(|(claim, ttl)| Op::Evict { claim, ttl }),
            1 => (0u128..8).prop_map(Op::Release),
            2 => (1u64..15).prop_map(Op::Pass),
        ]
    }

    proptest! {
        /// Exactly the claims that were evicted within their TTL, and not released since.
        #[test]
        fn an_eviction_is_found_for_its_claims_ttl(ops in prop::collection::vec(op(), 0..60)) {
            let (mut evictions, mut now) = (Evictions::default(), Instant::default());
            let mut ends = [Instant::default(); 8];
            for op in ops {
                match op {
                    Op::Evict { claim, ttl } => {
                        let ttl = Duration::from_secs(ttl);
                        evictions.add(ClaimId::from_bits(claim), ttl, now);
                        ends[claim as usize] = now.saturating_add(ttl);
                    }
                    Op::Release(claim) => {
                        evictions.remove(ClaimId::from_bits(claim));
                        ends[claim as usize] = Instant::default();
                    }
                    Op::Pass(seconds) => now = now.saturating_add(Duration::from_secs(seconds)),
                }
                evictions.expire(now);
                for (claim, end) in ends.iter().enumerate() {
                    prop_assert_eq!(evictions.has(ClaimId::from_bits(claim as u128)), *end > now);
                }
                prop_assert!(evictions.iter().count() <= ends.len());
            }
        }
    }

    #[test]
    fn only_the_latest_are_kept() {
        let mut evictions = Evictions::default();
        let (more, ttl) = (MOST as u128 + 5, Duration::from_secs(1));
        for claim in 0..more {
            evictions.add(ClaimId::from_bits(claim), ttl, Instant::default());
        }
        assert_eq!(evictions.iter().count(), MOST);
        assert!(!evictions.has(ClaimId::from_bits(4)) && evictions.has(ClaimId::from_bits(5)));
        assert!(evictions.has(ClaimId::from_bits(more - 1)));
    }
}
