//! Access to `zookeeper:` on real servers: TLS, logins and ACLs, sessions, bases, and unreachable
//! hosts.
#![allow(clippy::expect_used, reason = "tests report failures by panicking")]

mod bases;
pub(crate) mod fixture;
mod hosts;
mod logins;
mod sessions;
#[cfg(feature = "nightly")]
mod timeouts;
mod tls;
