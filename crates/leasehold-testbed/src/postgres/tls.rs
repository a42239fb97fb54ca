//! A PostgreSQL that takes only TLS.

use std::path::PathBuf;

use super::Postgres;
use crate::{
    Result, Server,
    certificates::{CA, CLIENT_CERTIFICATE, CLIENT_KEY, Certificates, SERVER_CERTIFICATE, SERVER_KEY},
    process::{Binary, Place, Probe, Recipe, Signal, Step},
};

/// A PostgreSQL with TLS to be started; see [`Postgres::tls`].
#[derive(Clone, Debug)]
pub struct Tls {
    postgres: Postgres,
    demands_certificates: bool,
}

/// A PostgreSQL that takes only TLS, and the files that its clients need.
///
/// Each has an authority of its own: the file of another one is a wrong one. The files stay the
/// same over all restarts.
#[derive(Debug)]
pub struct TlsPostgres {
    /// The server; its URL is that of one without TLS.
    pub server: Server,
    /// The certificate of the authority that clients must trust, as PEM.
    pub ca: PathBuf,
    /// A certificate that a client may show, as PEM.
    pub client_certificate: PathBuf,
    /// The key for it, as PEM.
    pub client_key: PathBuf,
}

impl Postgres {
    /// Has it take only TLS, as 127.0.0.1 and localhost.
    ///
    /// ```no_run
    /// # async fn example() -> leasehold_testbed::Result<()> {
    /// use leasehold_testbed::postgres::Postgres;
    ///
    /// let postgres = Postgres::new().tls().demand_certificates().start().await?;
    /// println!("{} is certified by {}", postgres.server.url(), postgres.ca.display());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn tls(self) -> Tls {
        Tls { postgres: self, demands_certificates: false }
    }
}

impl Tls {
    /// Refuses clients that do not show a certificate of our authority.
    #[must_use]
    pub fn demand_certificates(mut self) -> Self {
        self.demands_certificates = true;
        self
    }

    /// Makes the certificates, starts it, and waits until it answers.
    ///
    /// # Errors
    ///
    /// As [`Server::start`].
    pub async fn start(self) -> Result<TlsPostgres> {
        let certificates = Certificates::make()?;
        let server = Server::start(TlsRecipe { tls: self, certificates }).await?;
        let file = |name| server.dir().join(name);
        let (ca, client_certificate, client_key) = (file(CA), file(CLIENT_CERTIFICATE), file(CLIENT_KEY));
        Ok(TlsPostgres { server, ca, client_certificate, client_key })
    }
}

struct TlsRecipe {
    tls: Tls,
    certificates: Certificates,
}

impl Recipe for TlsRecipe {
    fn binary(&self) -> Binary {
        self.tls.postgres.binary()
    }

    fn arguments(&self, place: &Place) -> Vec<String> {
        // PostgreSQL runs in this folder.
        let ours =
            [("ssl", "on"), ("ssl_ca_file", CA), ("ssl_cert_file", SERVER_CERTIFICATE), ("ssl_key_file", SERVER_KEY)];
        self.tls.postgres.arguments_with(place, &ours)
    }

    fn url(&self, place: &Place) -> String {
        self.tls.postgres.url(place)
    }

    fn prepare(&self, place: &Place) -> Result<()> {
        self.certificates.write(place.dir())?;
        let demand = if self.tls.demands_certificates { "clientcert=verify-ca" } else { "" };
        self.tls.postgres.write_access(place, "hostssl", demand)
    }

    fn probe<'a>(&'a self, place: &'a Place) -> Probe<'a> {
        self.tls.postgres.probe(place)
    }

    fn init(&self, place: &Place) -> Vec<Step> {
        self.tls.postgres.init(place)
    }

    fn environment(&self) -> Vec<(String, String)> {
        self.tls.postgres.environment()
    }

    fn stop_signal(&self) -> Signal {
        self.tls.postgres.stop_signal()
    }

    fn clean_up(&self, place: &Place) {
        self.tls.postgres.clean_up(place);
    }

    fn run_as(&self) -> Option<&str> {
        self.tls.postgres.run_as()
    }
}
