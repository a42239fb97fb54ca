//! Settings of a session.

use std::fmt;
use std::time::Duration;

#[cfg(feature = "sasl")]
use crate::sasl::SaslOptions;

/// The default of how long a session outlives its client.
const DEFAULT_SESSION_TIMEOUT: Duration = Duration::from_secs(6);

/// Settings of a session.
#[derive(Clone)]
pub(crate) struct Settings {
    /// How long the session should outlive its client.
    pub(crate) session_timeout: Duration,
    /// How long one server may take to respond; `None` for two thirds of the session timeout.
    pub(crate) connection_timeout: Option<Duration>,
    /// Whether opening gives up after each server was tried once.
    pub(crate) fail_eagerly: bool,
    /// Schemes and secrets, sent on every connection.
    pub(crate) logins: Vec<(String, Vec<u8>)>,
    #[cfg(feature = "sasl")]
    pub(crate) sasl: Option<SaslOptions>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            session_timeout: DEFAULT_SESSION_TIMEOUT,
            connection_timeout: None,
            fail_eagerly: false,
            logins: Vec::new(),
            #[cfg(feature = "sasl")]
            sasl: None,
        }
    }
}

impl fmt::Debug for Settings {
    /// Omits the secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let logins: Vec<&str> = self.logins.iter().map(|(scheme, _)| scheme.as_str()).collect();
        f.debug_struct("Settings")
            .field("session_timeout", &self.session_timeout)
            .field("connection_timeout", &self.connection_timeout)
            .field("fail_eagerly", &self.fail_eagerly)
            .field("logins", &logins)
            .finish_non_exhaustive()
    }
}
