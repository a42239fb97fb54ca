//! A Redis that speaks only TLS.

use std::path::PathBuf;

use tokio::net::TcpStream;

use super::Redis;
use crate::{
    Result, Server,
    certificates::{CA, CLIENT_CERTIFICATE, CLIENT_KEY, Certificates, SERVER_CERTIFICATE, SERVER_KEY},
    process::{Binary, Probe, ServerSpec, Workspace},
};

/// What Redis prints at each start, first and last.
const START_LOG_LINE: &str = "Redis is starting";
const READY_LOG_LINE: &str = "Ready to accept connections";

/// A Redis with TLS to be started; see [`Redis::tls`].
#[derive(Clone, Debug)]
pub struct TlsSettings {
    redis: Redis,
    requires_client_certificates: bool,
}

/// A Redis that speaks only TLS, and the files that its clients need.
///
/// Each has an authority of its own: the file of another one is a wrong one. The files stay the
/// same over all restarts.
#[derive(Debug)]
pub struct TlsRedis {
    /// The server; its URL begins with `rediss:`.
    pub server: Server,
    /// The certificate of the authority that clients must trust, as PEM.
    pub ca: PathBuf,
    /// A certificate that a client may show, as PEM.
    pub client_certificate: PathBuf,
    /// The key for it, as PEM.
    pub client_key: PathBuf,
}

impl Redis {
    /// Has it speak only TLS, as 127.0.0.1 and localhost.
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
    pub fn tls(self) -> TlsSettings {
        TlsSettings { redis: self, requires_client_certificates: false }
    }
}

impl TlsSettings {
    /// Refuses clients that do not show a certificate of our authority.
    #[must_use]
    pub fn require_client_certificates(mut self) -> Self {
        self.requires_client_certificates = true;
        self
    }

    /// Makes the certificates, starts it, and waits until it takes connections.
    ///
    /// # Errors
    ///
    /// As [`Server::start`].
    pub async fn start(self) -> Result<TlsRedis> {
        let certificates = Certificates::generate()?;
        let server = Server::start(TlsServerSpec { tls: self, certificates }).await?;
        let file = |name| server.dir().join(name);
        let (ca, client_certificate, client_key) = (file(CA), file(CLIENT_CERTIFICATE), file(CLIENT_KEY));
        Ok(TlsRedis { server, ca, client_certificate, client_key })
    }
}

struct TlsServerSpec {
    tls: TlsSettings,
    certificates: Certificates,
}

impl ServerSpec for TlsServerSpec {
    fn binary(&self) -> Binary {
        self.tls.redis.binary()
    }

    fn arguments(&self, workspace: &Workspace) -> Vec<String> {
        let port = workspace.port().to_string();
        let demand = if self.tls.requires_client_certificates { "yes" } else { "no" };
        // Redis runs in this folder.
        let ours = [
            ["--port", "0"],
            ["--tls-port", &port],
            ["--tls-cert-file", SERVER_CERTIFICATE],
            ["--tls-key-file", SERVER_KEY],
            ["--tls-ca-cert-file", CA],
            ["--tls-auth-clients", demand],
        ];
        self.tls.redis.clone().args(&ours.concat()).arguments(workspace)
    }

    fn url(&self, workspace: &Workspace) -> String {
        self.tls.redis.url(workspace).replacen("redis:", "rediss:", 1)
    }

    fn prepare(&self, workspace: &Workspace) -> Result<()> {
        self.certificates.write(workspace.dir())
    }

    /// Asking would take a TLS client. That our process listens has been seen already; now it must
    /// have said since its last start that it is ready.
    fn probe<'a>(&'a self, workspace: &'a Workspace) -> Probe<'a> {
        Box::pin(async move {
            TcpStream::connect(workspace.addr()).await.map_err(|error| error.to_string())?;
            let log = workspace.log_tail();
            let last_start = log.rsplit(START_LOG_LINE).next().unwrap_or_default();
            if last_start.contains(READY_LOG_LINE) { Ok(()) } else { Err("it is not ready yet".to_owned()) }
        })
    }

    fn run_as(&self) -> Option<&str> {
        ServerSpec::run_as(&self.tls.redis)
    }
}
