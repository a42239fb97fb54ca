//! The same without async: every call waits in the caller's thread. Works outside a tokio runtime and inside one, of
//! whatever kind, also in an `async fn` (which then blocks its runtime's thread, as any other waiting would).
//!
//! ```
//! use std::time::Duration;
//! use leasehold::{Outcome, blocking::Locks};
//!
//! let locks = Locks::open("memory:")?;
//! let guard = locks.mutex("stock:42").wait(Duration::from_secs(5)).lock()?;
//! let written = guard.protect(|| format!("with token {}", guard.token()))?;   // `Lost` if it was lost meanwhile
//! assert_eq!(written, "with token 1");
//! assert_eq!(guard.release()?, Outcome::Released);
//! # Ok::<(), leasehold::Error>(())
//! ```
//!
//! Each [`Locks`] has one background thread, which renews the leases and talks to the engine. It ends by itself when the
//! last of its locks, guards and observers is gone, after it has given back what was dropped. A process that ends does not
//! wait for that: call [`Locks::settle`] or [`Locks::close`] before.

mod guard;
mod locks;
mod primitives;
mod worker;

pub use self::guard::{AllGuard, Guard, Leadership, Watch};
pub use self::locks::{Builder, Locks};
pub use self::primitives::{All, Election, Mutex, Observer, RwLock, Semaphore};
