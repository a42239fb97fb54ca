//! A MariaDB that accepts only TLS.

use std::fs;

use super::{MariaDb, USER};
use crate::{
    Error, Result,
    certificates::{CA, SERVER_CERTIFICATE, SERVER_KEY},
    process::{ServerSpec, Workspace},
    tls::{TlsServerSpec, TlsSettings},
};

/// The file of SQL statements that MariaDB runs at each start.
const START_FILE: &str = "start.sql";

impl MariaDb {
    /// Makes it accept only TLS, with a certificate for 127.0.0.1 and localhost.
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
    pub fn tls(self) -> TlsSettings<Self> {
        TlsSettings::new(self)
    }
}

impl TlsServerSpec for MariaDb {
    fn tls_arguments(&self, workspace: &Workspace, _requires_client_certificates: bool) -> Vec<String> {
        let start_file = workspace.dir().join(START_FILE);
        // The certificate files are relative to the data folder, in which MariaDB runs.
        let tls_settings = [
            ("ssl_ca", CA),
            ("ssl_cert", SERVER_CERTIFICATE),
            ("ssl_key", SERVER_KEY),
            ("require_secure_transport", "ON"),
            ("init_file", &start_file.to_string_lossy()),
        ];
        self.arguments_with(workspace, &tls_settings)
    }

    fn prepare_tls(&self, workspace: &Workspace, requires_client_certificates: bool) -> Result<()> {
        self.prepare(workspace)?;
        let requirement = if requires_client_certificates { "X509" } else { "SSL" };
        let file = workspace.dir().join(START_FILE);
        let writing = Error::io(format!("writing {}", file.display()));
        fs::write(file, format!("ALTER USER {USER}@'%' REQUIRE {requirement};\n")).map_err(writing)
    }
}
