//! Opening a session.

use std::fmt;
use std::time::Duration;

use crate::address::Server;
use crate::client::Client;
use crate::dial::Tcp;
use crate::error::{Error, Result};
use crate::random;
#[cfg(feature = "sasl")]
use crate::sasl::SaslOptions;
use crate::session::{self, Settings};

/// Settings for a session.
#[derive(Clone, Default)]
pub struct Connector {
    settings: Settings,
    dial: Tcp,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Connector {
    /// How long the session is to outlive its client; 6 s unless said. The server may allow another:
    /// [`Client::session_timeout`](crate::Client::session_timeout).
    #[must_use]
    pub fn with_session_timeout(mut self, timeout: Duration) -> Self {
        self.settings.session_timeout = timeout;
        self
    }

    /// How long a server may take to accept a connection and open the session, and how long a connected one may say nothing, before
    /// another is tried. Two thirds of the session timeout unless said, and never more.
    #[must_use]
    pub fn with_connection_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connection_timeout = Some(timeout);
        self
    }

    /// Gives up when each server was tried once, instead of trying until the session timeout is over. This is about opening the session
    /// only, and not about reconnecting.
    #[must_use]
    pub fn with_fail_eagerly(mut self) -> Self {
        self.settings.fail_eagerly = true;
        self
    }

    /// Logs in, on every connection; `digest` with `user:password` is the common one.
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

    /// Speaks TLS with all servers. The configuration says whom to trust, which certificate to show, and whose cryptography is used; the
    /// name that a server's certificate must have is that of the list of servers.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn with_tls(mut self, config: std::sync::Arc<tokio_rustls::rustls::ClientConfig>) -> Self {
        self.dial.tls = Some(config);
        self
    }

    /// Opens a session with the servers of a list such as `zk1:2181,zk2:2181`, which are tried in random order.
    ///
    /// # Errors
    /// [`Error::NoHosts`] if [each was tried](Self::with_fail_eagerly), [`Error::Timeout`] if none has opened a session within the
    /// session timeout, [`Error::AuthFailed`] at once if one refuses the login, [`Error::BadArguments`] if this is no list of servers.
    pub async fn connect(self, servers: &str) -> Result<Client> {
        let mut servers = Server::list(servers)?;
        if i32::try_from(self.settings.session_timeout.as_millis()).is_err() {
            return Err(Error::BadArguments("a session timeout is 24 days at most"));
        }
        random::shuffle(&mut servers);
        session::open(self.settings, self.dial, servers).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_list_of_servers_must_be_one() {
        let connected = Client::connect("h:port").await;
        assert!(matches!(connected, Err(Error::BadArguments(_))), "{connected:?}");
    }
}
