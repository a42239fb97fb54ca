//! PgBouncer hands the same few connections to all clients.

use std::time::Duration;

use leasehold_testbed::{
    Data, Server,
    postgres::{self, PgBouncer, PoolMode},
};
use tokio::time::timeout;
use tokio_postgres::Client;

use super::{client, words};

const SILENCE: Duration = Duration::from_millis(300);

/// One that prepares nothing: a prepared statement would stay with the connection.
async fn backend(client: &Client) -> u64 {
    let answer = client.simple_query("SELECT pg_backend_pid()").await.unwrap();
    let pids = answer.iter().filter_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0)?.parse().ok(),
        _ => None,
    });
    pids.last().unwrap()
}

async fn start(postgres: &Server, mode: PoolMode) -> Server {
    PgBouncer::new(postgres, mode).pool_size(1).start().await.unwrap()
}

#[tokio::test]
async fn in_transaction_mode_clients_take_turns() {
    let postgres = postgres::start().await.unwrap();
    let bouncer = start(&postgres, PoolMode::Transaction).await;
    assert_ne!(bouncer.port(), postgres.port());
    let (one, two) = (client(&bouncer).await.unwrap(), client(&bouncer).await.unwrap());
    assert_eq!(backend(&one).await, backend(&two).await, "both use the same connection");
    assert_eq!(postgres::connections(&postgres).await.unwrap().len(), 1);

    one.batch_execute("BEGIN").await.unwrap();
    let waits = timeout(SILENCE, two.batch_execute("SELECT 1")).await;
    assert!(waits.is_err(), "{waits:?}");
    one.batch_execute("COMMIT").await.unwrap();
    two.batch_execute("SELECT 1").await.unwrap();
}

#[tokio::test]
async fn in_session_mode_a_client_keeps_its_connection() {
    let postgres = postgres::start().await.unwrap();
    let bouncer = PgBouncer::new(&postgres, PoolMode::Session).start().await.unwrap();
    let (one, two) = (client(&bouncer).await.unwrap(), client(&bouncer).await.unwrap());
    assert_ne!(backend(&one).await, backend(&two).await);
    let third = client(&bouncer).await.unwrap();
    let waits = timeout(SILENCE, third.batch_execute("SELECT 1")).await;
    assert!(waits.is_err(), "two connections are all there are: {waits:?}");
    drop(one);
    third.batch_execute("SELECT 1").await.unwrap();
}

#[tokio::test]
async fn in_statement_mode_there_are_no_transactions() {
    let postgres = postgres::start().await.unwrap();
    let bouncer = start(&postgres, PoolMode::Statement).await;
    let client = client(&bouncer).await.unwrap();
    client.batch_execute("SELECT 1").await.unwrap();
    let refused = client.batch_execute("BEGIN").await.unwrap_err();
    assert!(words(&refused).contains("transaction blocks not allowed"), "{refused:?}");
}

#[tokio::test]
async fn it_comes_back_though_nobody_is_behind_it() {
    let mut postgres = postgres::start().await.unwrap();
    let mut bouncer = start(&postgres, PoolMode::Transaction).await;
    postgres.kill().unwrap();
    bouncer.kill().unwrap();
    bouncer.restart(Data::Keep).await.unwrap();
    postgres.restart(Data::Keep).await.unwrap();
    client(&bouncer).await.unwrap().batch_execute("SELECT 1").await.unwrap();
}
