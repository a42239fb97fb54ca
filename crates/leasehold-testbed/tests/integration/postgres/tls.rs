//! PostgreSQL with TLS: a strict client accepts its certificate, and refuses that of another
//! authority.

use std::{error::Error, fs, path::Path, sync::Arc};

use leasehold_testbed::{
    Data,
    postgres::{self, Postgres},
    tls::TlsServer,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_postgres::{Config, NoTls, config::SslMode};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    },
};

/// The client's request to use TLS (`SSLRequest`).
const TLS_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];
/// The server's reply to [`TLS_REQUEST`] that it uses TLS.
const TLS_ACCEPTED: u8 = b'S';

/// Whether the connection is encrypted, as the server sees it; the client trusts only `ca`.
async fn is_encrypted(
    postgres: &TlsServer,
    host: &str,
    ca: &Path,
    with_certificate: bool,
) -> Result<bool, Box<dyn Error>> {
    let mut trusted = RootCertStore::empty();
    trusted.add(CertificateDer::from_pem_file(ca)?)?;
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(trusted);
    let config = if with_certificate {
        let own = CertificateDer::from_pem_file(&postgres.client_certificate)?;
        config.with_client_auth_cert(vec![own], PrivateKeyDer::from_pem_file(&postgres.client_key)?)?
    } else {
        config.with_no_client_auth()
    };
    let mut stream = TcpStream::connect(postgres.server.addr()).await?;
    stream.write_all(&TLS_REQUEST).await?;
    assert_eq!(stream.read_u8().await?, TLS_ACCEPTED);
    let stream = TlsConnector::from(Arc::new(config)).connect(ServerName::try_from(host.to_owned())?, stream).await?;
    // The stream is already encrypted, so the client library must not use TLS itself.
    let mut options: Config = postgres.server.url().parse()?;
    let (client, connection) = options.ssl_mode(SslMode::Disable).connect_raw(stream, NoTls).await?;
    tokio::spawn(connection);
    let row = client.query_one("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()", &[]).await?;
    Ok(row.get(0))
}

#[tokio::test]
async fn a_tls_server_is_authenticated_and_refuses_plain_connections() {
    let mut postgres = Postgres::new().tls().start().await.unwrap();
    let other = Postgres::new().tls().start().await.unwrap();
    for host in ["127.0.0.1", "localhost"] {
        assert!(is_encrypted(&postgres, host, &postgres.ca, false).await.unwrap());
    }
    let other_ca = is_encrypted(&postgres, "127.0.0.1", &other.ca, false).await.unwrap_err();
    assert!(other_ca.to_string().contains("invalid peer certificate"), "{other_ca}");
    let plain = super::client(&postgres.server).await.unwrap_err();
    assert!(super::error_message(&plain).contains("no encryption"), "{plain:?}");
    assert_eq!(postgres::query(&postgres.server, "SELECT 1").await.unwrap(), [[Some("1".to_owned())]]);

    // After a wipe, the server still has the certificates that its clients know.
    let before = fs::read(&postgres.ca).unwrap();
    postgres.server.kill().unwrap();
    postgres.server.restart(Data::Wipe).await.unwrap();
    assert_eq!(fs::read(&postgres.ca).unwrap(), before);
    assert!(is_encrypted(&postgres, "127.0.0.1", &postgres.ca, false).await.unwrap());
}

#[tokio::test]
async fn a_server_may_require_a_client_certificate() {
    let postgres = Postgres::new().tls().require_client_certificates().start().await.unwrap();
    assert!(is_encrypted(&postgres, "127.0.0.1", &postgres.ca, true).await.unwrap());
    let without_certificate = is_encrypted(&postgres, "127.0.0.1", &postgres.ca, false).await;
    assert!(without_certificate.is_err(), "{without_certificate:?}");
}
