//! Several locks that are acquired together, all or none.

use std::sync::Arc;
use std::time::Duration;

use crate::api::locks::Locks;
use crate::api::primitives::{Mutex, RwLock, Semaphore};
use crate::api::request::Request;
use crate::core::acquire::acquire_all;
use crate::core::guard::{Guard, ReleaseOutcome};
use crate::engine::LostReason;
use crate::logic::admission::covers;
use crate::types::{Error, ErrorKind, LockName, Mode, Owner, Result, Token};

/// A lock, and the mode in which [`Locks::multi_lock`] acquires it together with others.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let locks = leasehold::Locks::open("memory:").await?;
/// use leasehold::LockSpec;
///
/// let specs = [
///     LockSpec::from("account:7"),                      // exclusive
///     locks.rwlock("rates").read_spec(),
///     locks.semaphore("workers", 4).permits_spec(2),
/// ];
/// let guard = locks.multi_lock(specs).lock().await?;
/// assert_eq!(guard.guards().len(), 3);
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockSpec {
    /// The name, or the error message of an invalid one, which is reported when the locks are
    /// acquired.
    name: Result<LockName, Arc<str>>,
    mode: Mode,
}

impl From<&str> for LockSpec {
    /// The lock with this name, acquired exclusively.
    fn from(name: &str) -> Self {
        Self::from_result(LockName::new(name), Mode::Exclusive)
    }
}

impl From<String> for LockSpec {
    fn from(name: String) -> Self {
        name.as_str().into()
    }
}

impl From<&LockName> for LockSpec {
    fn from(name: &LockName) -> Self {
        name.as_str().into()
    }
}

impl From<(&str, Mode)> for LockSpec {
    fn from((name, mode): (&str, Mode)) -> Self {
        Self::from_result(LockName::new(name), mode)
    }
}

impl LockSpec {
    /// A spec of this lock; if the name is invalid, it keeps the error's message.
    fn from_result(name: Result<LockName>, mode: Mode) -> Self {
        Self { name: name.map_err(|error| error.to_string().into()), mode }
    }
}

impl From<&Mutex> for LockSpec {
    fn from(mutex: &Mutex) -> Self {
        Self::from_result(mutex.request.name(), Mode::Exclusive)
    }
}

impl RwLock {
    /// The shared (reading) mode of this lock, as one of several locks for [`Locks::multi_lock`].
    /// The options of this `RwLock` do not apply.
    pub fn read_spec(&self) -> LockSpec {
        LockSpec::from_result(self.request.name(), Mode::Shared)
    }

    /// The exclusive (writing) mode of this lock, as one of several locks for
    /// [`Locks::multi_lock`]. The options of this `RwLock` do not apply.
    pub fn write_spec(&self) -> LockSpec {
        LockSpec::from_result(self.request.name(), Mode::Exclusive)
    }
}

impl Semaphore {
    /// This many permits, as one of several locks for [`Locks::multi_lock`]. The options of this
    /// `Semaphore` do not apply.
    pub fn permits_spec(&self, permits: u32) -> LockSpec {
        LockSpec::from_result(self.request.name(), self.mode(permits))
    }
}

/// Several locks that are acquired together, all or none. Made by [`Locks::multi_lock`]. Acquires
/// them in the order of their names, so that two callers that list them in different orders do not
/// deadlock.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let locks = leasehold::Locks::open("memory:").await?;
/// let accounts = locks.multi_lock(["account:9", "account:7"]);
/// let guard = accounts.lock().await?;
/// assert!(accounts.try_lock().await?.is_none(), "both are held");
/// guard.release().await?;
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct MultiLock {
    locks: Locks,
    specs: Vec<LockSpec>,
    ttl: Option<Duration>,
    timeout: Option<Duration>,
    max_hold: Option<Duration>,
    owner: Option<Owner>,
    description: Option<String>,
}

impl MultiLock {
    pub(crate) fn new(locks: &Locks, specs: Vec<LockSpec>) -> Self {
        Self { locks: locks.clone(), specs, ttl: None, timeout: None, max_hold: None, owner: None, description: None }
    }

    /// Sets the TTL of each lock, as [`Mutex::ttl`].
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Limits the wait for all locks together; without it, the request waits without limit.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Limits how long each lock is held, as [`Mutex::max_hold`].
    #[must_use]
    pub fn max_hold(mut self, limit: Duration) -> Self {
        self.max_hold = Some(limit);
        self
    }

    /// Sets the owner that may re-enter each lock, as [`Mutex::owner`].
    #[must_use]
    pub fn owner(mut self, owner: &Owner) -> Self {
        self.owner = Some(*owner);
        self
    }

    /// Adds free text that inspection shows for each lock, as [`Mutex::describe`].
    #[must_use]
    pub fn describe(mut self, text: impl AsRef<str>) -> Self {
        self.description = Some(text.as_ref().to_owned());
        self
    }

    /// Waits until all locks are held.
    ///
    /// # Errors
    /// As [`Mutex::lock`], about the first lock that failed; then none is held.
    ///
    /// # Cancellation safety
    /// May be dropped at any await point: locks already held are released.
    pub async fn lock(&self) -> Result<MultiLockGuard> {
        let give_up_at = self.timeout.map(|wait| self.locks.clock().now().saturating_add(wait));
        let wanted = self.merge_sorted()?;
        // An error here is not returned: one by one, the locks fail with the same error, or succeed
        // after a retry.
        if let Ok(Some(guards)) = self.try_acquire_at_once(&wanted, self.timeout).await {
            return MultiLockGuard::from_guards(guards);
        }
        let mut guards = Vec::new();
        for (name, mode) in wanted {
            let left = give_up_at.map(|at| at.duration_since(self.locks.clock().now()));
            let request = self.request(&name, left);
            guards.push(request.acquire(mode).await?);
        }
        MultiLockGuard::from_guards(guards)
    }

    /// Acquires all locks if they are free; returns `None`, with nothing held, if one is not.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`].
    pub async fn try_lock(&self) -> Result<Option<MultiLockGuard>> {
        let wanted = self.merge_sorted()?;
        if let Some(guards) = self.try_acquire_at_once(&wanted, None).await? {
            return MultiLockGuard::from_guards(guards).map(Some);
        }
        let mut guards = Vec::new();
        for (name, mode) in wanted {
            match self.request(&name, None).try_acquire(mode).await? {
                Some(guard) => guards.push(guard),
                None => {
                    MultiLockGuard(guards).release().await?;
                    return Ok(None);
                }
            }
        }
        MultiLockGuard::from_guards(guards).map(Some)
    }

    /// Acquires all locks in one step. `None`, with nothing held: the engine cannot, or one of them
    /// is not free.
    async fn try_acquire_at_once(
        &self,
        wanted: &[(LockName, Mode)],
        timeout: Option<Duration>,
    ) -> Result<Option<Vec<Guard>>> {
        let options =
            wanted.iter().map(|(name, mode)| self.request(name, None).lock_options(*mode)).collect::<Result<_>>()?;
        acquire_all(&self.locks.shared, options, timeout, self.max_hold).await
    }

    /// The request for one of the locks, with the options of this `MultiLock`.
    fn request(&self, name: &LockName, timeout: Option<Duration>) -> Request {
        let mut request = Request::new(Arc::clone(&self.locks.shared), name.as_str());
        request.set_timeout(timeout);
        if let Some(ttl) = self.ttl {
            request.set_ttl(ttl);
        }
        if let Some(limit) = self.max_hold {
            request.set_max_hold(limit);
        }
        if let Some(owner) = self.owner {
            request.set_owner(owner);
        }
        if let Some(text) = &self.description {
            request.describe(text);
        }
        request
    }

    /// Each name once, in the order of the names, with the mode that covers all its specs.
    fn merge_sorted(&self) -> Result<Vec<(LockName, Mode)>> {
        let mut ordered: Vec<(LockName, Mode)> = Vec::new();
        for wanted in &self.specs {
            let name = wanted.name.clone().map_err(|message| Error::new(ErrorKind::InvalidName, &*message))?;
            match ordered.iter_mut().find(|(known, _)| *known == name) {
                None => ordered.push((name, wanted.mode)),
                Some((_, mode)) if covers(*mode, wanted.mode) => {}
                Some((_, mode)) if covers(wanted.mode, *mode) => *mode = wanted.mode,
                Some((_, mode)) => {
                    let message =
                        format!("is requested twice, as {mode} and {}, which exclude each other", wanted.mode);
                    return Err(Error::new(ErrorKind::Conflict, message).about_lock(&name));
                }
            }
        }
        ordered.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(ordered)
    }
}

/// Several held locks. They end together: if one is lost, the whole guard is lost. Dropping it
/// releases all of them in the background.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let locks = leasehold::Locks::open("memory:").await?;
/// use leasehold::ReleaseOutcome;
///
/// let guard = locks.multi_lock(["account:9", "account:7"]).lock().await?;
/// assert_eq!(guard.guards()[0].name().as_str(), "account:7");
/// assert!(guard.is_held() && guard.token("account:9").is_some());
/// for (name, outcome) in guard.release().await? {
///     assert_eq!(outcome, ReleaseOutcome::Released, "{name}");
/// }
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[must_use = "the locks are released as soon as the guard is dropped"]
#[derive(Debug)]
pub struct MultiLockGuard(Vec<Guard>);

impl MultiLockGuard {
    /// The guard of these locks, unless one of them was lost while the others were acquired.
    fn from_guards(guards: Vec<Guard>) -> Result<Self> {
        let held = Self(guards);
        match held.0.iter().find(|guard| !guard.is_held()) {
            None => Ok(held),
            Some(lost) => {
                let message = "was lost while waiting for the other locks; acquire all of them again";
                let error = Error::new(ErrorKind::Lost, message).about_lock(lost.name()).retryable();
                Err(lost.shared().locate(error))
            }
        }
    }

    /// The guards of the locks, in the order of their names.
    pub fn guards(&self) -> &[Guard] {
        &self.0
    }

    /// The fencing token of the lock `name`; `None` if it is not one of the locks.
    pub fn token(&self, name: &str) -> Option<Token> {
        self.0.iter().find(|guard| guard.name().as_str() == name).map(Guard::token)
    }

    /// Whether all locks are held right now.
    pub fn is_held(&self) -> bool {
        self.0.iter().all(Guard::is_held)
    }

    /// Waits until one of the locks is lost, and returns its name and the reason. Does not complete
    /// while all are held, or if there are none.
    pub async fn lost(&self) -> (&LockName, LostReason) {
        let waits = self.0.iter().map(|guard| Box::pin(async move { (guard.name(), guard.lost().await) }));
        let waits: Vec<_> = waits.collect();
        if waits.is_empty() {
            return std::future::pending().await;
        }
        futures_util::future::select_all(waits).await.0
    }

    /// Waits until an operator requests the release of one of the locks, and returns its name. See
    /// [`Guard::release_requested`].
    pub async fn release_requested(&self) -> &LockName {
        let waits = self.0.iter().map(|guard| {
            Box::pin(async move {
                guard.release_requested().await;
                guard.name()
            })
        });
        let waits: Vec<_> = waits.collect();
        if waits.is_empty() {
            return std::future::pending().await;
        }
        futures_util::future::select_all(waits).await.0
    }

    /// Releases all locks and returns the outcome of each, in the order of their names.
    ///
    /// # Errors
    /// The first error, after all were tried.
    pub async fn release(self) -> Result<Vec<(LockName, ReleaseOutcome)>> {
        // All at once, so that it takes no longer than one release.
        let release = async |guard: Guard| (guard.name().clone(), guard.release().await);
        let released = futures_util::future::join_all(self.0.into_iter().rev().map(release)).await;
        released.into_iter().rev().map(|(name, outcome)| outcome.map(|outcome| (name, outcome))).collect()
    }
}
