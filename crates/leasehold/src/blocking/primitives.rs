//! The primitives: each forwards its options and its calls to its async twin.

use std::sync::Arc;
use std::time::Duration;

use super::guard::{AllGuard, Guard, Here, Leadership};
use super::worker::Worker;
use crate::all::Wanted;
use crate::claim::Owner;
use crate::election::Leader;
use crate::error::{Error, ErrorKind, Result};

/// A primitive: the options, and calls of the same name as the twin's.
macro_rules! primitive {
    (
        $(#[$doc:meta])* $name:ident {
            $($(#[$call_doc:meta])* fn $call:ident(&self $(, $arg:ident: $type:ty)?) -> Result<$answer:ty>;)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone)]
        pub struct $name {
            inner: crate::$name,
            worker: Arc<Worker>,
        }

        impl $name {
            pub(super) fn new(inner: crate::$name, worker: &Arc<Worker>) -> Self {
                Self { inner, worker: Arc::clone(worker) }
            }

            /// How long a grant lasts unless renewed.
            #[must_use]
            pub fn ttl(self, ttl: Duration) -> Self {
                Self { inner: self.inner.ttl(ttl), ..self }
            }

            /// How long to wait; for ever if not set.
            #[must_use]
            pub fn wait(self, wait: Duration) -> Self {
                Self { inner: self.inner.wait(wait), ..self }
            }

            /// After so long it is not renewed any more, and lost.
            #[must_use]
            pub fn max_hold(self, most: Duration) -> Self {
                Self { inner: self.inner.max_hold(most), ..self }
            }

            /// Who may re-enter.
            #[must_use]
            pub fn owner(self, owner: &Owner) -> Self {
                Self { inner: self.inner.owner(owner), ..self }
            }

            /// Free text that others see.
            #[must_use]
            pub fn describe(self, text: impl AsRef<str>) -> Self {
                Self { inner: self.inner.describe(text), ..self }
            }

            $(
                $(#[$call_doc])*
                ///
                /// # Errors
                /// As the async method of this name.
                pub fn $call(&self $(, $arg: $type)?) -> Result<$answer> {
                    let twin = self.inner.clone();
                    let answer = self.worker.call(async move { twin.$call($($arg)?).await })?;
                    Ok(answer.here(&self.worker))
                }
            )*
        }
    };
}

primitive! {
    /// As [`crate::Mutex`], without async.
    Mutex {
        /// Waits for the lock: for ever, or as long as [`wait`](Self::wait) says.
        fn lock(&self) -> Result<Guard>;
        /// Takes the lock if it is free; `None` if not.
        fn try_lock(&self) -> Result<Option<Guard>>;
    }
}

primitive! {
    /// As [`crate::RwLock`], without async.
    RwLock {
        /// Waits for a shared hold.
        fn read(&self) -> Result<Guard>;
        /// Takes a shared hold if it can be had at once.
        fn try_read(&self) -> Result<Option<Guard>>;
        /// Waits for an exclusive hold.
        fn write(&self) -> Result<Guard>;
        /// Takes an exclusive hold if it can be had at once.
        fn try_write(&self) -> Result<Option<Guard>>;
    }
}

primitive! {
    /// As [`crate::Semaphore`], without async.
    Semaphore {
        /// Waits for `permits` at once.
        fn acquire(&self, permits: u32) -> Result<Guard>;
        /// Takes `permits` if they can be had at once.
        fn try_acquire(&self, permits: u32) -> Result<Option<Guard>>;
    }
}

primitive! {
    /// As [`crate::All`], without async.
    All {
        /// Waits until all are held.
        fn lock(&self) -> Result<AllGuard>;
        /// Takes all of them if they are free; `None`, and nothing held, if one is not.
        fn try_lock(&self) -> Result<Option<AllGuard>>;
    }
}

primitive! {
    /// As [`crate::Election`], without async.
    Election {
        /// Waits until elected.
        fn campaign(&self) -> Result<Leadership>;
        /// Leads if nobody does; `None` if somebody does.
        fn try_campaign(&self) -> Result<Option<Leadership>>;
        /// Who leads at present.
        fn leader(&self) -> Result<Option<Leader>>;
    }
}

impl From<&Mutex> for Wanted {
    fn from(mutex: &Mutex) -> Self {
        (&mutex.inner).into()
    }
}

impl RwLock {
    /// The reading side, as one of several locks for [`Locks::all`](super::Locks::all).
    pub fn reading(&self) -> Wanted {
        self.inner.reading()
    }

    /// The writing side, as one of several locks for [`Locks::all`](super::Locks::all).
    pub fn writing(&self) -> Wanted {
        self.inner.writing()
    }
}

impl Semaphore {
    /// So many permits, as one of several locks for [`Locks::all`](super::Locks::all).
    pub fn permits(&self, permits: u32) -> Wanted {
        self.inner.permits(permits)
    }
}

impl Election {
    /// Follows the leader from now on.
    ///
    /// # Errors
    /// As the async method of this name.
    pub fn observe(&self) -> Result<Observer> {
        Ok(Observer { inner: Some(self.inner.observe()?), worker: Arc::clone(&self.worker) })
    }
}

/// As [`crate::Observer`], without async.
#[derive(Debug)]
pub struct Observer {
    /// Away with the call that is under way; missing after the thread failed during one.
    inner: Option<crate::Observer>,
    worker: Arc<Worker>,
}

impl Observer {
    /// Says who leads: at once the first time, then waits until it has changed.
    ///
    /// # Errors
    /// As [`crate::Observer::next`].
    #[allow(clippy::should_implement_trait, reason = "it never ends, and it fails: no iterator")]
    pub fn next(&mut self) -> Result<Option<Leader>> {
        let gone = || {
            let error = Error::new(ErrorKind::Closed, "the background thread failed");
            error.at_engine(self.worker.engine).at_url(&self.worker.url)
        };
        let mut observer = self.inner.take().ok_or_else(gone)?;
        let (observer, leader) = self.worker.call(async move {
            let leader = observer.next().await;
            Ok((observer, leader))
        })?;
        self.inner = Some(observer);
        leader
    }
}
