//! A small asynchronous [ZooKeeper](https://zookeeper.apache.org) client for tokio.
//!
//! It has what the `leasehold` locks need of ZooKeeper 3.5 and later: nodes of all kinds, one-shot watches that survive a reconnect,
//! transactions, ACLs, logins and TLS.
//!
//! ```no_run
//! use leasehold_zookeeper::{Acls, Client, CreateMode};
//!
//! # async fn example() -> Result<(), leasehold_zookeeper::Error> {
//! let client = Client::connect("zk1:2181,zk2:2181,zk3:2181").await?;
//! let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
//! let (stat, sequence) = client.create("/locks/a-", b"me", &options).await?;
//! println!("/locks/a-{sequence} was made by transaction {}", stat.czxid);
//! # Ok(())
//! # }
//! ```
//!
//! - **A request is on its way when its method returns**, and requests are answered in their order; what is asked at once is written at
//!   once. Nagle's algorithm is off.
//! - **A lost connection is told as it is.** What was sent and not answered fails with [`Error::ConnectionLoss`]: the server may have
//!   done it. What is asked meanwhile waits for the next connection, or for the end of the session.
//! - **A session goes to another server** when its own says nothing, with its watches and logins. When it is over,
//!   everything that waits hears of it.
//! - **Every future may be dropped at any time**, and every watcher; a dropped watcher is removed at the server, too.
//! - **TLS is the caller's configuration** (feature `tls`): a `rustls::ClientConfig` says whom to trust, and whose cryptography is
//!   used. This crate chooses none, and never touches the provider of the process.
//! - **No byte of a server makes it panic**, and frames above 16 MiB are refused.
//!
//! # Why another client
//! We had used `zookeeper-client` 0.11. Its `tls` feature builds aws-lc, in C, beside whatever cryptography the program has, and needs a
//! provider for the whole process; it leaves Nagle's algorithm on, so that the second of two requests waits for the answer to the first;
//! the future of its `StateWatcher` must not be dropped while it waits; and it brings some 40 crates, several of them in a second version.
//!
//! # Features
//! | | |
//! |---|---|
//! | `tls` | `Connector::with_tls` |
//! | `sasl` | `Connector::with_sasl`: DIGEST-MD5 |
#![forbid(unsafe_code)]

mod acl;
mod address;
mod client;
mod connector;
mod create;
mod dial;
mod encode;
mod error;
mod jute;
mod multi;
mod operations;
mod random;
#[cfg(feature = "sasl")]
mod sasl;
mod session;
#[cfg(test)]
mod tests;
mod types;
mod watch;
mod wire;

pub use self::acl::{Acl, Acls, Permission};
pub use self::client::Client;
pub use self::connector::Connector;
pub use self::create::{CreateMode, CreateOptions, CreateSequence};
pub use self::error::{Error, Result};
pub use self::multi::{MultiWriteError, MultiWriteResult, MultiWriter};
#[cfg(feature = "sasl")]
pub use self::sasl::SaslOptions;
pub use self::types::{EventType, SessionId, SessionState, Stat, WatchedEvent};
pub use self::watch::{OneshotWatcher, StateWatcher};
