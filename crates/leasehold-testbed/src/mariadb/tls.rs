//! A MariaDB that accepts only TLS.

use std::{fs, path::PathBuf};

use super::{MariaDb, USER};
use crate::{
    Error, Result, Server,
    certificates::{CA, CLIENT_CERTIFICATE, CLIENT_KEY, Certificates, SERVER_CERTIFICATE, SERVER_KEY},
    process::{Binary, InitStep, Probe, ServerSpec, Signal, Workspace},
};

/// Statements that it runs at each start.
const START_FILE: &str = "start.sql";

/// A MariaDB with TLS to start; see [`MariaDb::tls`].
#[derive(Clone, Debug)]
pub struct TlsSettings {
    mariadb: MariaDb,
    requires_client_certificates: bool,
}

/// A MariaDB that accepts only TLS, and the files that its clients need.
///
/// Each has its own authority, so the files of another server do not match. The files do not change
/// over restarts.
#[derive(Debug)]
pub struct TlsMariaDb {
    /// The server; its URL is that of one without TLS.
    pub server: Server,
    /// The certificate of the authority that clients must trust, as PEM.
    pub ca: PathBuf,
    /// A client certificate, as PEM.
    pub client_certificate: PathBuf,
    /// The key for it, as PEM.
    pub client_key: PathBuf,
}

impl MariaDb {
    /// Makes it accept only TLS, as 127.0.0.1 and localhost.
    ///
    /// ```no_run
    /// # async fn example() -> leasehold_testbed::Result<()> {
    /// use leasehold_testbed::mariadb::MariaDb;
    ///
    /// let mariadb = MariaDb::new().tls().require_client_certificates().start().await?;
    /// println!("{} is certified by {}", mariadb.server.url(), mariadb.ca.display());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn tls(self) -> TlsSettings {
        TlsSettings { mariadb: self, requires_client_certificates: false }
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
    pub async fn start(self) -> Result<TlsMariaDb> {
        let certificates = Certificates::generate()?;
        let server = Server::start(TlsServerSpec { tls: self, certificates }).await?;
        let file = |name| server.dir().join(name);
        let (ca, client_certificate, client_key) = (file(CA), file(CLIENT_CERTIFICATE), file(CLIENT_KEY));
        Ok(TlsMariaDb { server, ca, client_certificate, client_key })
    }
}

struct TlsServerSpec {
    tls: TlsSettings,
    certificates: Certificates,
}

impl ServerSpec for TlsServerSpec {
    fn binary(&self) -> Binary {
        self.tls.mariadb.binary()
    }

    fn arguments(&self, workspace: &Workspace) -> Vec<String> {
        let start_file = workspace.dir().join(START_FILE);
        // MariaDB runs in this folder.
        let ours = [
            ("ssl_ca", CA),
            ("ssl_cert", SERVER_CERTIFICATE),
            ("ssl_key", SERVER_KEY),
            ("require_secure_transport", "ON"),
            ("init_file", &start_file.to_string_lossy()),
        ];
        self.tls.mariadb.arguments_with(workspace, &ours)
    }

    fn url(&self, workspace: &Workspace) -> String {
        self.tls.mariadb.url(workspace)
    }

    fn prepare(&self, workspace: &Workspace) -> Result<()> {
        self.tls.mariadb.prepare(workspace)?;
        self.certificates.write(workspace.dir())?;
        let demand = if self.tls.requires_client_certificates { "X509" } else { "SSL" };
        let file = workspace.dir().join(START_FILE);
        let writing = Error::io(format!("writing {}", file.display()));
        fs::write(file, format!("ALTER USER {USER}@'%' REQUIRE {demand};\n")).map_err(writing)
    }

    fn probe<'a>(&'a self, workspace: &'a Workspace) -> Probe<'a> {
        self.tls.mariadb.probe(workspace)
    }

    fn init_steps(&self, workspace: &Workspace) -> Vec<InitStep> {
        self.tls.mariadb.init_steps(workspace)
    }

    fn clean_up(&self, workspace: &Workspace) {
        self.tls.mariadb.clean_up(workspace);
    }

    fn environment(&self) -> Vec<(String, String)> {
        self.tls.mariadb.environment()
    }

    fn stop_signal(&self) -> Signal {
        self.tls.mariadb.stop_signal()
    }

    fn run_as(&self) -> Option<&str> {
        self.tls.mariadb.run_as()
    }
}
