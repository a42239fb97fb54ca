//! The options that all primitives share.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::acquire::{Patience, acquire};
use crate::claim::{Holder, MAX_DESCRIPTION, Mode, Owner, Terms};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::locks::Shared;
use crate::name::LockName;

/// A request without its mode. Invalid options are kept and reported when the lock is requested, so
/// that options can be chained.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) shared: Arc<Shared>,
    name: Result<LockName, Arc<str>>,
    pub(crate) ttl: Option<Duration>,
    wait: Option<Duration>,
    max_hold: Option<Duration>,
    owner: Option<Owner>,
    holder: Result<Option<Arc<Holder>>, Arc<str>>,
    /// The terms of the last claim, reused for the next one of the same mode.
    terms: OnceLock<Arc<Terms>>,
}

impl Request {
    pub(crate) fn new(shared: Arc<Shared>, name: &str) -> Self {
        let name = LockName::new(name).map_err(|error| error.to_string().into());
        Self {
            shared,
            name,
            ttl: None,
            wait: None,
            max_hold: None,
            owner: None,
            holder: Ok(None),
            terms: OnceLock::new(),
        }
    }

    pub(crate) fn name(&self) -> Result<LockName> {
        self.name.clone().map_err(|message| Error::new(ErrorKind::InvalidName, &*message))
    }

    pub(crate) fn describe(&mut self, text: &str) {
        self.terms.take();
        self.holder = if let Some(control) = text.chars().find(|c| c.is_control()) {
            Err(format!("a description has no control characters, and this has {control:?}").into())
        } else if text.len() > MAX_DESCRIPTION {
            Err(format!("a description has at most {MAX_DESCRIPTION} bytes, and this has {}", text.len()).into())
        } else {
            Ok(Some(Arc::new(self.shared.holder.with_text(text))))
        };
    }

    /// The terms of a claim in this mode, built once for all claims of the mode.
    pub(crate) fn terms(&self, mode: Mode) -> Result<Arc<Terms>> {
        match self.terms.get() {
            Some(terms) if terms.mode == mode => Ok(Arc::clone(terms)),
            Some(_) => self.new_terms(mode),
            None => {
                let terms = self.new_terms(mode)?;
                Ok(Arc::clone(self.terms.get_or_init(|| Arc::clone(&terms))))
                    .map(|kept| if kept.mode == mode { kept } else { terms })
            }
        }
    }

    fn new_terms(&self, mode: Mode) -> Result<Arc<Terms>> {
        let name = self.name()?;
        let holder = match &self.holder {
            Ok(None) => Arc::clone(&self.shared.holder),
            Ok(Some(holder)) => Arc::clone(holder),
            Err(message) => return Err(Error::new(ErrorKind::InvalidOption, &**message).about(&name)),
        };
        if let Some(message) = holder.too_long() {
            return Err(Error::new(ErrorKind::InvalidOption, message).about(&name));
        }
        let ttl = self.ttl.unwrap_or(self.shared.ttl);
        if self.max_hold.is_some_and(|most| most.is_zero()) {
            return Err(Error::new(ErrorKind::InvalidOption, "max_hold must be longer than nothing").about(&name));
        }
        Ok(Arc::new(Terms::new(name, mode, self.owner, ttl, holder)))
    }

    pub(crate) async fn acquire(&self, mode: Mode) -> Result<Guard> {
        let patience = self.wait.map_or(Patience::Forever, Patience::For);
        let guard = acquire(&self.shared, self.terms(mode)?, patience, self.max_hold).await?;
        guard.ok_or_else(|| Error::new(ErrorKind::Timeout, "not free"))
    }

    pub(crate) async fn try_acquire(&self, mode: Mode) -> Result<Option<Guard>> {
        acquire(&self.shared, self.terms(mode)?, Patience::Try, self.max_hold).await
    }

    pub(crate) fn set_ttl(&mut self, ttl: Duration) {
        self.ttl = Some(ttl);
        self.terms.take();
    }

    pub(crate) fn set_wait(&mut self, wait: Option<Duration>) {
        self.wait = wait;
    }

    pub(crate) fn set_max_hold(&mut self, most: Duration) {
        self.max_hold = Some(most);
        self.terms.take();
    }

    pub(crate) fn set_owner(&mut self, owner: Owner) {
        self.owner = Some(owner);
        self.terms.take();
    }
}

/// Defines the options on a type whose `request` field is a [`Request`].
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
        pub fn wait(mut self, wait: std::time::Duration) -> Self {
            self.request.set_wait(Some(wait));
            self
        }

        /// Limits the hold: after this time the keeper does not renew the lease, its guard is lost
        /// and the lock is free.
        #[must_use]
        pub fn max_hold(mut self, most: std::time::Duration) -> Self {
            self.request.set_max_hold(most);
            self
        }

        /// Sets the owner that may re-enter. Another request of the same owner is granted at once,
        /// with the same token; the lock is free after the last release.
        #[must_use]
        pub fn owner(mut self, owner: &crate::Owner) -> Self {
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
