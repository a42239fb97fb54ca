//! The newest state of a job's record that a node has seen, in case the engine loses it.

use super::job_record::JobRecord;

/// The newest state of a record that was seen. A watermark only rises, except by a reset. A record
/// with less was therefore lost in part, or comes from a replica that lags behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeenState {
    /// How many times the job had been reset. First field, so that a later reset compares as newer
    /// with any watermark.
    pub resets: u32,
    /// The newest tick that was judged, in seconds since 1970.
    pub watermark: i64,
}

impl SeenState {
    /// The state that a record shows.
    pub fn from_record(state: &JobRecord) -> Self {
        Self { resets: state.resets, watermark: state.watermark }
    }

    /// Raises an outdated record to the state seen. Returns its queued ticks: it is unknown whether
    /// they have begun since.
    pub fn restore(self, state: &mut JobRecord) -> Vec<i64> {
        if self <= Self::from_record(state) {
            return Vec::new();
        }
        // The higher of both: after a loss, another node may have started over and moved on.
        state.watermark = state.watermark.max(self.watermark);
        state.resets = state.resets.max(self.resets);
        let unknown = state.queue.iter().copied().filter(|tick| *tick <= self.watermark).collect();
        state.queue.retain(|tick| *tick > self.watermark);
        unknown
    }
}
