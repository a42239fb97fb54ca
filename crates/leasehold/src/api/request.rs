//! The request of a primitive: the lock's name and the options that all primitives share.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::core::acquire::{WaitLimit, acquire};
use crate::core::guard::Guard;
use crate::core::shared::Shared;
use crate::engine::LockOptions;
use crate::types::{Error, ErrorKind, Holder, LockName, MAX_DESCRIPTION, Mode, Owner, Result};

/// The options of a request, all but its mode. An invalid option is stored as its error message and
/// reported when the lock is requested, so that options can be chained.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) shared: Arc<Shared>,
    name: Result<LockName, Arc<str>>,
    /// `None`: the TTL of the `Locks`.
    pub(crate) ttl: Option<Duration>,
    /// How long the caller waits for the lock; `None`: without limit.
    timeout: Option<Duration>,
    /// `None`: the hold is not limited.
    max_hold: Option<Duration>,
    owner: Option<Owner>,
    /// The holder with this request's description; `None`: it has none, and the holder of the
    /// `Locks` is used.
    holder: Result<Option<Arc<Holder>>, Arc<str>>,
    /// The options of the last claim, reused for the next one of the same mode.
    options: OnceLock<Arc<LockOptions>>,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("name", &self.name)
            .field("ttl", &self.ttl)
            .field("timeout", &self.timeout)
            .field("max_hold", &self.max_hold)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}

impl Request {
    pub(crate) fn new(shared: Arc<Shared>, name: &str) -> Self {
        let name = LockName::new(name).map_err(|error| error.to_string().into());
        Self {
            shared,
            name,
            ttl: None,
            timeout: None,
            max_hold: None,
            owner: None,
            holder: Ok(None),
            options: OnceLock::new(),
        }
    }

    /// The name of the lock, or the error `InvalidName`.
    pub(crate) fn name(&self) -> Result<LockName> {
        self.name.clone().map_err(|message| Error::new(ErrorKind::InvalidName, &*message))
    }

    /// Sets the description; an invalid one is reported when the lock is requested.
    pub(crate) fn describe(&mut self, text: &str) {
        self.options.take();
        self.holder = if let Some(control) = text.chars().find(|c| c.is_control()) {
            Err(format!("a description has no control characters, and this has {control:?}").into())
        } else if text.len() > MAX_DESCRIPTION {
            Err(format!("a description has at most {MAX_DESCRIPTION} bytes, and this has {}", text.len()).into())
        } else {
            Ok(Some(Arc::new(self.shared.holder.with_description(text))))
        };
    }

    /// The options of a claim in this mode: those of the last claim if it had the same mode.
    pub(crate) fn lock_options(&self, mode: Mode) -> Result<Arc<LockOptions>> {
        match self.options.get() {
            Some(options) if options.mode == mode => Ok(Arc::clone(options)),
            Some(_) => self.new_lock_options(mode),
            None => {
                let options = self.new_lock_options(mode)?;
                Ok(Arc::clone(self.options.get_or_init(|| Arc::clone(&options))))
                    .map(|kept| if kept.mode == mode { kept } else { options })
            }
        }
    }

    /// The options of a claim in this mode, or the error of the first invalid option.
    fn new_lock_options(&self, mode: Mode) -> Result<Arc<LockOptions>> {
        let name = self.name()?;
        let holder = match &self.holder {
            Ok(None) => Arc::clone(&self.shared.holder),
            Ok(Some(holder)) => Arc::clone(holder),
            Err(message) => return Err(Error::new(ErrorKind::InvalidOption, &**message).about_lock(&name)),
        };
        if let Some(message) = holder.over_long_field() {
            return Err(Error::new(ErrorKind::InvalidOption, message).about_lock(&name));
        }
        let ttl = self.ttl.unwrap_or(self.shared.ttl);
        if self.max_hold.is_some_and(|limit| limit.is_zero()) {
            return Err(Error::new(ErrorKind::InvalidOption, "max_hold must be longer than zero").about_lock(&name));
        }
        Ok(Arc::new(LockOptions::new(name, mode, self.owner, ttl, holder)))
    }

    /// Waits for the lock, no longer than the timeout if there is one.
    pub(crate) async fn acquire(&self, mode: Mode) -> Result<Guard> {
        let wait_limit = self.timeout.map_or(WaitLimit::Unlimited, WaitLimit::AtMost);
        let guard = acquire(&self.shared, self.lock_options(mode)?, wait_limit, self.max_hold).await?;
        guard.ok_or_else(|| Error::new(ErrorKind::Timeout, "not free"))
    }

    /// Acquires the lock if it is free; `None` if not.
    pub(crate) async fn try_acquire(&self, mode: Mode) -> Result<Option<Guard>> {
        acquire(&self.shared, self.lock_options(mode)?, WaitLimit::NoWait, self.max_hold).await
    }

    pub(crate) fn set_ttl(&mut self, ttl: Duration) {
        self.ttl = Some(ttl);
        self.options.take();
    }

    pub(crate) fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    pub(crate) fn set_max_hold(&mut self, limit: Duration) {
        self.max_hold = Some(limit);
        self.options.take();
    }

    pub(crate) fn set_owner(&mut self, owner: Owner) {
        self.owner = Some(owner);
        self.options.take();
    }
}

/// Defines the methods that set options, on a type whose `request` field is a [`Request`].
macro_rules! options {
    () => {
        /// Sets the TTL: how long a grant lasts unless renewed, so also how long the lock stays
        /// held after a crash. The keeper renews the lease every third of the TTL.
        #[must_use]
        pub fn ttl(mut self, ttl: std::time::Duration) -> Self {
            self.request.set_ttl(ttl);
            self
        }

        /// Limits the wait for the lock; without it, requests wait without limit.
        #[must_use]
        pub fn timeout(mut self, timeout: std::time::Duration) -> Self {
            self.request.set_timeout(Some(timeout));
            self
        }

        /// Limits how long the lock is held: this time after the grant its guard is lost and the
        /// lock is free, whether the holder is done or not.
        #[must_use]
        pub fn max_hold(mut self, limit: std::time::Duration) -> Self {
            self.request.set_max_hold(limit);
            self
        }

        /// Sets the owner that may re-enter. Another request of the same owner is granted at once,
        /// with the same token; the lock is free after the last release.
        #[must_use]
        pub fn owner(mut self, owner: &crate::types::Owner) -> Self {
            self.request.set_owner(*owner);
            self
        }

        /// Adds free text that inspection shows beside host, process and program.
        #[must_use]
        pub fn describe(mut self, text: impl AsRef<str>) -> Self {
            self.request.describe(text.as_ref());
            self
        }
    };
}
pub(crate) use options;
