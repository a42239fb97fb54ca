//! MariaDB with TLS: a strict client accepts its certificate, and refuses that of another
//! authority.

use std::{fs, path::Path};

use leasehold_testbed::{
    Data,
    mariadb::{self, MariaDb},
    tls::TlsServer,
};
use mysql_async::{ClientIdentity, Conn, SslOpts, prelude::Queryable};

use super::options;

/// Connects over TLS, trusting only `ca`; returns the cipher that the server reports.
async fn connection_cipher(mariadb: &TlsServer, ca: &Path, with_certificate: bool) -> mysql_async::Result<String> {
    // The client library uses the process's default crypto provider; only the first installation
    // counts.
    let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
    let mut tls = SslOpts::default().with_disable_built_in_roots(true).with_root_certs(vec![ca.to_owned().into()]);
    if with_certificate {
        let identity =
            ClientIdentity::new(mariadb.client_certificate.clone().into(), mariadb.client_key.clone().into());
        tls = tls.with_client_identity(Some(identity));
    }
    let mut client = Conn::new(options(&mariadb.server).ssl_opts(Some(tls))).await?;
    let row: Option<(String, String)> = client.query_first("SHOW SESSION STATUS LIKE 'Ssl_cipher'").await?;
    Ok(row.unwrap().1)
}

#[tokio::test]
async fn a_tls_server_is_authenticated_and_refuses_plain_connections() {
    let mut mariadb = MariaDb::new().tls().start().await.unwrap();
    let other = MariaDb::new().tls().start().await.unwrap();
    assert!(!connection_cipher(&mariadb, &mariadb.ca, false).await.unwrap().is_empty());
    let other_ca = connection_cipher(&mariadb, &other.ca, false).await.unwrap_err();
    assert!(other_ca.to_string().contains("invalid peer certificate"), "{other_ca}");
    assert!(super::client(&mariadb.server).await.is_err(), "without TLS");
    assert_eq!(mariadb::query(&mariadb.server, "SELECT 1").await.unwrap(), [[Some("1".to_owned())]]);

    // After a wipe, the server still has the certificates that its clients know.
    let before = fs::read(&mariadb.ca).unwrap();
    mariadb.server.kill().unwrap();
    mariadb.server.restart(Data::Wipe).await.unwrap();
    assert_eq!(fs::read(&mariadb.ca).unwrap(), before);
    assert!(connection_cipher(&mariadb, &mariadb.ca, false).await.is_ok());
}

#[tokio::test]
async fn a_server_may_require_a_client_certificate() {
    let mariadb = MariaDb::new().tls().require_client_certificates().start().await.unwrap();
    assert!(!connection_cipher(&mariadb, &mariadb.ca, true).await.unwrap().is_empty());
    let without_certificate = connection_cipher(&mariadb, &mariadb.ca, false).await;
    assert!(without_certificate.is_err(), "{without_certificate:?}");
}
