//! A Redis that accepts only TLS.

use tokio::net::TcpStream;

use super::Redis;
use crate::{
    Result,
    certificates::{CA, SERVER_CERTIFICATE, SERVER_KEY},
    process::{Probe, ServerSpec, Workspace},
    tls::{TlsServerSpec, TlsSettings},
};

/// The first log line of each start of Redis contains this.
const START_LOG_LINE: &str = "Redis is starting";
/// The last log line of each start of Redis contains this.
const READY_LOG_LINE: &str = "Ready to accept connections";

impl Redis {
    /// Makes it accept only TLS, with a certificate for 127.0.0.1 and localhost.
    ///
    /// ```no_run
    /// # async fn example() -> leasehold_testbed::Result<()> {
    /// use leasehold_testbed::redis::Redis;
    ///
    /// let redis = Redis::new().tls().require_client_certificates().start().await?;
    /// println!("{} is certified by {}", redis.server.url(), redis.ca.display());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn tls(self) -> TlsSettings<Self> {
        TlsSettings::new(self)
    }
}

impl TlsServerSpec for Redis {
    fn tls_arguments(&self, workspace: &Workspace, requires_client_certificates: bool) -> Vec<String> {
        let port = workspace.port().to_string();
        let requirement = if requires_client_certificates { "yes" } else { "no" };
        // The certificate files are relative to the data folder, in which Redis runs.
        let tls_arguments = [
            ["--port", "0"],
            ["--tls-port", &port],
            ["--tls-cert-file", SERVER_CERTIFICATE],
            ["--tls-key-file", SERVER_KEY],
            ["--tls-ca-cert-file", CA],
            ["--tls-auth-clients", requirement],
        ];
        self.clone().args(&tls_arguments.concat()).arguments(workspace)
    }

    fn prepare_tls(&self, workspace: &Workspace, _requires_client_certificates: bool) -> Result<()> {
        self.prepare(workspace)
    }

    fn tls_url(&self, workspace: &Workspace) -> String {
        self.url(workspace).replacen("redis:", "rediss:", 1)
    }

    /// Checks that the port is open and that the log reports readiness since the last start: a ping
    /// would need a TLS client.
    fn tls_probe<'a>(&'a self, workspace: &'a Workspace) -> Probe<'a> {
        Box::pin(async move {
            TcpStream::connect(workspace.addr()).await.map_err(|error| error.to_string())?;
            let log = workspace.log_tail();
            let last_start = log.rsplit(START_LOG_LINE).next().unwrap_or_default();
            if last_start.contains(READY_LOG_LINE) { Ok(()) } else { Err("it is not ready yet".to_owned()) }
        })
    }
}
