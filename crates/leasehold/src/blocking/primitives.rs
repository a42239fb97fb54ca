//! The primitives: each forwards its options and calls to its async counterpart.

use std::sync::Arc;
use std::time::Duration;

use super::guard::{AllGuard, Guard, Here, Leadership};
use super::worker::Worker;
use crate::all::Wanted;
use crate::claim::Owner;
use crate::election::Leader;
use crate::error::{Error, ErrorKind, Result};

/// Defines a primitive: its options, and calls with the names of the async methods.
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

            /// Sets the TTL: how long a grant lasts unless renewed.
            #[must_use]
            pub fn ttl(self, ttl: Duration) -> Self {
                Self { inner: self.inner.ttl(ttl), ..self }
            }

            /// Limits the wait; without it, calls wait without limit.
            #[must_use]
            pub fn wait(self, wait: Duration) -> Self {
                Self { inner: self.inner.wait(wait), ..self }
            }

            /// Limits the hold: after this time the lease is not renewed any more, and is lost.
            #[must_use]
            pub fn max_hold(self, most: Duration) -> Self {
                Self { inner: self.inner.max_hold(most), ..self }
            }

            /// Sets the owner that may re-enter.
            #[must_use]
            pub fn owner(self, owner: &Owner) -> Self {
                Self { inner: self.inner.owner(owner), ..self }
            }

            /// Adds free text that inspection shows.
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
        /// Waits until the lock is granted: without limit, or for as long as [`wait`](Self::wait)
        /// allows.
        fn lock(&self) -> Result<Guard>;
        /// Acquires the lock if it is free; returns `None` if not.
        fn try_lock(&self) -> Result<Option<Guard>>;
    }
}

primitive! {
    /// As [`crate::RwLock`], without async.
    RwLock {
        /// Waits for a shared hold.
        fn read(&self) -> Result<Guard>;
        /// Acquires a shared hold if it is available at once.
        fn try_read(&self) -> Result<Option<Guard>>;
        /// Waits for an exclusive hold.
        fn write(&self) -> Result<Guard>;
        /// Acquires an exclusive hold if it is available at once.
        fn try_write(&self) -> Result<Option<Guard>>;
    }
}

primitive! {
    /// As [`crate::Semaphore`], without async.
    Semaphore {
        /// Waits for `permits` at once.
        fn acquire(&self, permits: u32) -> Result<Guard>;
        /// Acquires `permits` if they are available at once.
        fn try_acquire(&self, permits: u32) -> Result<Option<Guard>>;
    }
}

primitive! {
    /// As [`crate::All`], without async.
    All {
        /// Waits until all are held.
        fn lock(&self) -> Result<AllGuard>;
        /// Acquires all of them if they are free; returns `None`, with nothing held, if one is not.
        fn try_lock(&self) -> Result<Option<AllGuard>>;
    }
}

primitive! {
    /// As [`crate::Election`], without async.
    Election {
        /// Waits until elected.
        fn campaign(&self) -> Result<Leadership>;
        /// Becomes the leader if there is none; returns `None` if there is one.
        fn try_campaign(&self) -> Result<Option<Leadership>>;
        /// The current leader.
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
    /// This many permits, as one of several locks for [`Locks::all`](super::Locks::all).
    pub fn permits(&self, permits: u32) -> Wanted {
        self.inner.permits(permits)
    }
}

impl Election {
    /// Observes the leader from now on.
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
    /// Moved out during a call; missing for good if the thread failed during one.
    inner: Option<crate::Observer>,
    worker: Arc<Worker>,
}

impl Observer {
    /// Waits for a change and returns the leader: at once on the first call, then after each
    /// change.
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
