//! A Redis that accepts only TLS.

use std::path::PathBuf;

use tokio::net::TcpStream;

use super::Redis;
use crate::{
    Result, Server,
    certificates::{CA, CLIENT_CERTIFICATE, CLIENT_KEY, Certificates, SERVER_CERTIFICATE, SERVER_KEY},
    process::{Binary, Probe, ServerSpec, Workspace},
};

/// The first and last log lines of each start of Redis.
const START_LOG_LINE: &str = "Redis is starting";
const READY_LOG_LINE: &str = "Ready to accept connections";

/// A Redis with TLS to start; see [`Redis::tls`].
#[derive(Clone, Debug)]
pub struct TlsSettings {
    redis: Redis,
    requires_client_certificates: bool,
}

/// A Redis that accepts only TLS, and the files that its clients need.
///
/// Each has its own authority, so the files of another server do not match. The files do not change
/// over restarts.
#[derive(Debug)]
pub struct TlsRedis {
    /// The server; its URL begins with `rediss:`.
    pub server: Server,
    /// The certificate of the authority that clients must trust, as PEM.
    pub ca: PathBuf,
    /// A client certificate, as PEM.
    pub client_certificate: PathBuf,
    /// The key for it, as PEM.
    pub client_key: PathBuf,
}

impl Redis {
    /// Makes it accept only TLS, as 127.0.0.1 and localhost.
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
    /// Refuses clients without a certificate of our authority.
    #[must_use]
    pub fn require_client_certificates(mut self) -> Self {
        self.requires_client_certificates = true;
        self
    }

    /// Creates the certificates, starts it, and waits until it accepts connections.
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

    /// A ping would need a TLS client. Our process is known to listen; its log must also report
    /// since the last start that it is ready.
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
