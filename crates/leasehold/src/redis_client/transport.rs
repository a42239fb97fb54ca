//! How a connection is made: over sockets; in tests, over streams that they provide.

use std::fmt;
#[cfg(test)]
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisResult};

use super::config::Address;

/// How servers are reached.
#[derive(Clone, Default)]
pub enum Transport {
    /// Over sockets, to the address in the URL.
    #[default]
    Sockets,
    /// Over streams in memory: without a socket, tests can run in virtual time.
    #[cfg(test)]
    InMemory(Arc<dyn Dialer>),
}

/// Makes streams in memory.
#[cfg(test)]
pub trait Dialer: Send + Sync {
    /// Connects to the server at this address.
    fn dial(&self, address: &Address) -> std::io::Result<tokio::io::DuplexStream>;
}

impl Transport {
    /// Connects to `address`, which is that of the client, and does the handshake.
    #[cfg_attr(not(test), allow(unused_variables, reason = "sockets: the client knows the address"))]
    pub async fn connect(
        &self,
        client: &Client,
        address: &Address,
        options: AsyncConnectionConfig,
    ) -> RedisResult<MultiplexedConnection> {
        match self {
            Self::Sockets => client.get_multiplexed_async_connection_with_config(&options).await,
            #[cfg(test)]
            Self::InMemory(dialer) => {
                let stream = dialer.dial(address)?;
                let settings = client.get_connection_info().redis_settings();
                let (connection, driver) = MultiplexedConnection::new_with_config(settings, stream, options).await?;
                tokio::spawn(driver);
                Ok(connection)
            }
        }
    }
}

impl PartialEq for Transport {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Sockets, Self::Sockets) => true,
            #[cfg(test)]
            (Self::InMemory(one), Self::InMemory(other)) => Arc::ptr_eq(one, other),
            #[cfg(test)]
            _ => false,
        }
    }
}

impl Eq for Transport {}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sockets => f.write_str("Sockets"),
            #[cfg(test)]
            Self::InMemory(_) => f.write_str("Scripted"),
        }
    }
}
