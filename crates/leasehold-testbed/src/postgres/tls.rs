//! A PostgreSQL that accepts only TLS.

use std::path::PathBuf;

use super::Postgres;
use crate::{
    Result, Server,
    certificates::{CA, CLIENT_CERTIFICATE, CLIENT_KEY, Certificates, SERVER_CERTIFICATE, SERVER_KEY},
    process::{Binary, InitStep, Probe, ServerSpec, Signal, Workspace},
};

/// A PostgreSQL with TLS to start; see [`Postgres::tls`].
#[derive(Clone, Debug)]
pub struct TlsSettings {
    postgres: Postgres,
    requires_client_certificates: bool,
}

/// A PostgreSQL that accepts only TLS, and the files that its clients need.
///
/// Each has its own authority, so the files of another server do not match. The files do not change
/// over restarts.
#[derive(Debug)]
pub struct TlsPostgres {
    /// The server; its URL is that of one without TLS.
    pub server: Server,
    /// The certificate of the authority that clients must trust, as PEM.
    pub ca: PathBuf,
    /// A client certificate, as PEM.
    pub client_certificate: PathBuf,
    /// The key for it, as PEM.
    pub client_key: PathBuf,
}

impl Postgres {
    /// Makes it accept only TLS, as 127.0.0.1 and localhost.
    ///
    /// ```no_run
    /// # async fn example() -> leasehold_testbed::Result<()> {
    /// use leasehold_testbed::postgres::Postgres;
    ///
    /// let postgres = Postgres::new().tls().require_client_certificates().start().await?;
    /// println!("{} is certified by {}", postgres.server.url(), postgres.ca.display());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn tls(self) -> TlsSettings {
        TlsSettings { postgres: self, requires_client_certificates: false }
    }
}

impl TlsSettings {
    /// Refuses clients without a certificate of our authority.
    #[must_use]
    pub fn require_client_certificates(mut self) -> Self {
        self.requires_client_certificates = true;
        self
    }

    /// Creates the certificates, starts it, and waits until it responds.
    ///
    /// # Errors
    ///
    /// As [`Server::start`].
    pub async fn start(self) -> Result<TlsPostgres> {
        let certificates = Certificates::generate()?;
        let server = Server::start(TlsServerSpec { tls: self, certificates }).await?;
        let file = |name| server.dir().join(name);
        let (ca, client_certificate, client_key) = (file(CA), file(CLIENT_CERTIFICATE), file(CLIENT_KEY));
        Ok(TlsPostgres { server, ca, client_certificate, client_key })
    }
}

struct TlsServerSpec {
    tls: TlsSettings,
    certificates: Certificates,
}

impl ServerSpec for TlsServerSpec {
    fn binary(&self) -> Binary {
        self.tls.postgres.binary()
    }

    fn arguments(&self, workspace: &Workspace) -> Vec<String> {
        // PostgreSQL runs in this folder.
        let ours =
            [("ssl", "on"), ("ssl_ca_file", CA), ("ssl_cert_file", SERVER_CERTIFICATE), ("ssl_key_file", SERVER_KEY)];
        self.tls.postgres.arguments_with(workspace, &ours)
    }

    fn url(&self, workspace: &Workspace) -> String {
        self.tls.postgres.url(workspace)
    }

    fn prepare(&self, workspace: &Workspace) -> Result<()> {
        self.certificates.write(workspace.dir())?;
        let demand = if self.tls.requires_client_certificates { "clientcert=verify-ca" } else { "" };
        self.tls.postgres.write_access(workspace, "hostssl", demand)
    }

    fn probe<'a>(&'a self, workspace: &'a Workspace) -> Probe<'a> {
        self.tls.postgres.probe(workspace)
    }

    fn init_steps(&self, workspace: &Workspace) -> Vec<InitStep> {
        self.tls.postgres.init_steps(workspace)
    }

    fn environment(&self) -> Vec<(String, String)> {
        self.tls.postgres.environment()
    }

    fn stop_signal(&self) -> Signal {
        self.tls.postgres.stop_signal()
    }

    fn clean_up(&self, workspace: &Workspace) {
        self.tls.postgres.clean_up(workspace);
    }

    fn run_as(&self) -> Option<&str> {
        self.tls.postgres.run_as()
    }
}
