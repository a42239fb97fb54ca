//! A ZooKeeper with a port for TLS.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use super::{ZooKeeper, server_spec::check_standalone};
use crate::{
    Result, Server,
    certificates::{CA, CLIENT_CERTIFICATE, CLIENT_KEY, Certificates, SERVER_KEY_AND_CERTIFICATE},
    process::{Binary, Probe, ServerSpec, Workspace},
};

/// A ZooKeeper with TLS to start; see [`ZooKeeper::tls`].
#[derive(Clone, Debug)]
pub struct TlsSettings {
    zookeeper: ZooKeeper,
    requires_client_certificates: bool,
}

/// A ZooKeeper with a port for TLS, and the files that its clients need.
///
/// Each has its own authority, so the files of another server do not match. The files do not change
/// over restarts.
#[derive(Debug)]
pub struct TlsZooKeeper {
    /// The server; its port accepts only TLS.
    pub server: Server,
    /// Another port, without TLS: for four-letter words and for inspections.
    pub plain_addr: SocketAddr,
    /// The certificate of the authority that clients must trust, as PEM.
    pub ca: PathBuf,
    /// A client certificate, as PEM.
    pub client_certificate: PathBuf,
    /// The key for it, as PEM.
    pub client_key: PathBuf,
}

impl ZooKeeper {
    /// Makes it accept TLS, as 127.0.0.1 and localhost.
    ///
    /// ```no_run
    /// # async fn example() -> leasehold_testbed::Result<()> {
    /// use leasehold_testbed::zookeeper::ZooKeeper;
    ///
    /// let zookeeper = ZooKeeper::new().tls().require_client_certificates().start().await?;
    /// println!("{} is certified by {}", zookeeper.server.url(), zookeeper.ca.display());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn tls(self) -> TlsSettings {
        TlsSettings { zookeeper: self, requires_client_certificates: false }
    }
}

impl TlsSettings {
    /// Refuses clients without a certificate of our authority.
    #[must_use]
    pub fn require_client_certificates(mut self) -> Self {
        self.requires_client_certificates = true;
        self
    }

    /// Creates the certificates, starts it, and waits until it serves.
    ///
    /// # Errors
    ///
    /// As [`Server::start`].
    pub async fn start(self) -> Result<TlsZooKeeper> {
        let certificates = Certificates::generate()?;
        let server = Server::start(TlsServerSpec { tls: self, certificates }).await?;
        let plain = plain_addr(server.extra_ports());
        let file = |name| server.dir().join(name);
        let (ca, client_certificate, client_key) = (file(CA), file(CLIENT_CERTIFICATE), file(CLIENT_KEY));
        Ok(TlsZooKeeper { server, plain_addr: plain, ca, client_certificate, client_key })
    }
}

struct TlsServerSpec {
    tls: TlsSettings,
    certificates: Certificates,
}

impl ServerSpec for TlsServerSpec {
    fn binary(&self) -> Binary {
        self.tls.zookeeper.binary()
    }

    fn arguments(&self, _workspace: &Workspace) -> Vec<String> {
        self.tls.zookeeper.java_arguments(&[])
    }

    fn url(&self, workspace: &Workspace) -> String {
        self.tls.zookeeper.url(workspace)
    }

    fn prepare(&self, workspace: &Workspace) -> Result<()> {
        self.certificates.write(workspace.dir())?;
        let file = |name| workspace.dir().join(name).display().to_string();
        let demand = if self.tls.requires_client_certificates { "need" } else { "none" };
        let settings = [
            ("secureClientPort", workspace.port().to_string()),
            ("secureClientPortAddress", "127.0.0.1".to_owned()),
            ("serverCnxnFactory", "org.apache.zookeeper.server.NettyServerCnxnFactory".to_owned()),
            ("ssl.keyStore.location", file(SERVER_KEY_AND_CERTIFICATE)),
            ("ssl.keyStore.type", "PEM".to_owned()),
            ("ssl.trustStore.location", file(CA)),
            ("ssl.trustStore.type", "PEM".to_owned()),
            ("ssl.clientAuth", demand.to_owned()),
        ];
        let settings = settings.map(|(key, value)| (key.to_owned(), value));
        self.tls.zookeeper.write_files(plain_addr(workspace.extra_ports()).port(), workspace.dir(), &settings)
    }

    /// Both ports are open once one of them serves; the other is known to belong to our process.
    fn probe<'a>(&'a self, workspace: &'a Workspace) -> Probe<'a> {
        Box::pin(check_standalone(plain_addr(workspace.extra_ports())))
    }

    fn extra_ports(&self) -> usize {
        1
    }
}

fn plain_addr(extra_ports: &[u16]) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, extra_ports[0]).into()
}
