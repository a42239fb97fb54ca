//! The API of this crate without async: every call blocks the caller's thread. It works outside a
//! tokio runtime and inside one of any kind, also in an `async fn` (which then blocks a thread of
//! its runtime).
//!
//! ```
//! use std::time::Duration;
//! use leasehold::{ReleaseOutcome, blocking::Locks};
//!
//! let locks = Locks::open("memory:")?;
//! let guard = locks.mutex("stock:42").timeout(Duration::from_secs(5)).lock()?;
//! let written = guard.protect(|| format!("with token {}", guard.token()))?;   // `Lost` if the lock was lost
//! assert_eq!(written, "with token 1");
//! assert_eq!(guard.release()?, ReleaseOutcome::Released);
//! # Ok::<(), leasehold::Error>(())
//! ```
//!
//! Each [`Locks`] has one background thread, which renews the leases and talks to the engine. When
//! the last of its locks, guards and observers is dropped, the thread releases what was dropped and
//! ends. A process that exits does not wait for that: call [`Locks::flush`] or [`Locks::close`]
//! before.

mod background_thread;
mod guard;
mod locks;
mod primitives;

pub use self::guard::{Guard, Leadership, LeaseWatcher, MultiLockGuard};
pub use self::locks::{Builder, Locks};
pub use self::primitives::{Election, MultiLock, Mutex, Observer, RwLock, Semaphore};
