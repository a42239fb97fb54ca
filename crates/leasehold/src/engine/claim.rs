//! A claim is one request to hold a lock in some mode, from the first attempt to the release.

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
    /// Exclusive, shared, or a number of permits.
    pub mode: Mode,
    /// Claims of the same owner re-enter the lock that one of them holds. `None`: the claim
    /// re-enters with no other.
    pub owner: Option<Owner>,
    /// How long the lease of a grant lasts unless renewed.
    pub ttl: Duration,
    /// Host, pid, program and description of the requesting process, which inspection shows.
    pub holder: Arc<Holder>,
}

impl LockOptions {
    /// Truncates the fields of `holder` that are longer than engines store.
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
    /// A random id, made before the first request. The engine recognises a repeated request by it.
    pub id: ClaimId,
    /// What the claim requests.
    pub options: Arc<LockOptions>,
    /// The state of the claim in this process: its token, its deadline, and whether it was lost.
    pub(crate) lease: Lease,
}

impl Claim {
    /// A new claim with a random id, whose lease uses the system clock.
    pub fn new(options: Arc<LockOptions>) -> Self {
        Self::with_clock(Clock::system(), options)
    }

    /// A new claim with a random id, whose lease uses `clock`.
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

    /// From this moment on its holder must not rely on the lock any more, unless it is renewed
    /// before.
    pub fn deadline(&self) -> Instant {
        self.lease.deadline()
    }

    /// Whether an operator requested its release, and its holder then released it in time.
    pub fn is_released_on_request(&self) -> bool {
        self.lease.is_released_on_request()
    }

    /// Whether it held the lock and has released or lost it.
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
