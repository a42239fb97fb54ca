//! MariaDB alone, with its own clock, with TLS, and as a Galera cluster.
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod clock;
mod galera;
mod single_server;
mod tls;

use leasehold_testbed::{Server, mariadb};
use mysql_async::{Conn, Opts, OptsBuilder};

/// Connects as the ordinary user.
async fn client(server: &Server) -> mysql_async::Result<Conn> {
    Conn::new(options(server)).await
}

/// Options of the server's URL, with TCP only: no Unix socket.
fn options(server: &Server) -> OptsBuilder {
    OptsBuilder::from_opts(Opts::from_url(&server.url()).unwrap()).prefer_socket(false)
}

/// The single value that a statement returns.
async fn single_value(server: &Server, statement: &str) -> String {
    let rows = mariadb::query(server, statement).await.unwrap();
    assert!(rows.len() == 1 && rows[0].len() == 1, "{rows:?}");
    rows[0][0].clone().unwrap()
}
