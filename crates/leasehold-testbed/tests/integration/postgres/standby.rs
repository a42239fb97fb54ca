//! A standby follows, refuses to write, and takes over.

use std::time::Duration;

use leasehold_testbed::{
    Data, Error, Proxy, Server, eventually,
    postgres::{self, Postgres},
};

use super::{cell, client, fill, numbers, words};

const BOUND: Duration = leasehold_testbed::BOUND;

async fn write(server: &Server, number: i32) -> Result<(), String> {
    let client = client(server).await.map_err(|error| words(&error))?;
    client.batch_execute(&format!("INSERT INTO t VALUES ({number})")).await.map_err(|error| words(&error))
}

async fn comes_to_have(server: &Server, expected: &[i32]) {
    eventually(BOUND, || async {
        let found = numbers(server).await;
        if found.as_ref().is_ok_and(|found| found == expected) { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
}

#[tokio::test]
async fn a_standby_follows_and_takes_over() {
    let mut primary = postgres::start().await.unwrap();
    fill(&primary).await;
    let mut standby = Postgres::replica_of(&primary).start().await.unwrap();
    assert_eq!(numbers(&standby).await.unwrap(), [7], "what was there before");
    write(&primary, 8).await.unwrap();
    comes_to_have(&standby, &[7, 8]).await;
    let refused = write(&standby, 9).await.unwrap_err();
    assert!(refused.contains("read-only"), "{refused}");

    // It may come back while there is nobody to follow.
    primary.kill().unwrap();
    standby.kill().unwrap();
    standby.restart(Data::Keep).await.unwrap();
    assert_eq!(cell(&standby, "SELECT pg_is_in_recovery()").await, "t");
    postgres::promote(&standby).await.unwrap();
    write(&standby, 9).await.unwrap();
    assert_eq!(numbers(&standby).await.unwrap(), [7, 8, 9]);
    let again = postgres::promote(&standby).await;
    assert!(matches!(again, Err(Error::Refused { .. })), "{again:?}");
    // And it stays what it has become.
    standby.restart(Data::Keep).await.unwrap();
    write(&standby, 10).await.unwrap();
}

#[tokio::test]
async fn a_standby_that_is_cut_off_lags_and_catches_up() {
    let primary = postgres::start().await.unwrap();
    fill(&primary).await;
    let proxy = Proxy::start(primary.addr()).await.unwrap();
    let standby = Postgres::replica_of(&primary).through(proxy.addr()).start().await.unwrap();
    proxy.refuse(true);
    proxy.cut();
    write(&primary, 8).await.unwrap();
    assert_eq!(cell(&standby, "SELECT count(*) FROM t").await, "1");
    proxy.refuse(false);
    comes_to_have(&standby, &[7, 8]).await;
}

#[tokio::test]
async fn a_wiped_standby_copies_anew() {
    let primary = postgres::start().await.unwrap();
    let mut standby = Postgres::replica_of(&primary).start().await.unwrap();
    postgres::promote(&standby).await.unwrap();
    fill(&primary).await;
    standby.restart(Data::Wipe).await.unwrap();
    comes_to_have(&standby, &[7]).await;
}
