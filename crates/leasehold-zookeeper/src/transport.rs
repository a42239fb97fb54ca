//! Connections to servers.

use std::future::Future;
use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};

use crate::address::Server;
use crate::random;

/// A connection's byte stream: TCP, TLS above it, or a test's own.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> ByteStream for S {}

/// Opens connections to servers.
pub(crate) trait Transport: Send + Sync + 'static {
    type Stream: ByteStream + 'static;

    /// Connects to a server; the caller limits the time.
    fn connect(&self, server: &Server) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

/// TCP, with TLS above it if configured.
#[derive(Clone, Default)]
pub(crate) struct Tcp {
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<std::sync::Arc<tokio_rustls::rustls::ClientConfig>>,
}

impl Transport for Tcp {
    type Stream = Box<dyn ByteStream>;

    async fn connect(&self, server: &Server) -> io::Result<Self::Stream> {
        let stream = connect_tcp(server).await?;
        // With Nagle's algorithm a request would wait for the reply to the one before it.
        stream.set_nodelay(true)?;
        #[cfg(feature = "tls")]
        if let Some(config) = &self.tls {
            use tokio_rustls::rustls::pki_types::ServerName;
            let name = ServerName::try_from(server.host.clone());
            let name = name.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
            let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::clone(config));
            return Ok(Box::new(connector.connect(name, stream).await?));
        }
        Ok(Box::new(stream))
    }
}

/// Connects to one of the addresses of a name, starting with a random one: if that address hangs,
/// the next attempt may start with another.
async fn connect_tcp(server: &Server) -> io::Result<TcpStream> {
    let mut addresses: Vec<SocketAddr> = lookup_host((server.host.as_str(), server.port)).await?.collect();
    random::shuffle(&mut addresses);
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}
