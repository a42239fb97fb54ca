//! A fence in memory.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::StaleToken;
use crate::logic::fence::{FenceState, admits};
use crate::metrics::OptionalMetrics;
use crate::types::{Owner, Token};

/// Stores the highest token of each resource, in memory.
///
/// ```
/// use leasehold::{Token, fence::Fence};
///
/// let fence = Fence::default();
/// fence.admit("stock:42", Token(7))?;
/// fence.admit("stock:42", Token(7))?;                       // the same holder again
/// assert!(fence.admit("stock:42", Token(6)).is_err());      // a holder that was paused for too long
/// # Ok::<(), leasehold::fence::StaleToken>(())
/// ```
#[derive(Debug, Default)]
pub struct Fence {
    highest: Mutex<HashMap<String, FenceState>>,
    metrics: OptionalMetrics,
}

impl Fence {
    /// A fence that counts each refusal in the metric `leasehold_fencing_rejected_total`.
    pub fn with_metrics(metrics: std::sync::Arc<dyn crate::metrics::Metrics>) -> Self {
        Self { highest: Mutex::default(), metrics: OptionalMetrics::new(metrics) }
    }

    /// Admits a write to `resource`, and stores its token as the highest; or refuses it.
    ///
    /// # Errors
    /// [`StaleToken`] if a higher token was seen.
    pub fn admit(&self, resource: &str, token: Token) -> Result<(), StaleToken> {
        self.check(resource, token, None)
    }

    /// As [`admit`](Self::admit), and also refuses a second owner with the same token: an engine
    /// that lost its counter may grant a token twice.
    ///
    /// # Errors
    /// [`StaleToken`] if a higher token was seen, or the same one from another owner.
    pub fn admit_owner(&self, resource: &str, token: Token, owner: &Owner) -> Result<(), StaleToken> {
        self.check(resource, token, Some(*owner))
    }

    /// Admits a write, with or without its owner, or refuses it.
    fn check(&self, resource: &str, token: Token, owner: Option<Owner>) -> Result<(), StaleToken> {
        let mut states = self.highest.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = states.get(resource).copied();
        if let Some(seen) = seen.filter(|seen| !admits(*seen, token, owner)) {
            self.metrics.increment("leasehold_fencing_rejected_total", None);
            return Err(StaleToken { token, highest: seen.token });
        }
        states.insert(resource.to_owned(), FenceState { token, owner });
        Ok(())
    }
}
