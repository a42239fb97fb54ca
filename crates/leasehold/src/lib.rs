//! Distributed locks for tasks, processes and machines, with built-in fencing.
//!
//! ```
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! use std::time::Duration;
//! use leasehold::{Locks, fence::Fence};
//!
//! let locks = Locks::open("memory:").await?;            // or file:, file:///var/lib/locks
//! let fence = Fence::default();                          // kept at the resource
//!
//! let guard = locks.mutex("stock:42").timeout(Duration::from_secs(5)).lock().await?;
//! guard.protect(async {
//!     fence.admit("stock:42", guard.token()).unwrap();   // a stale holder is refused here
//! }).await?;                                             // dropped at once if the lock is lost
//! guard.release().await?;
//! # Ok::<(), leasehold::Error>(()) }).unwrap();
//! ```
//!
//! # Modules and types
//! - [`Locks`] is the entry point. It opens an engine and makes the primitives: [`Mutex`],
//!   [`RwLock`], [`Semaphore`], [`MultiLock`] and [`Election`]. Acquiring one gives a [`Guard`] (from
//!   [`MultiLock`] an [`MultiLockGuard`], from [`Election`] a [`Leadership`]).
//! - [`blocking`] has the same API without async.
//! - [`Records`] are small texts that an engine stores beside its locks.
//! - [`fence`] checks fencing tokens at a resource and refuses stale ones. `versioned` updates a
//!   row by its version column, without a lock. [`database`] has the connection types that both
//!   use.
//! - [`metrics`] collects metrics.
//! - [`engine`] has the [`Engine`](engine::Engine) trait and the engines, [`clock`] the time source.
//!
//! Crates beside this one: `leasehold-schedule` runs jobs on a schedule, each tick once in the fleet.
//! `leasehold-cache` keeps a cache consistent with its database. `leasehold-doctor` examines a
//! deployment.

#![cfg_attr(docsrs, feature(doc_cfg))]
// The protocols of the engines refer to the decisions that they apply.
#![allow(rustdoc::private_intra_doc_links)]

pub mod blocking;
pub mod clock;
mod connect;
pub mod database;
pub mod engine;
pub mod fence;
#[doc(hidden)]
pub mod internals;
pub mod metrics;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub mod versioned;

mod acquire;
mod claim;
mod election;
mod error;
mod guard;
mod keeper;
mod lease;
mod locks;
mod logic;
mod multi_lock;
mod name;
mod primitives;
mod random;
mod records;
mod request;
#[cfg(all(test, feature = "redis"))]
mod virtual_time;

pub use self::claim::{Claim, ClaimId, Holder, LockOptions, MAX_DESCRIPTION, Mode, Owner, Token};
pub use self::election::{Election, Leader, Leadership, Observer};
pub use self::error::{Effect, Error, ErrorKind, Result};
pub use self::guard::{Guard, LeaseWatcher, ReleaseOutcome};
pub use self::lease::LostReason;
pub use self::locks::{Builder, DEFAULT_TTL, Locks};
pub use self::logic::record_version::MAX_RECORD;
pub use self::multi_lock::{LockSpec, MultiLock, MultiLockGuard};
pub use self::name::{LockName, MAX_NAME};
pub use self::primitives::{Mutex, RwLock, Semaphore};
pub use self::records::Records;

/// Compiles the code blocks in the documents.
#[cfg(all(doctest, feature = "mysql", feature = "postgres", feature = "redis"))]
mod documents {
    #[doc = include_str!("../README.md")]
    mod readme {}
    #[doc = include_str!("../docs/fencing.md")]
    mod fencing {}
    #[doc = include_str!("../docs/versioned.md")]
    mod versioned {}
}
