//! A fence in memory.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::Stale;
use crate::claim::{Owner, Token};
use crate::logic::fence::{Seen, admits};
use crate::meter::Gauges;

/// Stores the highest token of each resource, in memory.
///
/// ```
/// use leasehold::{Token, fence::Fence};
///
/// let fence = Fence::default();
/// fence.admit("stock:42", Token(7))?;
/// fence.admit("stock:42", Token(7))?;                       // the same holder again
/// assert!(fence.admit("stock:42", Token(6)).is_err());      // a holder that was paused for too long
/// # Ok::<(), leasehold::fence::Stale>(())
/// ```
#[derive(Debug, Default)]
pub struct Fence {
    seen: Mutex<HashMap<String, Seen>>,
    gauges: Gauges,
}

impl Fence {
    /// A fence that counts its refusals.
    pub fn with_meter(meter: std::sync::Arc<dyn crate::meter::Meter>) -> Self {
        Self { seen: Mutex::default(), gauges: Gauges::new(meter) }
    }

    /// Admits a write, or refuses it.
    ///
    /// # Errors
    /// [`Stale`] if a higher token was seen.
    pub fn admit(&self, resource: &str, token: Token) -> Result<(), Stale> {
        self.check(resource, token, None)
    }

    /// As [`admit`](Self::admit), and distinguishes two owners with the same token (an engine that
    /// lost its counter).
    ///
    /// # Errors
    /// [`Stale`] if a higher token was seen, or the same one from another owner.
    pub fn admit_owner(&self, resource: &str, token: Token, owner: &Owner) -> Result<(), Stale> {
        self.check(resource, token, Some(*owner))
    }

    fn check(&self, resource: &str, token: Token, owner: Option<Owner>) -> Result<(), Stale> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let last = seen.get(resource).copied();
        if let Some(last) = last.filter(|last| !admits(*last, token, owner)) {
            self.gauges.count("leasehold_fencing_rejected_total", None);
            return Err(Stale { token, seen: last.token });
        }
        seen.insert(resource.to_owned(), Seen { token, owner });
        Ok(())
    }
}
