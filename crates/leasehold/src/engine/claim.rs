//! Claims: a request for a lock, by an owner, in a mode.

use std::sync::Arc;
use std::time::Duration;

use super::lease::Lease;
use crate::clock::{Clock, Instant};
use crate::types::{ClaimId, Holder, LockName, Mode, Owner, Token};

/// The options of a claim. Claims with the same options share them.
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use leasehold::{Holder, LockName, LockOptions, Mode};
///
/// let holder = Arc::new(Holder::this_process());
/// let options = LockOptions::new(LockName::new("stock:42")?, Mode::Exclusive, None, Duration::from_secs(30), holder);
/// assert_eq!(options.name.as_str(), "stock:42");
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct LockOptions {
    /// The name of the lock.
    pub name: LockName,
    /// The mode.
    pub mode: Mode,
    /// The owner that may re-enter; `None`: no re-entry.
    pub owner: Option<Owner>,
    /// How long a grant lasts unless renewed.
    pub ttl: Duration,
    /// The requesting process, for inspection.
    pub holder: Arc<Holder>,
}

impl LockOptions {
    /// The options of a claim. Truncates fields of the holder that exceed what an engine stores.
    pub fn new(name: LockName, mode: Mode, owner: Option<Owner>, ttl: Duration, holder: Arc<Holder>) -> Self {
        let holder = holder.truncated();
        Self { name, mode, owner, ttl, holder }
    }
}

/// One request to hold a lock.
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use leasehold::{Claim, Holder, LockName, LockOptions, Mode};
///
/// let holder = Arc::new(Holder::this_process());
/// let options = LockOptions::new(LockName::new("stock:42")?, Mode::Exclusive, None, Duration::from_secs(30), holder);
/// let claim = Claim::new(Arc::new(options));
/// assert_eq!((claim.name().as_str(), claim.token().0), ("stock:42", 0));   // not granted yet
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Claim {
    /// Made before the request is sent; the engine recognises a retry by it.
    pub id: ClaimId,
    /// The options of the claim.
    pub options: Arc<LockOptions>,
    /// The claim's lease in this process.
    pub(crate) lease: Lease,
}

impl Claim {
    /// A new claim with these options.
    pub fn new(options: Arc<LockOptions>) -> Self {
        Self::with_clock(Clock::system(), options)
    }

    /// A new claim whose lease uses this clock.
    pub(crate) fn with_clock(clock: Clock, options: Arc<LockOptions>) -> Self {
        Self { id: ClaimId::random(), options, lease: Lease::new(clock) }
    }

    /// The name of the lock.
    pub fn name(&self) -> &LockName {
        &self.options.name
    }

    /// The token of its present or last grant; zero if it was never granted.
    pub fn token(&self) -> Token {
        self.lease.token()
    }

    /// From this moment on, its holder does not rely on the lock any more.
    pub fn deadline(&self) -> Instant {
        self.lease.deadline()
    }

    /// Whether its holder released it after an operator asked for that.
    pub fn is_released_on_request(&self) -> bool {
        self.lease.is_released_on_request()
    }

    /// Whether it held the lock, and does no longer.
    pub fn is_over(&self) -> bool {
        self.lease.has_ended()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_holder_fields_are_truncated() {
        let long = "ä".repeat(10_000);
        let holder = Holder::new(&long, 1, &long, &long);
        assert!(
            holder.over_long_field().is_some_and(|message| message.contains("at most 255 bytes")),
            "{:?}",
            holder.over_long_field()
        );
        assert_eq!(Holder::this_process().over_long_field(), None);
        let name = LockName::new("a").expect("a name");
        let options = LockOptions::new(name, Mode::Exclusive, None, Duration::from_secs(1), Arc::new(holder));
        assert_eq!(options.holder.over_long_field(), None);
        assert_eq!((options.holder.host.len(), options.holder.description.len()), (254, 256), "whole characters");
    }
}
