//! Opening a session.

use std::fmt;
use std::time::Duration;

use crate::address::Server;
use crate::client::Client;
use crate::error::{Error, Result};
use crate::random;
#[cfg(feature = "sasl")]
use crate::sasl::SaslOptions;
use crate::session::{self, Settings};
use crate::transport::Tcp;

/// Settings for a session, and the function that opens it.
///
/// ```no_run
/// use leasehold_zookeeper::Client;
/// # use leasehold_zookeeper::Error;
///
/// # async fn example() -> Result<(), Error> {
/// # use std::time::Duration;
/// let client = Client::connector()
///     .with_session_timeout(Duration::from_secs(10))
///     .with_auth("digest", b"app:secret")
///     .connect("zk1:2181,zk2:2181").await?;
/// println!("the session lasts {:?}", client.session_timeout());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Connector {
    settings: Settings,
    transport: Tcp,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Connector {
    /// How long the session should outlive its client; 6 s by default. The server may grant another
    /// timeout: [`Client::session_timeout`](crate::Client::session_timeout).
    #[must_use]
    pub fn with_session_timeout(mut self, timeout: Duration) -> Self {
        self.settings.session_timeout = timeout;
        self
    }

    /// Limits the time in which a server must accept a connection and open the session, and in
    /// which a connected server must respond; then another one is tried. The default, and the
    /// maximum, is two thirds of the session timeout.
    #[must_use]
    pub fn with_connection_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connection_timeout = Some(timeout);
        self
    }

    /// Gives up after each server was tried once, instead of retrying until the session timeout.
    /// This applies to opening the session only, and not to reconnecting.
    #[must_use]
    pub fn with_fail_eagerly(mut self) -> Self {
        self.settings.fail_eagerly = true;
        self
    }

    /// Logs in, on every connection; `digest` with `user:password` is the usual scheme.
    #[must_use]
    pub fn with_auth(mut self, scheme: &str, secret: &[u8]) -> Self {
        self.settings.logins.push((scheme.to_owned(), secret.to_owned()));
        self
    }

    /// Logs in by SASL, on every connection.
    #[cfg(feature = "sasl")]
    #[must_use]
    pub fn with_sasl(mut self, options: SaslOptions) -> Self {
        self.settings.sasl = Some(options);
        self
    }

    /// Uses TLS with all servers. The configuration has the trusted authorities, the client's
    /// certificate and the crypto provider. A server's certificate must contain the server's name
    /// from the list of servers.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn with_tls(mut self, config: std::sync::Arc<tokio_rustls::rustls::ClientConfig>) -> Self {
        self.transport.tls = Some(config);
        self
    }

    /// Opens a session with the servers of a list such as `zk1:2181,zk2:2181`, which are tried in
    /// random order.
    ///
    /// # Errors
    /// - [`Error::NoHosts`] if [each was tried](Self::with_fail_eagerly).
    /// - [`Error::Timeout`] if none has opened a session within the session timeout.
    /// - [`Error::AuthFailed`] at once if one refuses the login.
    /// - [`Error::BadArguments`] if this is not a list of servers.
    pub async fn connect(self, servers: &str) -> Result<Client> {
        let mut servers = Server::parse_list(servers)?;
        if i32::try_from(self.settings.session_timeout.as_millis()).is_err() {
            return Err(Error::BadArguments("a session timeout must be at most 24 days"));
        }
        random::shuffle(&mut servers);
        session::open(self.settings, self.transport, servers).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_invalid_server_list_is_refused() {
        let connected = Client::connect("h:port").await;
        assert!(matches!(connected, Err(Error::BadArguments(_))), "{connected:?}");
    }
}
