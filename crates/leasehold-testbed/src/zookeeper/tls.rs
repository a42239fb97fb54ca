//! A ZooKeeper with a port for TLS.

use std::net::{Ipv4Addr, SocketAddr};

use super::{ZooKeeper, server_spec::check_standalone};
use crate::{
    Result, Server,
    certificates::{CA, SERVER_KEY_AND_CERTIFICATE},
    process::{Probe, Workspace},
    tls::{TlsServerSpec, TlsSettings},
};

impl ZooKeeper {
    /// Makes its client port accept only TLS, with a certificate for 127.0.0.1 and localhost.
    /// [`plain_addr`] returns the address of a second port, without TLS.
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
    pub fn tls(self) -> TlsSettings<Self> {
        TlsSettings::new(self)
    }
}

impl TlsServerSpec for ZooKeeper {
    fn tls_arguments(&self, _workspace: &Workspace, _requires_client_certificates: bool) -> Vec<String> {
        self.java_arguments(&[])
    }

    fn prepare_tls(&self, workspace: &Workspace, requires_client_certificates: bool) -> Result<()> {
        let file = |name| workspace.dir().join(name).display().to_string();
        let requirement = if requires_client_certificates { "need" } else { "none" };
        let settings = [
            ("secureClientPort", workspace.port().to_string()),
            ("secureClientPortAddress", "127.0.0.1".to_owned()),
            ("serverCnxnFactory", "org.apache.zookeeper.server.NettyServerCnxnFactory".to_owned()),
            ("ssl.keyStore.location", file(SERVER_KEY_AND_CERTIFICATE)),
            ("ssl.keyStore.type", "PEM".to_owned()),
            ("ssl.trustStore.location", file(CA)),
            ("ssl.trustStore.type", "PEM".to_owned()),
            ("ssl.clientAuth", requirement.to_owned()),
        ];
        let settings = settings.map(|(key, value)| (key.to_owned(), value));
        self.write_files(first_local_addr(workspace.extra_ports()).port(), workspace.dir(), &settings)
    }

    /// Checks the port without TLS. Both ports are open once one of them serves.
    fn tls_probe<'a>(&'a self, workspace: &'a Workspace) -> Probe<'a> {
        Box::pin(check_standalone(first_local_addr(workspace.extra_ports())))
    }

    fn tls_extra_ports(&self) -> usize {
        1
    }
}

/// The address without TLS of a server that was started with [`ZooKeeper::tls`]: for four-letter
/// words and for inspections.
///
/// # Panics
///
/// If `server` was started without TLS: it has no second port.
pub fn plain_addr(server: &Server) -> SocketAddr {
    first_local_addr(server.extra_ports())
}

fn first_local_addr(ports: &[u16]) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, ports[0]).into()
}
