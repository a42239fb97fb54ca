//! ZooKeeper with TLS: a strict client accepts its certificate, and refuses that of another
//! authority.

use std::{fs, io, path::Path, sync::Arc, time::Duration};

use leasehold_testbed::{
    Data,
    tls::TlsServer,
    zookeeper::{ZooKeeper, plain_addr, send_word},
};
use tokio::net::TcpStream;
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    },
};

use crate::zookeeper::session::{NodeKind, Session};

const TIMEOUT: Duration = Duration::from_secs(10);

/// Opens a session with `host` over TLS, trusting only `ca`.
async fn open_over_tls(
    at: &TlsServer,
    host: &str,
    ca: &Path,
    certificate: bool,
) -> io::Result<Session<TlsStream<TcpStream>>> {
    let mut trusted = RootCertStore::empty();
    trusted.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(trusted);
    let config = if certificate {
        let own = CertificateDer::from_pem_file(&at.client_certificate).unwrap();
        let key = PrivateKeyDer::from_pem_file(&at.client_key).unwrap();
        config.with_client_auth_cert(vec![own], key).unwrap()
    } else {
        config.with_no_client_auth()
    };
    let stream = TcpStream::connect(at.server.addr()).await?;
    let host = ServerName::try_from(host.to_owned()).unwrap();
    let stream = TlsConnector::from(Arc::new(config)).connect(host, stream).await?;
    Session::open_on(stream, TIMEOUT).await
}

#[tokio::test]
async fn a_tls_server_is_authenticated_and_may_require_a_client_certificate() {
    let (open_to_all, strict) =
        tokio::join!(ZooKeeper::new().tls().start(), ZooKeeper::new().tls().require_client_certificates().start());
    let (mut at, strict) = (open_to_all.unwrap(), strict.unwrap());
    for host in ["127.0.0.1", "localhost"] {
        let mut client = open_over_tls(&at, host, &at.ca, false).await.unwrap();
        client.create(&format!("/{host}"), "v", NodeKind::Persistent).await.unwrap().unwrap();
        let mut plain = Session::open(plain_addr(&at.server), TIMEOUT).await.unwrap();
        assert_eq!(plain.get(&format!("/{host}")).await.unwrap().unwrap(), "v");
    }
    let other_ca = open_over_tls(&at, "127.0.0.1", &strict.ca, false).await.err().unwrap();
    assert!(other_ca.to_string().contains("invalid peer certificate"), "{other_ca}");
    let wrong_host = open_over_tls(&at, "example.org", &at.ca, false).await.err().unwrap();
    assert!(wrong_host.to_string().contains("not valid for name"), "{wrong_host}");
    assert!(Session::open(at.server.addr(), TIMEOUT).await.is_err(), "its port accepts only TLS");
    assert_eq!(send_word(plain_addr(&at.server), "ruok").await.unwrap(), "imok");

    assert!(open_over_tls(&strict, "127.0.0.1", &strict.ca, true).await.is_ok());
    assert!(open_over_tls(&strict, "127.0.0.1", &strict.ca, false).await.is_err());

    // After a wipe, the server still has the certificates that its clients know.
    let before = fs::read(&at.ca).unwrap();
    at.server.kill().unwrap();
    at.server.restart(Data::Wipe).await.unwrap();
    assert_eq!(fs::read(&at.ca).unwrap(), before);
    assert!(open_over_tls(&at, "127.0.0.1", &at.ca, false).await.is_ok());
}
