//! What every engine's tests stand on: real servers, real processes, a real network in between.
//!
//! | module | what it gives |
//! |---|---|
//! | [`process`] | [`Server`]: a server in its own folder on its own port; killed, paused, restarted; gone when the test is |
//! | [`redis`] | Redis alone, with TLS, with Sentinels or as a cluster, and [`redis::RespClient`] to ask it by hand |
//! | [`zookeeper`] | ZooKeeper alone, with TLS, with users or as an ensemble whose members can be cut off from each other |
//! | [`mariadb`] | MariaDB alone, with TLS or as a Galera cluster |
//! | [`postgres`] | PostgreSQL alone, with TLS, with a standby or behind PgBouncer |
//! | [`Disk`] | a small disk, to be filled up and freed while a server runs on it |
//! | [`WallClock`] | a wall clock for a server, to be moved while it runs |
//! | [`proxy`] | [`Proxy`]: stands between client and server and cuts, freezes, delays, swallows and doubles |
//! | [`VirtualLinks`] | a network namespace, as root, and wires to it that can be pulled |
//! | [`actor`] | [`Actor`]: a child process that speaks JSON lines and can be stopped and killed |
//! | [`eventually()`] | waits for a condition, with a bound |
//!
//! Nothing here is a mock, and nothing here touches a process that it did not start. It runs on
//! Linux only: it reads `/proc`, and has the kernel end its children when the test process dies.
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
mod virtual_links;
pub mod zookeeper;

pub use actor::Actor;
pub use clock::WallClock;
pub use error::{Error, Result};
pub use eventually::{TEST_TIMEOUT, eventually, try_eventually};
pub use process::{Data, Disk, Server};
pub use proxy::Proxy;
pub use virtual_links::VirtualLinks;
