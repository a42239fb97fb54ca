//! Servers that accept TLS, each with its own certificate authority.

use std::path::PathBuf;

use crate::{
    Result, Server,
    certificates::{CA, CLIENT_CERTIFICATE, CLIENT_KEY, Certificates},
    process::{Binary, InitStep, Probe, ServerSpec, Signal, Workspace},
};

/// Defines how one kind of server is configured for TLS; everything else is as in its
/// [`ServerSpec`].
pub trait TlsServerSpec: ServerSpec {
    /// The arguments of the server, instead of [`ServerSpec::arguments`]. If
    /// `requires_client_certificates`, it refuses clients without a certificate of its authority.
    fn tls_arguments(&self, workspace: &Workspace, requires_client_certificates: bool) -> Vec<String>;

    /// Called before every start, instead of [`ServerSpec::prepare`]; the certificates are already in
    /// the data folder. If `requires_client_certificates`, the server refuses clients without a
    /// certificate of its authority.
    ///
    /// # Errors
    ///
    /// Any; the server is then not started.
    fn prepare_tls(&self, workspace: &Workspace, requires_client_certificates: bool) -> Result<()>;

    /// The URL by which clients find the server; by default that of a server without TLS.
    fn tls_url(&self, workspace: &Workspace) -> String {
        self.url(workspace)
    }

    /// Checks once whether the server responds; by default as without TLS.
    fn tls_probe<'a>(&'a self, workspace: &'a Workspace) -> Probe<'a> {
        self.probe(workspace)
    }

    /// The number of ports besides the one for clients; by default as without TLS.
    fn tls_extra_ports(&self) -> usize {
        self.extra_ports()
    }
}

/// A server to start with TLS, returned by `tls()` of each kind of server.
#[derive(Clone, Debug)]
pub struct TlsSettings<S> {
    spec: S,
    requires_client_certificates: bool,
}

/// A running server with TLS, and the files that its clients need.
///
/// Each has its own authority, so the files of another server do not match. The files do not change
/// over restarts.
#[derive(Debug)]
pub struct TlsServer {
    /// The server. Only the URL of a Redis shows that it uses TLS: it begins with `rediss:`.
    pub server: Server,
    /// The certificate of the authority that clients must trust, as PEM.
    pub ca: PathBuf,
    /// A client certificate, as PEM.
    pub client_certificate: PathBuf,
    /// The private key of the client certificate, as PEM.
    pub client_key: PathBuf,
}

impl<S: TlsServerSpec> TlsSettings<S> {
    /// `spec` with TLS; clients need no certificate.
    pub(crate) fn new(spec: S) -> Self {
        Self { spec, requires_client_certificates: false }
    }

    /// Makes the server refuse clients without a certificate of its authority.
    #[must_use]
    pub fn require_client_certificates(mut self) -> Self {
        self.requires_client_certificates = true;
        self
    }

    /// Creates the certificates, starts the server, and waits until it responds.
    ///
    /// # Errors
    ///
    /// As [`Server::start`].
    pub async fn start(self) -> Result<TlsServer> {
        let certificates = Certificates::generate()?;
        let server = Server::start(CertifiedServer { tls: self, certificates }).await?;
        let file = |name| server.dir().join(name);
        let (ca, client_certificate, client_key) = (file(CA), file(CLIENT_CERTIFICATE), file(CLIENT_KEY));
        Ok(TlsServer { server, ca, client_certificate, client_key })
    }
}

/// The definition of a server with TLS, and its certificates.
struct CertifiedServer<S> {
    tls: TlsSettings<S>,
    certificates: Certificates,
}

impl<S: TlsServerSpec> ServerSpec for CertifiedServer<S> {
    fn binary(&self) -> Binary {
        self.tls.spec.binary()
    }

    fn arguments(&self, workspace: &Workspace) -> Vec<String> {
        self.tls.spec.tls_arguments(workspace, self.tls.requires_client_certificates)
    }

    fn url(&self, workspace: &Workspace) -> String {
        self.tls.spec.tls_url(workspace)
    }

    fn probe<'a>(&'a self, workspace: &'a Workspace) -> Probe<'a> {
        self.tls.spec.tls_probe(workspace)
    }

    fn init_steps(&self, workspace: &Workspace) -> Vec<InitStep> {
        self.tls.spec.init_steps(workspace)
    }

    fn prepare(&self, workspace: &Workspace) -> Result<()> {
        self.certificates.write(workspace.dir())?;
        self.tls.spec.prepare_tls(workspace, self.tls.requires_client_certificates)
    }

    fn environment(&self) -> Vec<(String, String)> {
        self.tls.spec.environment()
    }

    fn stop_signal(&self) -> Signal {
        self.tls.spec.stop_signal()
    }

    fn clean_up(&self, workspace: &Workspace) {
        self.tls.spec.clean_up(workspace);
    }

    fn run_as(&self) -> Option<&str> {
        self.tls.spec.run_as()
    }

    fn extra_ports(&self) -> usize {
        self.tls.spec.tls_extra_ports()
    }

    fn disk(&self) -> Option<u64> {
        self.tls.spec.disk()
    }

    fn start_timeout(&self) -> std::time::Duration {
        self.tls.spec.start_timeout()
    }
}
