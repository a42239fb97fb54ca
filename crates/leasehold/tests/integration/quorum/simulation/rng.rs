//! Reproducible randomness, and clocks that are slightly wrong.

/// A generator of random numbers, determined by a seed.
#[derive(Clone, Debug)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x5DEE_CE66_D1CE_4E5B)
    }

    /// The next 64 random bits.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number from `low` up to, but excluding, `high`; `low` if the two are equal.
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low).max(1)
    }

    /// `true` with this probability, in thousandths.
    pub(super) fn happens(&mut self, per_mille: u64) -> bool {
        self.between(0, 1000) < per_mille
    }
}

/// A clock that runs slightly fast or slow, as a function of true time. Both are in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct SkewedClock {
    /// What the clock shows at true time 0.
    pub(super) base: u64,
    /// How many microseconds it counts per true second.
    pub(super) rate: u64,
}

impl SkewedClock {
    /// What the clock shows at this true time.
    pub(super) fn at(self, true_time: u64) -> u64 {
        self.base + (u128::from(true_time) * u128::from(self.rate) / 1_000_000) as u64
    }

    /// The first true time at which the clock shows `reading`.
    pub(super) fn true_time_of(self, reading: u64) -> u64 {
        (u128::from(reading.saturating_sub(self.base)) * 1_000_000).div_ceil(u128::from(self.rate)) as u64
    }
}
