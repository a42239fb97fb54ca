//! The primitives: each forwards its options and calls to its async counterpart.

use std::sync::Arc;
use std::time::Duration;

use super::background_thread::BackgroundThread;
use super::guard::{Guard, IntoBlocking, Leadership, MultiLockGuard};
use crate::api::election::Leader;
use crate::api::multi_lock::LockSpec;
use crate::types::{Error, ErrorKind, Owner, Result};

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
            background_thread: Arc<BackgroundThread>,
        }

        impl $name {
            pub(super) fn new(inner: crate::$name, background_thread: &Arc<BackgroundThread>) -> Self {
                Self { inner, background_thread: Arc::clone(background_thread) }
            }

            /// Sets the TTL: how long a grant lasts unless renewed.
            #[must_use]
            pub fn ttl(self, ttl: Duration) -> Self {
                Self { inner: self.inner.ttl(ttl), ..self }
            }

            /// Limits the wait; without it, calls wait without limit.
            #[must_use]
            pub fn timeout(self, timeout: Duration) -> Self {
                Self { inner: self.inner.timeout(timeout), ..self }
            }

            /// Limits the hold: after this time the lease is not renewed any more, and is lost.
            #[must_use]
            pub fn max_hold(self, limit: Duration) -> Self {
                Self { inner: self.inner.max_hold(limit), ..self }
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
                    let inner = self.inner.clone();
                    let answer = self.background_thread.call(async move { inner.$call($($arg)?).await })?;
                    Ok(answer.into_blocking(&self.background_thread))
                }
            )*
        }
    };
}

primitive! {
    /// As [`crate::Mutex`], without async.
    Mutex {
        /// Waits until the lock is granted: without limit, or for as long as
        /// [`timeout`](Self::timeout) allows.
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
    /// As [`crate::MultiLock`], without async.
    MultiLock {
        /// Waits until all are held.
        fn lock(&self) -> Result<MultiLockGuard>;
        /// Acquires all of them if they are free; returns `None`, with nothing held, if one is not.
        fn try_lock(&self) -> Result<Option<MultiLockGuard>>;
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

impl From<&Mutex> for LockSpec {
    fn from(mutex: &Mutex) -> Self {
        (&mutex.inner).into()
    }
}

impl RwLock {
    /// The reading side, as one of several locks for [`Locks::multi_lock`](super::Locks::multi_lock).
    pub fn read_spec(&self) -> LockSpec {
        self.inner.read_spec()
    }

    /// The writing side, as one of several locks for [`Locks::multi_lock`](super::Locks::multi_lock).
    pub fn write_spec(&self) -> LockSpec {
        self.inner.write_spec()
    }
}

impl Semaphore {
    /// This many permits, as one of several locks for
    /// [`Locks::multi_lock`](super::Locks::multi_lock).
    pub fn permits_spec(&self, permits: u32) -> LockSpec {
        self.inner.permits_spec(permits)
    }
}

impl Election {
    /// Observes the leader from now on.
    ///
    /// # Errors
    /// As the async method of this name.
    pub fn observe(&self) -> Result<Observer> {
        Ok(Observer { inner: Some(self.inner.observe()?), worker: Arc::clone(&self.background_thread) })
    }
}

/// As [`crate::Observer`], without async.
#[derive(Debug)]
pub struct Observer {
    /// Moved out during a call; missing for good if the thread failed during one.
    inner: Option<crate::Observer>,
    worker: Arc<BackgroundThread>,
}

impl Observer {
    /// Waits for a change and returns the leader: at once on the first call, then after each
    /// change.
    ///
    /// # Errors
    /// As [`crate::Observer::next`].
    #[allow(clippy::should_implement_trait, reason = "it never ends, and it fails: no iterator")]
    pub fn next(&mut self) -> Result<Option<Leader>> {
        let thread_failed_error = || {
            let error = Error::new(ErrorKind::Closed, "the background thread failed");
            error.at_engine(self.worker.engine).at_url(&self.worker.url)
        };
        let mut observer = self.inner.take().ok_or_else(thread_failed_error)?;
        let (observer, leader) = self.worker.call(async move {
            let leader = observer.next().await;
            Ok((observer, leader))
        })?;
        self.inner = Some(observer);
        leader
    }
}
