//! Distributed locks for tasks, processes and machines, with built-in fencing.
//!
//! ```
//! use leasehold::{Locks, fence::Fence};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let locks = Locks::open("memory:").await?;          // or file:, redis://db1:6379, postgres://app@db1/shop
//!     let stock = Fence::default();                       // the resource: refuses tokens older than it has seen
//!
//!     let guard = locks.mutex("stock:42").lock().await?;  // waits its turn; the lease renews itself
//!     guard.protect(async {                               // stops at its next await if the lock is lost
//!         stock.admit("stock:42", guard.token())          // a holder that slept past its lease is refused here
//!     }).await??;
//!     println!("{:?}", guard.release().await?);           // Released, or AlreadyLost and why
//!     Ok(())
//! }
//! ```
//!
//! It needs tokio: `cargo add leasehold && cargo add tokio -F macros,rt-multi-thread`.
//!
//! # Modules and types
//! - [`Locks`] is the entry point. It opens an engine and makes the primitives: [`Mutex`],
//!   [`RwLock`], [`Semaphore`], [`MultiLock`] and [`Election`]. Acquiring one gives a [`Guard`]
//!   (from [`MultiLock`] a [`MultiLockGuard`], from [`Election`] a [`Leadership`]).
//! - [`blocking`] has the same API without async.
//! - [`Records`] are small texts that an engine stores beside its locks.
//! - [`fence`] checks fencing tokens at a resource and refuses stale ones. The module `versioned`,
//!   with the features `mysql` or `postgres`, updates a row by its version column, without a lock.
//!   [`database`] has the connection types of both.
//! - [`metrics`] collects metrics.
//! - [`engine`] has the [`Engine`](engine::Engine) trait and the engines, [`clock`] the time
//!   source. [`registry`] lists the engines of this build.
//!
//! Crates beside this one: `leasehold-schedule` runs jobs on a schedule, each tick once in the
//! fleet. `leasehold-cache` keeps a cache consistent with its database. `leasehold-doctor` examines
//! a deployment.

#![cfg_attr(docsrs, feature(doc_cfg))]
// The documentation of the engines links to the private decisions that they apply.
#![allow(rustdoc::private_intra_doc_links)]

mod api;
pub mod blocking;
pub mod clock;
mod core;
pub mod database;
pub mod engine;
pub mod fence;
#[doc(hidden)]
pub mod internals;
pub mod metrics;
pub mod registry;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub mod versioned;

mod logic;
mod random;
#[cfg(feature = "redis")]
#[doc(hidden)]
mod redis_client;
mod types;
#[cfg(all(test, feature = "redis"))]
mod virtual_time;

pub use self::api::election::{Election, Leader, Leadership, Observer};
pub use self::api::locks::{Builder, Locks};
pub use self::api::multi_lock::{LockSpec, MultiLock, MultiLockGuard};
pub use self::api::primitives::{Mutex, RwLock, Semaphore};
pub use self::api::records::Records;
pub use self::core::guard::{Guard, LeaseWatcher, ReleaseOutcome};
pub use self::engine::{Claim, LockOptions, LostReason};
pub use self::logic::record_version::MAX_RECORD;
pub use self::types::{
    ClaimId, DEFAULT_TTL, Effect, Error, ErrorKind, Holder, LockName, MAX_DESCRIPTION, MAX_NAME, Mode, Owner, Result,
    Token,
};

/// Compiles the code blocks of the README and of `docs/` as tests.
#[cfg(all(doctest, feature = "mysql", feature = "postgres", feature = "redis"))]
mod documents {
    #[doc = include_str!("../README.md")]
    mod readme {}
    #[doc = include_str!("../docs/fencing.md")]
    mod fencing {}
    #[doc = include_str!("../docs/versioned.md")]
    mod versioned {}
}
