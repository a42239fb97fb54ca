//! A small asynchronous [ZooKeeper](https://zookeeper.apache.org) client for tokio.
//!
//! It implements the features of ZooKeeper 3.5 and later that the `leasehold` locks need: nodes of
//! all kinds, one-shot watches that survive a reconnect, transactions, ACLs, logins and TLS.
//!
//! ```no_run
//! use leasehold_zookeeper::{Acls, Client, CreateMode};
//!
//! # async fn example() -> Result<(), leasehold_zookeeper::Error> {
//! let client = Client::connect("zk1:2181,zk2:2181,zk3:2181").await?;
//! let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
//! let (stat, sequence) = client.create("/locks/a-", b"me", &options).await?;
//! println!("/locks/a-{sequence} was created by transaction {}", stat.czxid);
//! # Ok(())
//! # }
//! ```
//!
//! - **A method sends its request before it returns.** The server replies to requests in their
//!   order. Requests made together are written together; Nagle's algorithm is off.
//! - **A lost connection is reported.** Unanswered requests fail with [`Error::ConnectionLoss`]:
//!   the server may have executed them. New requests wait for the next connection, or for the end
//!   of the session.
//! - **A session moves to another server** when its own is unresponsive, with its watches and
//!   logins. When the session ends, all pending requests and watchers are notified.
//! - **Every future may be dropped at any time**, and every watcher; a dropped watcher is removed
//!   at the server, too.
//! - **The caller configures TLS** (feature `tls`): a `rustls::ClientConfig` has the trusted
//!   authorities and the crypto provider. This crate chooses no provider, and never touches the one
//!   of the process.
//! - **No bytes from a server cause a panic**, and frames above 16 MiB are refused.
//!
//! # Why another client
//! `leasehold` used `zookeeper-client` 0.11 before:
//! - Its `tls` feature builds aws-lc, in C, in addition to the program's own crypto provider, and
//!   needs a provider for the whole process.
//! - It leaves Nagle's algorithm on, so that the second of two requests waits for the reply to the
//!   first.
//! - The future of its `StateWatcher` must not be dropped while it waits.
//! - It brings some 40 crates, several of them in a second version.
//!
//! # Features
//! | feature | adds |
//! |---|---|
//! | `tls` | `Connector::with_tls` |
//! | `sasl` | `Connector::with_sasl`: DIGEST-MD5 |

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod acl;
mod address;
mod client;
mod connector;
mod create;
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
mod transport;
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
