//! Permanently wrong URLs: another kind of server, or a missing database.

use leasehold::{ErrorKind, Locks};
use leasehold_testbed::{mariadb, postgres};
use tokio::io::AsyncWriteExt;

use crate::sql_faults::fixture::{BOTH, Fixture};

/// A missing database is a wrong URL on either server, even if the server does not reveal that it
/// is missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_database_is_a_wrong_url() {
    for kind in BOTH {
        let fixture = Fixture::on_own_server(kind).await;
        let url = fixture.url().replace("/test", "/nowhere");
        let error = Locks::open(&url).await.expect_err("no such database");
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::InvalidUrl, false), "{kind:?}: {error}");
        assert!(error.to_string().contains("no such database"), "{kind:?}: {error}");
    }
}

/// Answers every connection with `greeting` and closes it.
async fn serve_greeting(greeting: &'static [u8]) -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let addr = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(greeting).await;
            let _ = stream.shutdown().await;
            let mut rest = [0; 64];
            // Reads what was sent, so that the connection closes without a reset.
            while tokio::io::AsyncReadExt::read(&mut stream, &mut rest).await.is_ok_and(|read| read > 0) {}
        }
    });
    addr
}

const HTTP: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
const SSH: &[u8] = b"SSH-2.0-OpenSSH_9.2p1\r\n";

/// The error names a server of another kind, and is not retryable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_another_kind_is_reported_and_not_retried() {
    let (http, ssh) = (serve_greeting(HTTP).await, serve_greeting(SSH).await);
    let (my, pg) = (mariadb::start().await.expect("a server"), postgres::start().await.expect("a server"));
    for (url, says) in [
        (format!("postgres://u:p@{http}/d"), "is not PostgreSQL"),
        (format!("postgres://u:p@{}/d", my.addr()), "is not PostgreSQL"),
        (format!("mysql://u:p@{ssh}/d"), "is not MySQL"),
        (format!("zookeeper://{http}"), "is not ZooKeeper"),
        (format!("zookeeper://{}", pg.addr()), "is not ZooKeeper"),
    ] {
        let error = Locks::open(&url).await.expect_err(&url);
        assert!(error.to_string().contains(says), "{url}: {error}");
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, false), "{url}: {error}");
    }
}
