//! What an engine can do, declared as data. Calls are checked against it before any I/O, `leasehold
//! engines` prints it, and it selects the conformance cases that an engine must pass.

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
    /// Tokens rise only until the server (or, for an engine in memory, the process) restarts or
    /// loses its data.
    Volatile,
    /// Tokens keep rising across crashes and restarts.
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
    /// The death of its process, at once; or the end of its lease.
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
    /// Only the tasks of one process.
    Process,
    /// Only the processes of one host.
    Host,
    /// Processes on any host that reaches the servers.
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
    /// Whether claims can hold a lock in shared mode, for read/write locks.
    pub shared: bool,
    /// Whether claims can hold permits, for semaphores.
    pub permits: bool,
    /// Whether an owner that holds a lock can acquire it again.
    pub reentrancy: bool,
    /// The order in which waiters acquire the lock.
    pub fairness: Fairness,
    /// What the rise of fencing tokens survives.
    pub fencing: Fencing,
    /// What frees the lock of a holder that does not release it.
    pub expiry: Expiry,
    /// Whether holders and waiters can be inspected.
    pub inspection: bool,
    /// Whether an operator can force release a claim.
    pub force_release: bool,
    /// Whether the engine stores small records beside the locks; schedules need them.
    pub records: bool,
    /// The shortest TTL that a claim may have.
    pub min_ttl: Duration,
    /// The longest TTL that a claim may have.
    pub max_ttl: Duration,
    /// Whether leases are measured on this process's clock. Then the engine itself decides whether
    /// a release came before the lease ended.
    pub uses_local_clock: bool,
    /// The clock drift that is deducted from every lease.
    pub drift: Drift,
    /// The failures under which its guarantees still hold, as text for people.
    pub tolerates: &'static str,
    /// When two holders are possible all the same, as text for people.
    pub fails_when: &'static str,
    /// A warning about this deployment, as text for people; empty if there is none.
    pub warning: &'static str,
}

impl Capabilities {
    /// The capabilities of an engine that can only hold a lock exclusively, as a base: an engine
    /// sets the fields for what more it can do. `engine` is its name in errors.
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

    /// Checks that the engine supports the mode, the owner and the TTL of a claim.
    ///
    /// # Errors
    /// `Unsupported`, or `InvalidOption` for a TTL or permits outside the limits.
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
            let message = format!("the TTL must be between {min:?} and {max:?}, but is {:?}", options.ttl);
            return Err(Error::new(ErrorKind::InvalidOption, message).at_engine(self.engine));
        }
        let drift = self.drift.margin_for(options.ttl);
        if drift >= options.ttl / 2 {
            let ttl = options.ttl;
            let message = format!(
                "the clock drift shortens a TTL of {ttl:?} by {drift:?}, which leaves too little time to renew it: use a longer TTL, or allow less drift"
            );
            return Err(Error::new(ErrorKind::InvalidOption, message).at_engine(self.engine));
        }
        Ok(())
    }

    /// Returns an error that names `capability`, unless `is_supported`.
    ///
    /// # Errors
    /// `Unsupported`.
    pub fn require(&self, is_supported: bool, capability: &str) -> Result<()> {
        if is_supported { Ok(()) } else { Err(self.unsupported_error(capability)) }
    }

    /// The error for a call that needs a capability that the engine lacks.
    pub(crate) fn unsupported_error(&self, capability: &str) -> Error {
        let message = format!("has no {capability}; `leasehold engines` lists what each engine can do");
        Error::new(ErrorKind::Unsupported, message).at_engine(self.engine)
    }
}

/// Checks a request for `n` permits of a semaphore with `limit` permits.
fn check_permits(n: u32, limit: u32) -> Result<()> {
    let message = match (n, limit) {
        (_, 0) => "a semaphore needs a limit of at least 1".to_owned(),
        (0, _) => "a request needs at least 1 permit".to_owned(),
        (n, limit) if n > limit => format!("{n} permits are more than the semaphore's limit of {limit}"),
        _ => return Ok(()),
    };
    Err(Error::new(ErrorKind::InvalidOption, message))
}
