//! A standby follows its primary, refuses writes, and can be promoted.

use std::time::Duration;

use leasehold_testbed::{
    Data, Error, Proxy, Server, eventually,
    postgres::{self, Postgres},
};

use super::{client, error_message, insert_row, read_rows, single_value};

const FOLLOW_TIMEOUT: Duration = leasehold_testbed::TEST_TIMEOUT;

async fn insert(server: &Server, number: i32) -> Result<(), String> {
    let client = client(server).await.map_err(|error| error_message(&error))?;
    client.batch_execute(&format!("INSERT INTO t VALUES ({number})")).await.map_err(|error| error_message(&error))
}

async fn wait_for_rows(server: &Server, expected: &[i32]) {
    eventually(FOLLOW_TIMEOUT, || async {
        let found = read_rows(server).await;
        if found.as_ref().is_ok_and(|found| found == expected) { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
}

#[tokio::test]
async fn a_standby_follows_and_takes_over() {
    let mut primary = postgres::start().await.unwrap();
    insert_row(&primary).await;
    let mut standby = Postgres::replica_of(&primary).start().await.unwrap();
    assert_eq!(read_rows(&standby).await.unwrap(), [7], "what was there before");
    insert(&primary, 8).await.unwrap();
    wait_for_rows(&standby, &[7, 8]).await;
    let refused = insert(&standby, 9).await.unwrap_err();
    assert!(refused.contains("read-only"), "{refused}");

    // The standby may restart while its primary is down.
    primary.kill().unwrap();
    standby.kill().unwrap();
    standby.restart(Data::Keep).await.unwrap();
    assert_eq!(single_value(&standby, "SELECT pg_is_in_recovery()").await, "t");
    postgres::promote(&standby).await.unwrap();
    insert(&standby, 9).await.unwrap();
    assert_eq!(read_rows(&standby).await.unwrap(), [7, 8, 9]);
    let again = postgres::promote(&standby).await;
    assert!(matches!(again, Err(Error::Refused { .. })), "{again:?}");
    // After a restart, the promoted standby is still a primary.
    standby.restart(Data::Keep).await.unwrap();
    insert(&standby, 10).await.unwrap();
}

#[tokio::test]
async fn a_partitioned_standby_lags_and_catches_up() {
    let primary = postgres::start().await.unwrap();
    insert_row(&primary).await;
    let proxy = Proxy::start(primary.addr()).await.unwrap();
    let standby = Postgres::replica_of(&primary).via(proxy.addr()).start().await.unwrap();
    proxy.refuse(true);
    proxy.cut();
    insert(&primary, 8).await.unwrap();
    assert_eq!(single_value(&standby, "SELECT count(*) FROM t").await, "1");
    proxy.refuse(false);
    wait_for_rows(&standby, &[7, 8]).await;
}

#[tokio::test]
async fn a_wiped_standby_copies_the_primary_again() {
    let primary = postgres::start().await.unwrap();
    let mut standby = Postgres::replica_of(&primary).start().await.unwrap();
    postgres::promote(&standby).await.unwrap();
    insert_row(&primary).await;
    standby.restart(Data::Wipe).await.unwrap();
    wait_for_rows(&standby, &[7]).await;
}
