//! Several locks at once, all or nothing.

use std::time::Duration;

use crate::acquire::acquire_all;
use crate::claim::{Mode, Owner, Token};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{Guard, Outcome};
use crate::lease::LostReason;
use crate::locks::Locks;
use crate::logic::admission::covers;
use crate::name::LockName;
use crate::primitives::{Mutex, RwLock, Semaphore};

/// One of several locks, and its mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// An invalid name is reported when the locks are acquired.
    name: Result<LockName, std::sync::Arc<str>>,
    mode: Mode,
}

impl From<&str> for Wanted {
    /// The name, locked exclusively.
    fn from(name: &str) -> Self {
        Self::of(LockName::new(name), Mode::Exclusive)
    }
}

impl From<String> for Wanted {
    fn from(name: String) -> Self {
        name.as_str().into()
    }
}

impl From<&LockName> for Wanted {
    fn from(name: &LockName) -> Self {
        name.as_str().into()
    }
}

impl From<(&str, Mode)> for Wanted {
    fn from((name, mode): (&str, Mode)) -> Self {
        Self::of(LockName::new(name), mode)
    }
}

impl Wanted {
    fn of(name: Result<LockName>, mode: Mode) -> Self {
        Self { name: name.map_err(|error| error.to_string().into()), mode }
    }
}

impl From<&Mutex> for Wanted {
    fn from(mutex: &Mutex) -> Self {
        Self::of(mutex.request.name(), Mode::Exclusive)
    }
}

impl RwLock {
    /// The reading side, as one of several locks for [`Locks::all`].
    pub fn reading(&self) -> Wanted {
        Wanted::of(self.request.name(), Mode::Shared)
    }

    /// The writing side, as one of several locks for [`Locks::all`].
    pub fn writing(&self) -> Wanted {
        Wanted::of(self.request.name(), Mode::Exclusive)
    }
}

impl Semaphore {
    /// This many permits, as one of several locks for [`Locks::all`].
    pub fn permits(&self, permits: u32) -> Wanted {
        Wanted::of(self.request.name(), self.mode(permits))
    }
}

/// Several locks at once. Made by [`Locks::all`]. Acquires them in the order of their names, so
/// that two callers that list them in different orders do not deadlock.
#[derive(Clone)]
pub struct All {
    locks: Locks,
    wanted: Vec<Wanted>,
    ttl: Option<Duration>,
    wait: Option<Duration>,
    max_hold: Option<Duration>,
    owner: Option<Owner>,
    text: Option<String>,
}

impl All {
    pub(crate) fn new(locks: &Locks, wanted: Vec<Wanted>) -> Self {
        Self { locks: locks.clone(), wanted, ttl: None, wait: None, max_hold: None, owner: None, text: None }
    }

    /// As [`Mutex::ttl`].
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Limits the wait for all of them together.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// As [`Mutex::max_hold`].
    #[must_use]
    pub fn max_hold(mut self, most: Duration) -> Self {
        self.max_hold = Some(most);
        self
    }

    /// As [`Mutex::owner`].
    #[must_use]
    pub fn owner(mut self, owner: &Owner) -> Self {
        self.owner = Some(*owner);
        self
    }

    /// As [`Mutex::describe`].
    #[must_use]
    pub fn describe(mut self, text: impl AsRef<str>) -> Self {
        self.text = Some(text.as_ref().to_owned());
        self
    }

    /// Waits until all are held.
    ///
    /// # Errors
    /// As [`Mutex::lock`], about the first lock that failed; then none is held.
    ///
    /// # Cancellation safety
    /// May be dropped at any await point: locks already held are released.
    pub async fn lock(&self) -> Result<AllGuard> {
        let give_up = self.wait.map(|wait| self.locks.clock().now().after(wait));
        let wanted = self.in_order()?;
        // A failure here occurs again below, which handles it.
        if let Ok(Some(guards)) = self.at_once(&wanted, self.wait).await {
            return AllGuard::checked(guards);
        }
        let mut guards = Vec::new();
        for (name, mode) in wanted {
            let left = give_up.map(|at| at.since(self.locks.clock().now()));
            let request = self.request(&name, left);
            guards.push(request.acquire(mode).await?);
        }
        AllGuard::checked(guards)
    }

    /// Acquires all of them if they are free; returns `None`, with nothing held, if one is not.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`].
    pub async fn try_lock(&self) -> Result<Option<AllGuard>> {
        let wanted = self.in_order()?;
        if let Some(guards) = self.at_once(&wanted, None).await? {
            return AllGuard::checked(guards).map(Some);
        }
        let mut guards = Vec::new();
        for (name, mode) in wanted {
            match self.request(&name, None).try_acquire(mode).await? {
                Some(guard) => guards.push(guard),
                None => {
                    AllGuard(guards).release().await?;
                    return Ok(None);
                }
            }
        }
        AllGuard::checked(guards).map(Some)
    }

    /// Acquires all of them in one step, if the engine can and they are free.
    async fn at_once(&self, wanted: &[(LockName, Mode)], wait: Option<Duration>) -> Result<Option<Vec<Guard>>> {
        let terms = wanted.iter().map(|(name, mode)| self.request(name, None).terms(*mode)).collect::<Result<_>>()?;
        acquire_all(&self.locks.shared, terms, wait, self.max_hold).await
    }

    fn request(&self, name: &LockName, wait: Option<Duration>) -> crate::request::Request {
        let mut request = crate::request::Request::new(std::sync::Arc::clone(&self.locks.shared), name.as_str());
        request.set_wait(wait);
        if let Some(ttl) = self.ttl {
            request.set_ttl(ttl);
        }
        if let Some(most) = self.max_hold {
            request.set_max_hold(most);
        }
        if let Some(owner) = self.owner {
            request.set_owner(owner);
        }
        if let Some(text) = &self.text {
            request.describe(text);
        }
        request
    }

    /// Each name once, in the order of the names, with the mode that covers all that was asked of
    /// it.
    fn in_order(&self) -> Result<Vec<(LockName, Mode)>> {
        let mut ordered: Vec<(LockName, Mode)> = Vec::new();
        for wanted in &self.wanted {
            let name = wanted.name.clone().map_err(|message| Error::new(ErrorKind::InvalidName, &*message))?;
            match ordered.iter_mut().find(|(known, _)| *known == name) {
                None => ordered.push((name, wanted.mode)),
                Some((_, mode)) if covers(*mode, wanted.mode) => {}
                Some((_, mode)) if covers(wanted.mode, *mode) => *mode = wanted.mode,
                Some((_, mode)) => {
                    let message = format!("is wanted twice, {mode} and {}, which exclude each other", wanted.mode);
                    return Err(Error::new(ErrorKind::Conflict, message).about(&name));
                }
            }
        }
        ordered.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(ordered)
    }
}

/// Several held locks. They end together: if one is lost, the whole guard is lost.
#[must_use = "the locks are given back as soon as the guard is dropped"]
#[derive(Debug)]
pub struct AllGuard(Vec<Guard>);

impl AllGuard {
    fn checked(guards: Vec<Guard>) -> Result<Self> {
        let all = Self(guards);
        match all.0.iter().find(|guard| !guard.is_held()) {
            None => Ok(all),
            Some(lost) => {
                let message = "was lost again while the others were waited for";
                let error = Error::new(ErrorKind::Lost, message).about(lost.name()).retryable();
                Err(lost.shared().locate(error))
            }
        }
    }

    /// The guards, by name.
    pub fn guards(&self) -> &[Guard] {
        &self.0
    }

    /// The token of one of the locks.
    pub fn token(&self, name: &str) -> Option<Token> {
        self.0.iter().find(|guard| guard.name().as_str() == name).map(Guard::token)
    }

    /// Whether all of them are held right now.
    pub fn is_held(&self) -> bool {
        self.0.iter().all(Guard::is_held)
    }

    /// Waits until one of them is lost, and returns which and why.
    pub async fn lost(&self) -> (&LockName, LostReason) {
        let waits = self.0.iter().map(|guard| Box::pin(async move { (guard.name(), guard.lost().await) }));
        let waits: Vec<_> = waits.collect();
        if waits.is_empty() {
            return std::future::pending().await;
        }
        futures_util::future::select_all(waits).await.0
    }

    /// Waits until an operator asks for the release of one of them, and returns which. As
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

    /// Releases all of them, the last acquired first, and returns the outcome of each, by name.
    ///
    /// # Errors
    /// The first error, after all were tried.
    pub async fn release(self) -> Result<Vec<(LockName, Outcome)>> {
        // All at once, so that it takes no longer than one release.
        let release = async |guard: Guard| (guard.name().clone(), guard.release().await);
        let released = futures_util::future::join_all(self.0.into_iter().rev().map(release)).await;
        released.into_iter().rev().map(|(name, outcome)| outcome.map(|outcome| (name, outcome))).collect()
    }
}
