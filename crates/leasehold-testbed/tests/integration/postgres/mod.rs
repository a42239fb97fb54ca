//! PostgreSQL alone, with its own clock, with TLS, with a standby, and behind PgBouncer.
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod clock;
mod pgbouncer;
mod process_cleanup;
mod single_server;
mod standby;
mod tls;

use leasehold_testbed::{Server, postgres};
use tokio_postgres::{Client, NoTls};

/// Connects to `url`.
async fn connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Connects to `server` as the ordinary user.
async fn client(server: &Server) -> Result<Client, tokio_postgres::Error> {
    connect(&server.url()).await
}

/// The server's error message.
fn error_message(error: &tokio_postgres::Error) -> String {
    error.as_db_error().map(|answer| answer.message().to_owned()).unwrap_or_else(|| format!("{error:?}"))
}

/// The process id of the server process that serves the client's connection.
async fn backend_pid(client: &Client) -> u64 {
    let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    pid.try_into().unwrap()
}

async fn insert_row(server: &Server) {
    let client = client(server).await.unwrap();
    client.batch_execute("CREATE TABLE t (n INT PRIMARY KEY); INSERT INTO t VALUES (7)").await.unwrap();
}

async fn read_rows(server: &Server) -> Result<Vec<i32>, tokio_postgres::Error> {
    let rows = client(server).await?.query("SELECT n FROM t ORDER BY n", &[]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// The single value that a statement returns.
async fn single_value(server: &Server, statement: &str) -> String {
    let rows = postgres::query(server, statement).await.unwrap();
    assert!(rows.len() == 1 && rows[0].len() == 1, "{rows:?}");
    rows[0][0].clone().unwrap()
}
