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
    /// A fence that counts its refusals.
    pub fn with_metrics(metrics: std::sync::Arc<dyn crate::metrics::Metrics>) -> Self {
        Self { highest: Mutex::default(), metrics: OptionalMetrics::new(metrics) }
    }

    /// Admits a write, or refuses it.
    ///
    /// # Errors
    /// [`StaleToken`] if a higher token was seen.
    pub fn admit(&self, resource: &str, token: Token) -> Result<(), StaleToken> {
        self.check(resource, token, None)
    }

    /// As [`admit`](Self::admit), and distinguishes two owners with the same token (an engine that
    /// lost its counter).
    ///
    /// # Errors
    /// [`StaleToken`] if a higher token was seen, or the same one from another owner.
    pub fn admit_owner(&self, resource: &str, token: Token, owner: &Owner) -> Result<(), StaleToken> {
        self.check(resource, token, Some(*owner))
    }

    fn check(&self, resource: &str, token: Token, owner: Option<Owner>) -> Result<(), StaleToken> {
        let mut seen = self.highest.lock().unwrap_or_else(PoisonError::into_inner);
        let last = seen.get(resource).copied();
        if let Some(last) = last.filter(|last| !admits(*last, token, owner)) {
            self.metrics.increment("leasehold_fencing_rejected_total", None);
            return Err(StaleToken { token, highest: last.token });
        }
        seen.insert(resource.to_owned(), FenceState { token, owner });
        Ok(())
    }
}
