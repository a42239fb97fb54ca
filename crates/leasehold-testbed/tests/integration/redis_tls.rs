//! Redis with TLS: a strict client accepts its certificate, and refuses that of another authority.
//! And Redis with passwords and users.
#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::{fs, io, path::Path, sync::Arc};

use leasehold_testbed::{
    Data,
    redis::{Redis, Reply, RespClient},
    tls::TlsServer,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    },
};

/// Sends PING to `host` over TLS, trusting only `ca`, and returns the reply.
async fn ping_over_tls(redis: &TlsServer, host: &str, ca: &Path, with_certificate: bool) -> io::Result<String> {
    let mut trusted = RootCertStore::empty();
    trusted.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(trusted);
    let config = if with_certificate {
        let own = CertificateDer::from_pem_file(&redis.client_certificate).unwrap();
        let key = PrivateKeyDer::from_pem_file(&redis.client_key).unwrap();
        config.with_client_auth_cert(vec![own], key).unwrap()
    } else {
        config.with_no_client_auth()
    };
    let stream = TcpStream::connect(redis.server.addr()).await?;
    let host = ServerName::try_from(host.to_owned()).unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(host, stream).await?;
    stream.write_all(b"PING\r\n").await?;
    stream.flush().await?;
    let mut answer = [0; 7];
    stream.read_exact(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[tokio::test]
async fn a_tls_server_is_authenticated_and_refuses_plain_connections() {
    let mut redis = Redis::new().tls().start().await.unwrap();
    let other = Redis::new().tls().start().await.unwrap();
    assert_eq!(redis.server.url(), format!("rediss://127.0.0.1:{}/", redis.server.port()));
    for host in ["127.0.0.1", "localhost"] {
        assert_eq!(ping_over_tls(&redis, host, &redis.ca, false).await.unwrap(), "+PONG\r\n");
    }
    let other_ca = ping_over_tls(&redis, "127.0.0.1", &other.ca, false).await.unwrap_err();
    assert!(other_ca.to_string().contains("invalid peer certificate"), "{other_ca}");
    let wrong_host = ping_over_tls(&redis, "example.org", &redis.ca, false).await.unwrap_err();
    assert!(wrong_host.to_string().contains("not valid for name"), "{wrong_host}");
    let plain = RespClient::connect(redis.server.addr()).await.unwrap().command(&["PING"]).await;
    assert!(plain.is_err(), "{plain:?}");

    // After a wipe, the server still has the certificates that its clients know.
    let before = fs::read(&redis.ca).unwrap();
    redis.server.kill().unwrap();
    redis.server.restart(Data::Wipe).await.unwrap();
    assert_eq!(fs::read(&redis.ca).unwrap(), before);
    assert_eq!(ping_over_tls(&redis, "127.0.0.1", &redis.ca, false).await.unwrap(), "+PONG\r\n");
}

#[tokio::test]
async fn a_server_may_require_a_client_certificate() {
    let redis = Redis::new().tls().require_client_certificates().start().await.unwrap();
    assert_eq!(ping_over_tls(&redis, "127.0.0.1", &redis.ca, true).await.unwrap(), "+PONG\r\n");
    let without_certificate = ping_over_tls(&redis, "127.0.0.1", &redis.ca, false).await;
    assert!(without_certificate.is_err(), "{without_certificate:?}");
}

#[tokio::test]
async fn a_server_with_passwords_or_users_counts_as_ready() {
    let rights = ["on", ">word", "~app:*", "+@all"];
    let users = [
        vec!["--requirepass", "word"],
        [vec!["--user", "default", "off"], vec!["--user", "app"], rights.to_vec()].concat(),
        [vec!["--user", "default", "on", "nopass", "-@all"], vec!["--user", "app"], rights.to_vec()].concat(),
    ];
    let logins: [&[&str]; 3] = [&["AUTH", "word"], &["AUTH", "app", "word"], &["AUTH", "app", "word"]];
    let refusals = ["NOAUTH", "NOAUTH", "NOPERM"];
    for ((arguments, login), refusal) in users.iter().zip(logins).zip(refusals) {
        let server = Redis::new().args(arguments).start().await.unwrap();
        let mut client = RespClient::connect(server.addr()).await.unwrap();
        let refused = client.command(&["GET", "app:k"]).await.unwrap();
        assert!(matches!(&refused, Reply::Error(text) if text.starts_with(refusal)), "{refused:?}");
        assert_eq!(client.command(login).await.unwrap(), Reply::Simple("OK".to_owned()));
        assert_eq!(client.command(&["GET", "app:k"]).await.unwrap(), Reply::Nil);
    }
}
