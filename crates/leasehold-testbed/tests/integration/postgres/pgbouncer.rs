//! PgBouncer lets all clients share a few connections to PostgreSQL.

use std::time::Duration;

use leasehold_testbed::{
    Data, Server,
    postgres::{self, PgBouncer, PoolMode},
};
use tokio::time::timeout;
use tokio_postgres::Client;

use super::{client, error_message};

const SILENCE_TIMEOUT: Duration = Duration::from_millis(300);

/// The process id of the server process that serves the client now. Uses no prepared statement,
/// which would belong to one server connection.
async fn unprepared_backend_pid(client: &Client) -> u64 {
    let answer = client.simple_query("SELECT pg_backend_pid()").await.unwrap();
    let pids = answer.iter().filter_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0)?.parse().ok(),
        _ => None,
    });
    pids.last().unwrap()
}

async fn start_bouncer(postgres: &Server, mode: PoolMode) -> Server {
    PgBouncer::new(postgres, mode).pool_size(1).start().await.unwrap()
}

#[tokio::test]
async fn in_transaction_mode_clients_share_a_connection() {
    let postgres = postgres::start().await.unwrap();
    let bouncer = start_bouncer(&postgres, PoolMode::Transaction).await;
    assert_ne!(bouncer.port(), postgres.port());
    let (one, two) = (client(&bouncer).await.unwrap(), client(&bouncer).await.unwrap());
    assert_eq!(unprepared_backend_pid(&one).await, unprepared_backend_pid(&two).await, "both use the same connection");
    assert_eq!(postgres::connections(&postgres).await.unwrap().len(), 1);

    one.batch_execute("BEGIN").await.unwrap();
    let waits = timeout(SILENCE_TIMEOUT, two.batch_execute("SELECT 1")).await;
    assert!(waits.is_err(), "{waits:?}");
    one.batch_execute("COMMIT").await.unwrap();
    two.batch_execute("SELECT 1").await.unwrap();
}

#[tokio::test]
async fn in_session_mode_a_client_keeps_its_connection() {
    let postgres = postgres::start().await.unwrap();
    let bouncer = PgBouncer::new(&postgres, PoolMode::Session).start().await.unwrap();
    let (one, two) = (client(&bouncer).await.unwrap(), client(&bouncer).await.unwrap());
    assert_ne!(unprepared_backend_pid(&one).await, unprepared_backend_pid(&two).await);
    let third = client(&bouncer).await.unwrap();
    let waits = timeout(SILENCE_TIMEOUT, third.batch_execute("SELECT 1")).await;
    assert!(waits.is_err(), "two connections are all there are: {waits:?}");
    drop(one);
    third.batch_execute("SELECT 1").await.unwrap();
}

#[tokio::test]
async fn in_statement_mode_there_are_no_transactions() {
    let postgres = postgres::start().await.unwrap();
    let bouncer = start_bouncer(&postgres, PoolMode::Statement).await;
    let client = client(&bouncer).await.unwrap();
    client.batch_execute("SELECT 1").await.unwrap();
    let refused = client.batch_execute("BEGIN").await.unwrap_err();
    assert!(error_message(&refused).contains("transaction blocks not allowed"), "{refused:?}");
}

#[tokio::test]
async fn pgbouncer_restarts_while_its_server_is_down() {
    let mut postgres = postgres::start().await.unwrap();
    let mut bouncer = start_bouncer(&postgres, PoolMode::Transaction).await;
    postgres.kill().unwrap();
    bouncer.kill().unwrap();
    bouncer.restart(Data::Keep).await.unwrap();
    postgres.restart(Data::Keep).await.unwrap();
    client(&bouncer).await.unwrap().batch_execute("SELECT 1").await.unwrap();
}
