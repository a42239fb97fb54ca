//! Random bits from the operating system.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

/// 128 random bits from the operating system, for a secret. [`unique_id`] is cheaper.
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

/// How many claim ids a thread derives from one random start.
const IDS_PER_SEED: u32 = 256;

/// The distance between two successive claim ids of a thread: 2^128 divided by the golden ratio.
/// Its multiples modulo 2^128 are all different, because it is odd, and lie far apart.
const STRIDE: u128 = 0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835;

/// Raised whenever locks are opened; each thread then reads a new random start. Otherwise parent
/// and child would derive the same ids after a fork. (A child must open its own locks.)
static RESEED_EPOCH: AtomicU32 = AtomicU32::new(1);

/// Makes every thread read a new random start before its next claim id.
pub(crate) fn reseed_all_threads() {
    RESEED_EPOCH.fetch_add(1, Ordering::Relaxed);
}

thread_local! {
    /// The next id of this thread, how many are left until the next random start, and the
    /// [`RESEED_EPOCH`] of the present start.
    static NEXT_ID: Cell<(u128, u32, u32)> = const { Cell::new((0, 0, 0)) };
}

/// 128 bits for a claim id, unlike any others. A system call for each would cost more than the rest
/// of a claim. So each thread reads a random start from the system, and derives [`IDS_PER_SEED`]
/// ids from it.
pub fn unique_id() -> u128 {
    #[cfg(all(test, feature = "redis"))]
    if let Some(bits) = seeded::bits() {
        return bits;
    }
    NEXT_ID.with(|next| {
        let epoch = RESEED_EPOCH.load(Ordering::Relaxed);
        let (id, left) = match next.get() {
            (id, left @ 1.., seeded_in) if seeded_in == epoch => (id, left),
            _ => (random_bits(), IDS_PER_SEED),
        };
        next.set((id.wrapping_add(STRIDE), left - 1, epoch));
        id
    })
}

/// Bits determined by a seed, for reproducible tests.
#[cfg(all(test, feature = "redis"))]
pub(crate) mod seeded {
    use std::cell::Cell;

    thread_local! {
        /// The state of this thread's generator; `None`: no seed is set.
        static SEEDED_STATE: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// From now on the seed determines all bits of this thread; `None`: they come from the
    /// operating system again.
    pub(crate) fn set_seed(seed: Option<u64>) {
        SEEDED_STATE.set(seed);
    }

    /// The next 64 bits of the generator SplitMix64 with this state.
    pub(crate) fn next_u64(state: &mut u64) -> u64 {
        *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = *state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }

    /// The next 128 bits; `None` if no seed is set.
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
        let new_starts = ids.windows(2).filter(|pair| pair[1].wrapping_sub(pair[0]) != STRIDE).count();
        assert!(new_starts >= 10_000 / IDS_PER_SEED as usize - 1, "only {new_starts} random starts");
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 10_000);
    }

    #[test]
    fn reseeding_starts_a_new_sequence() {
        // The next id that a forked child would have copied from its parent.
        let copied = NEXT_ID.get().0;
        reseed_all_threads();
        assert_ne!(unique_id(), copied);
    }
}
