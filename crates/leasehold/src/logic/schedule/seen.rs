//! What a node remembers of a job's record, in case the engine does not.

use super::state::State;

/// The newest that was seen of a record. A watermark only ever rises, but for a reset, so whatever is older than this has been lost
/// or comes from a copy that lags behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seen {
    /// How often the job had been reset. First, so that a later reset is newer whatever its watermark.
    pub resets: u32,
    /// Its watermark.
    pub watermark: i64,
}

impl Seen {
    /// What a record shows.
    pub fn of(state: &State) -> Self {
        Self { resets: state.resets, watermark: state.watermark }
    }

    /// Brings a record that fell behind up to what was seen. The answer is what waited in it: nobody knows whether that has begun since.
    pub fn restore(self, state: &mut State) -> Vec<i64> {
        if self <= Self::of(state) {
            return Vec::new();
        }
        // The higher of both: after a loss somebody else may have begun anew, and gone on.
        state.watermark = state.watermark.max(self.watermark);
        state.resets = state.resets.max(self.resets);
        let unknown = state.queue.iter().copied().filter(|tick| *tick <= self.watermark).collect();
        state.queue.retain(|tick| *tick > self.watermark);
        unknown
    }
}
