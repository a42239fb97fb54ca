//! The primitives of the blocking API: each forwards its options and calls to its async
//! counterpart.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::background_thread::BackgroundThread;
use super::guard::{Guard, IntoBlocking, Leadership, MultiLockGuard};
use crate::api::election::Leader;
use crate::api::multi_lock::LockSpec;
use crate::types::{Error, ErrorKind, Owner, Result};

/// Defines a primitive of the blocking API: the methods that set options, and calls with the names
/// of the async methods.
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

            /// Sets the TTL: how long a grant lasts unless it is renewed.
            #[must_use]
            pub fn ttl(self, ttl: Duration) -> Self {
                Self { inner: self.inner.ttl(ttl), ..self }
            }

            /// Limits the wait for the lock; without it, calls wait without limit.
            #[must_use]
            pub fn timeout(self, timeout: Duration) -> Self {
                Self { inner: self.inner.timeout(timeout), ..self }
            }

            /// Limits how long the lock is held: this time after the grant its guard is lost.
            #[must_use]
            pub fn max_hold(self, limit: Duration) -> Self {
                Self { inner: self.inner.max_hold(limit), ..self }
            }

            /// Sets the owner that may re-enter a lock that it already holds.
            #[must_use]
            pub fn owner(self, owner: &Owner) -> Self {
                Self { inner: self.inner.owner(owner), ..self }
            }

            /// Adds free text that inspection shows beside host, process and program.
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

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.inner.fmt(f)
            }
        }
    };
}

primitive! {
    /// A lock with one holder at a time: [`crate::Mutex`] without async.
    ///
    /// ```
    /// # let locks = leasehold::blocking::Locks::open("memory:")?;
    /// let mutex = locks.mutex("stock:42");
    /// let guard = mutex.lock()?;
    /// assert!(mutex.try_lock()?.is_none(), "held");
    /// guard.release()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    Mutex {
        /// Waits until the lock is granted: without limit, or for as long as
        /// [`timeout`](Self::timeout) allows.
        fn lock(&self) -> Result<Guard>;
        /// Acquires the lock if it is free; returns `None` if not.
        fn try_lock(&self) -> Result<Option<Guard>>;
    }
}

primitive! {
    /// A lock with many readers or one writer at a time: [`crate::RwLock`] without async.
    ///
    /// ```
    /// # let locks = leasehold::blocking::Locks::open("memory:")?;
    /// let catalog = locks.rwlock("catalog");
    /// let readers = [catalog.read()?, catalog.read()?];
    /// assert!(catalog.try_write()?.is_none(), "readers hold it");
    /// # drop(readers);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    RwLock {
        /// Waits until the lock is granted for reading, together with other readers.
        fn read(&self) -> Result<Guard>;
        /// Acquires the lock for reading if no writer holds it or waits; returns `None` if one
        /// does.
        fn try_read(&self) -> Result<Option<Guard>>;
        /// Waits until the lock is granted for writing, without any other holder.
        fn write(&self) -> Result<Guard>;
        /// Acquires the lock for writing if it is free; returns `None` if not.
        fn try_write(&self) -> Result<Option<Guard>>;
    }
}

primitive! {
    /// A lock of several permits: [`crate::Semaphore`] without async.
    ///
    /// ```
    /// # let locks = leasehold::blocking::Locks::open("memory:")?;
    /// let downloads = locks.semaphore("downloads", 3);
    /// let two = downloads.acquire(2)?;
    /// assert!(downloads.try_acquire(2)?.is_none(), "only one is left");
    /// two.release()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    Semaphore {
        /// Waits until this many permits are granted, all of them to one guard.
        fn acquire(&self, permits: u32) -> Result<Guard>;
        /// Acquires this many permits if they are free and no request waits; returns `None` if not.
        fn try_acquire(&self, permits: u32) -> Result<Option<Guard>>;
    }
}

primitive! {
    /// Several locks that are acquired together, all or none: [`crate::MultiLock`] without async.
    ///
    /// ```
    /// # let locks = leasehold::blocking::Locks::open("memory:")?;
    /// let accounts = locks.multi_lock(["account:9", "account:7"]);
    /// let guard = accounts.lock()?;
    /// assert!(accounts.try_lock()?.is_none(), "both are held");
    /// guard.release()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    MultiLock {
        /// Waits until all locks are held.
        fn lock(&self) -> Result<MultiLockGuard>;
        /// Acquires all locks if they are free; returns `None`, with nothing held, if one is not.
        fn try_lock(&self) -> Result<Option<MultiLockGuard>>;
    }
}

primitive! {
    /// An election, a mutex whose holder is the leader: [`crate::Election`] without async.
    ///
    /// ```
    /// # let locks = leasehold::blocking::Locks::open("memory:")?;
    /// let election = locks.election("scheduler");
    /// let leadership = election.campaign()?;
    /// assert_eq!(election.leader()?.map(|leader| leader.token), Some(leadership.token()));
    /// leadership.resign()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    Election {
        /// Waits until this process is elected.
        fn campaign(&self) -> Result<Leadership>;
        /// Becomes the leader if there is none; returns `None` if there is one.
        fn try_campaign(&self) -> Result<Option<Leadership>>;
        /// The current leader; `None` if there is none.
        fn leader(&self) -> Result<Option<Leader>>;
    }
}

impl From<&Mutex> for LockSpec {
    fn from(mutex: &Mutex) -> Self {
        (&mutex.inner).into()
    }
}

impl RwLock {
    /// The shared (reading) mode of this lock, as one of several locks for
    /// [`Locks::multi_lock`](super::Locks::multi_lock).
    pub fn read_spec(&self) -> LockSpec {
        self.inner.read_spec()
    }

    /// The exclusive (writing) mode of this lock, as one of several locks for
    /// [`Locks::multi_lock`](super::Locks::multi_lock).
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
    /// An observer, which waits for changes of the leader.
    ///
    /// # Errors
    /// As the async method of this name.
    pub fn observe(&self) -> Result<Observer> {
        Ok(Observer { inner: Some(self.inner.observe()?), worker: Arc::clone(&self.background_thread) })
    }
}

/// Observes the leader of an election: [`crate::Observer`] without async.
///
/// ```
/// # let locks = leasehold::blocking::Locks::open("memory:")?;
/// let election = locks.election("scheduler");
/// let mut observer = election.observe()?;
/// assert!(observer.next()?.is_none());                         // no leader yet
/// let leadership = election.campaign()?;
/// assert_eq!(observer.next()?.map(|leader| leader.token), Some(leadership.token()));
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug)]
pub struct Observer {
    /// Moved to the background thread during a call; `None` for good if that call panicked.
    inner: Option<crate::Observer>,
    worker: Arc<BackgroundThread>,
}

impl Observer {
    /// Waits for a change and returns the leader: at once on the first call, then after each
    /// change. `None`: there is no leader.
    ///
    /// # Errors
    /// As [`crate::Observer::next`].
    #[allow(clippy::should_implement_trait, reason = "it never ends, and it fails: no iterator")]
    pub fn next(&mut self) -> Result<Option<Leader>> {
        let panicked_error = || {
            let message = "the background thread panicked during an earlier call; make another observer";
            Error::new(ErrorKind::Closed, message).at_engine(self.worker.engine).at_url(&self.worker.url)
        };
        let mut observer = self.inner.take().ok_or_else(panicked_error)?;
        let (observer, leader) = self.worker.call(async move {
            let leader = observer.next().await;
            Ok((observer, leader))
        })?;
        self.inner = Some(observer);
        leader
    }
}
