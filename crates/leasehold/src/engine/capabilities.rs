//! What an engine can do, as data: checked before any I/O, printed by `leasehold engines`, and used
//! to choose the conformance cases.

use std::time::Duration;

use crate::engine::LockOptions;
use crate::logic::lease::Drift;
use crate::types::{Error, ErrorKind, Mode, Result};

/// The order in which waiters acquire the lock.
///
/// ```
/// use leasehold::engine::{Fairness, memory};
///
/// assert_eq!(memory::CAPABILITIES.fairness, Fairness::Fifo);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fairness {
    /// In the order of their arrival.
    Fifo,
    /// In no particular order; there is no queue.
    None,
}

/// How far tokens keep rising.
///
/// ```
/// use leasehold::engine::{Fencing, memory};
///
/// assert_eq!(memory::CAPABILITIES.fencing, Fencing::Volatile);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fencing {
    /// As long as the engine keeps running.
    Volatile,
    /// Across crashes and restarts, too.
    Durable,
}

/// What frees the lock of a holder that does not release it.
///
/// ```
/// use leasehold::engine::{Expiry, memory};
///
/// assert_eq!(memory::CAPABILITIES.expiry, Expiry::Lease);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// The end of its lease.
    Lease,
    /// The end of its lease, or at once the death of its process.
    LeaseOrProcessDeath,
}

/// The processes or hosts that can share a lock.
///
/// ```
/// use leasehold::engine::{Reach, memory};
///
/// assert_eq!(memory::CAPABILITIES.reach, Reach::Process);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The tasks of one process.
    Process,
    /// The processes of one host.
    Host,
    /// Many hosts.
    Network,
}

/// What an engine can do.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let locks = leasehold::Locks::open("memory:").await?;
/// let can = locks.capabilities();
/// assert!(can.shared && can.permits && can.force_release);
/// assert!(can.require(can.records, "records").is_ok());
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The engine's name in errors and tables.
    pub engine: &'static str,
    /// The processes or hosts that can share a lock.
    pub reach: Reach,
    /// Shared mode: read/write locks.
    pub shared: bool,
    /// Permits: semaphores.
    pub permits: bool,
    /// Re-entry by the same owner.
    pub reentrancy: bool,
    /// The order in which waiters acquire the lock.
    pub fairness: Fairness,
    /// How far tokens keep rising.
    pub fencing: Fencing,
    /// What frees the lock of a holder that does not release it.
    pub expiry: Expiry,
    /// Whether holders and waiters can be inspected.
    pub inspection: bool,
    /// Whether an operator can force release (evict) a claim.
    pub force_release: bool,
    /// Whether the engine stores small records beside the locks; schedules need them.
    pub records: bool,
    /// The shortest TTL.
    pub min_ttl: Duration,
    /// The longest TTL.
    pub max_ttl: Duration,
    /// Whether the engine reads this process's clock, and so returns the moment at which a grant
    /// ends.
    pub uses_local_clock: bool,
    /// The clock drift that is deducted from every lease.
    pub drift: Drift,
    /// The failures that it survives, as text.
    pub tolerates: &'static str,
    /// When it fails to exclude, as text.
    pub fails_when: &'static str,
    /// A warning about this deployment, as text; empty if there is none.
    pub warning: &'static str,
}

impl Capabilities {
    /// An engine with this name that can only hold a lock exclusively; set the fields for what more
    /// it can do.
    pub const fn exclusive_only(engine: &'static str) -> Self {
        Self {
            engine,
            reach: Reach::Network,
            shared: false,
            permits: false,
            reentrancy: false,
            fairness: Fairness::None,
            fencing: Fencing::Volatile,
            expiry: Expiry::Lease,
            inspection: false,
            force_release: false,
            records: false,
            min_ttl: Duration::from_millis(100),
            max_ttl: Duration::from_secs(24 * 3600),
            uses_local_clock: false,
            drift: Drift::REMOTE,
            tolerates: "",
            fails_when: "",
            warning: "",
        }
    }

    /// Returns an error if the engine does not support these options.
    pub(crate) fn check_options(&self, options: &LockOptions) -> Result<()> {
        match options.mode {
            Mode::Shared => self.require(self.shared, "shared locks")?,
            Mode::Permits { n, limit } => {
                self.require(self.permits, "semaphores")?;
                check_permits(n, limit)?;
            }
            Mode::Exclusive => {}
        }
        if options.owner.is_some() {
            self.require(self.reentrancy, "re-entry by an owner")?;
        }
        if options.ttl < self.min_ttl || options.ttl > self.max_ttl {
            let (min, max) = (self.min_ttl, self.max_ttl);
            let message = format!("the TTL is between {min:?} and {max:?}, and this one is {:?}", options.ttl);
            return Err(Error::new(ErrorKind::InvalidOption, message).at_engine(self.engine));
        }
        let drift = self.drift.margin_for(options.ttl);
        if drift >= options.ttl / 2 {
            let ttl = options.ttl;
            let message = format!(
                "the clock drift shortens a TTL of {ttl:?} by {drift:?}, and too little is left to renew it in: use a longer TTL, or less drift"
            );
            return Err(Error::new(ErrorKind::InvalidOption, message).at_engine(self.engine));
        }
        Ok(())
    }

    /// Checks for one capability, which the error names.
    ///
    /// # Errors
    /// `Unsupported` unless `is_supported`.
    pub fn require(&self, is_supported: bool, capability: &str) -> Result<()> {
        if is_supported { Ok(()) } else { Err(self.unsupported(capability)) }
    }

    /// The error of a call for something that the engine does not offer.
    pub(crate) fn unsupported(&self, capability: &str) -> Error {
        let message = format!("has no {capability}; `leasehold engines` lists what each engine can do");
        Error::new(ErrorKind::Unsupported, message).at_engine(self.engine)
    }
}

fn check_permits(n: u32, limit: u32) -> Result<()> {
    let message = match (n, limit) {
        (_, 0) => "a semaphore needs a limit of at least 1".to_owned(),
        (0, _) => "a request needs at least 1 permit".to_owned(),
        (n, limit) if n > limit => format!("{n} permits are more than the semaphore's limit of {limit}"),
        _ => return Ok(()),
    };
    Err(Error::new(ErrorKind::InvalidOption, message))
}
