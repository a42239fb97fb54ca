//! A PostgreSQL that accepts only TLS.

use super::Postgres;
use crate::{
    Result,
    certificates::{CA, SERVER_CERTIFICATE, SERVER_KEY},
    process::Workspace,
    tls::{TlsServerSpec, TlsSettings},
};

impl Postgres {
    /// Makes it accept only TLS, with a certificate for 127.0.0.1 and localhost.
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
    pub fn tls(self) -> TlsSettings<Self> {
        TlsSettings::new(self)
    }
}

impl TlsServerSpec for Postgres {
    fn tls_arguments(&self, workspace: &Workspace, _requires_client_certificates: bool) -> Vec<String> {
        // The certificate files are relative to the data folder, in which PostgreSQL runs.
        let tls_settings =
            [("ssl", "on"), ("ssl_ca_file", CA), ("ssl_cert_file", SERVER_CERTIFICATE), ("ssl_key_file", SERVER_KEY)];
        self.arguments_with(workspace, &tls_settings)
    }

    fn prepare_tls(&self, workspace: &Workspace, requires_client_certificates: bool) -> Result<()> {
        let requirement = if requires_client_certificates { "clientcert=verify-ca" } else { "" };
        self.write_access(workspace, "hostssl", requirement)
    }
}
