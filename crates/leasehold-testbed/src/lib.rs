//! The testbed of all engines: real servers, real processes, a real network in between.
//!
//! | module | purpose |
//! |---|---|
//! | [`process`] | [`Server`]: a server in its own folder on its own port; a test can kill, pause and restart it; it ends with the test |
//! | [`redis`] | Redis alone, with TLS, with Sentinels or as a cluster, and [`redis::RespClient`] for single commands |
//! | [`zookeeper`] | ZooKeeper alone, with TLS, with users or as an ensemble whose members can be cut off from each other |
//! | [`mariadb`] | MariaDB alone, with TLS or as a Galera cluster |
//! | [`postgres`] | PostgreSQL alone, with TLS, with a standby or behind PgBouncer |
//! | [`sql`] | the user, the database and the settings that MariaDB and PostgreSQL have in common |
//! | [`tls`] | [`tls::TlsServer`]: any of these servers with TLS, and the files that its clients need |
//! | [`Disk`] | a small disk that a test can fill up and free while a server uses it |
//! | [`WallClock`] | a wall clock for a server, which a test can set while it runs |
//! | [`proxy`] | [`Proxy`]: between client and server: cuts connections, and freezes, delays, drops and duplicates messages |
//! | [`VirtualLinks`] | a network namespace, as root, and links to it that can be disconnected |
//! | [`actor`] | [`Actor`]: a child process that uses JSON lines and can be stopped and killed |
//! | [`eventually()`] | waits for a condition, with a bound |
//!
//! There are no mocks, and the testbed signals only processes that it started. It runs on Linux
//! only: it reads `/proc`, and lets the kernel kill its children when the test process dies.
//!
//! ```no_run
//! use leasehold_testbed::{Data, Proxy, redis};
//!
//! # async fn example() -> leasehold_testbed::Result<()> {
//! let mut server = redis::start().await?;
//! let proxy = Proxy::start(server.addr()).await?;
//! let mut client = redis::RespClient::connect(proxy.addr()).await?;
//! client.command(&["SET", "a", "1"]).await?;
//! proxy.cut();
//! server.kill()?;
//! server.restart(Data::Wipe).await?;
//! # Ok(())
//! # }
//! ```

pub mod actor;
mod certificates;
mod clock;
mod connection;
mod error;
mod eventually;
pub mod mariadb;
pub mod postgres;
pub mod process;
pub mod proxy;
pub mod redis;
pub mod sql;
pub mod tls;
mod virtual_links;
pub mod zookeeper;

pub use actor::Actor;
pub use clock::WallClock;
pub use error::{Error, Result};
pub use eventually::{TEST_TIMEOUT, eventually, try_eventually};
pub use process::{Data, Disk, Server};
pub use proxy::Proxy;
pub use virtual_links::VirtualLinks;
