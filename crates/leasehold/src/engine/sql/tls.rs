//! TLS for connections to PostgreSQL: implements the interface that tokio-postgres has for it with
//! rustls.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream as Inner;

use super::config;

/// TLS with the certificates of the URL; `None` if the URL turns TLS off.
#[derive(Clone)]
pub(super) struct Tls(Option<TlsConnector>);

impl Tls {
    /// Reads the certificate files. The error names the file that cannot be used. `config` is
    /// `None` if the URL turns TLS off.
    pub(super) fn new(config: Option<&config::TlsConfig>) -> Result<Self, String> {
        let Some(tls) = config else { return Ok(Self(None)) };
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&tls.ca)? {
            roots.add(certificate).map_err(|error| file_error(&tls.ca, &error))?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots);
        let client = match &tls.identity {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| file_error(key, &error))?;
                builder.with_client_auth_cert(certificates(cert)?, secret).map_err(|error| file_error(cert, &error))?
            }
        };
        Ok(Self(Some(TlsConnector::from(Arc::new(client)))))
    }
}

/// All certificates in a PEM file; an error if it has none.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path).map_err(|error| file_error(path, &error))?;
    let all: Vec<_> = read.collect::<Result<_, _>>().map_err(|error| file_error(path, &error))?;
    if all.is_empty() { Err(format!("{} has no certificate in it", path.display())) } else { Ok(all) }
}

/// The message for a certificate file that cannot be used.
fn file_error(path: &Path, error: &dyn std::fmt::Display) -> String {
    format!("{} cannot be used: {error}", path.display())
}

impl<S> MakeTlsConnect<S> for Tls
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Stream<S>;
    type TlsConnect = Handshake;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<Handshake> {
        // tokio-postgres calls this even if TLS is off, and then does not use the result.
        Ok(Handshake { connector: self.0.clone(), host: host.to_owned() })
    }
}

/// A TLS handshake with one server, which has not begun yet.
pub(super) struct Handshake {
    /// `None` if TLS is off.
    connector: Option<TlsConnector>,
    /// The name that the server's certificate must have.
    host: String,
}

impl<S> TlsConnect<S> for Handshake
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Stream<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            let connector = self.connector.ok_or_else(|| io::Error::other("TLS is off"))?;
            let name = ServerName::try_from(self.host).map_err(io::Error::other)?;
            Ok(Stream(Box::new(connector.connect(name, stream).await?)))
        })
    }
}

/// An encrypted connection.
pub(super) struct Stream<S>(Box<Inner<S>>);

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Stream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, into)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Stream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Stream<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}
