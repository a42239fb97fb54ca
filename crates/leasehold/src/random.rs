//! Random bits from the operating system.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

/// 128 random bits.
pub fn random_bits() -> u128 {
    #[cfg(all(test, feature = "redis"))]
    if let Some(bits) = seeded::bits() {
        return bits;
    }
    let mut bytes = [0; 16];
    #[allow(clippy::expect_used, reason = "without randomness no claim is unique: nothing could go on safely")]
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    u128::from_ne_bytes(bytes)
}

/// How many claim ids one call to the operating system is good for.
const IDS_PER_SEED: u32 = 256;

/// An odd number with bits everywhere (the golden ratio of 2^128): its multiples are all different
/// and lie far apart.
const STRIDE: u128 = 0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835;

/// Raised whenever locks are opened. After a fork, parent and child would generate the same ids. A
/// child must open its own locks, and then starts from new random bits.
static RESEED_EPOCH: AtomicU32 = AtomicU32::new(1);

/// Makes every thread start from new random bits.
pub(crate) fn reseed_all_threads() {
    RESEED_EPOCH.fetch_add(1, Ordering::Relaxed);
}

thread_local! {
    static NEXT_ID: Cell<(u128, u32, u32)> = const { Cell::new((0, 0, 0)) };
}

/// 128 unique bits for a claim id. A system call for each would cost more than the rest of a claim.
/// So each thread reads a random start from the system, and derives a few hundred ids from it.
pub fn unique_id() -> u128 {
    #[cfg(all(test, feature = "redis"))]
    if let Some(bits) = seeded::bits() {
        return bits;
    }
    NEXT_ID.with(|next| {
        let era = RESEED_EPOCH.load(Ordering::Relaxed);
        let (at, left) = match next.get() {
            (at, left @ 1.., of) if of == era => (at, left),
            _ => (random_bits(), IDS_PER_SEED),
        };
        next.set((at.wrapping_add(STRIDE), left - 1, era));
        at
    })
}

/// Bits that follow from a seed, for reproducible tests.
#[cfg(all(test, feature = "redis"))]
pub(crate) mod seeded {
    use std::cell::Cell;

    thread_local! {
        static SEEDED_STATE: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// From here on all bits of this thread follow from the seed; `None`: they come from the
    /// operating system again.
    pub(crate) fn set_seed(seed: Option<u64>) {
        SEEDED_STATE.set(seed);
    }

    /// The next 64 bits of SplitMix64.
    pub(crate) fn next_u64(state: &mut u64) -> u64 {
        *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = *state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }

    pub(super) fn bits() -> Option<u128> {
        let mut state = SEEDED_STATE.get()?;
        let bits = (u128::from(next_u64(&mut state)) << 64) | u128::from(next_u64(&mut state));
        SEEDED_STATE.set(Some(state));
        Some(bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claim_ids_are_unique_and_differ_visibly() {
        let mut ids: Vec<u128> = (0..10_000).map(|_| unique_id()).collect();
        let runs = ids.windows(2).filter(|pair| pair[1].wrapping_sub(pair[0]) != STRIDE).count();
        assert!(runs >= 10_000 / IDS_PER_SEED as usize - 1, "a new start now and then");
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 10_000);
    }

    #[test]
    fn reseeding_starts_a_new_sequence() {
        // What a forked child would have copied from its parent.
        let copied = NEXT_ID.get().0;
        reseed_all_threads();
        assert_ne!(unique_id(), copied);
    }
}
