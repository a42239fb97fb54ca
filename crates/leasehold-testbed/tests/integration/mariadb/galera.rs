//! Members of a Galera cluster agree, and one that is left alone refuses.

use std::time::Duration;

use leasehold_testbed::{Data, Error, Server, eventually, mariadb::Galera};
use mysql_async::prelude::Queryable;

use super::{cell, client};

const BOUND: Duration = leasehold_testbed::BOUND;

async fn write(server: &Server, number: u32) -> mysql_async::Result<()> {
    let mut client = client(server).await?;
    client.query_drop("CREATE TABLE IF NOT EXISTS t (n INT PRIMARY KEY)").await?;
    client.query_drop(format!("INSERT INTO t VALUES ({number})")).await
}

/// What is there when all that was committed before has come.
async fn numbers(server: &Server) -> mysql_async::Result<Vec<u32>> {
    let mut client = client(server).await?;
    client.query_drop("SET SESSION wsrep_sync_wait = 1").await?;
    client.query("SELECT n FROM t ORDER BY n").await
}

#[tokio::test]
async fn one_alone_is_a_cluster() {
    let mut galera = Galera::start(1).await.unwrap();
    galera.check_size(0, 1).await.unwrap();
    assert_eq!(cell(galera.server(0), "SELECT @@wsrep_on").await, "1");
    write(galera.server(0), 1).await.unwrap();
    galera.server_mut(0).kill().unwrap();
    galera.server_mut(0).restart(Data::Keep).await.unwrap();
    assert_eq!(numbers(galera.server(0)).await.unwrap(), [1]);
}

#[tokio::test]
async fn three_share_what_is_written_to_any_and_do_without_one() {
    let begin = tokio::time::Instant::now();
    let mut galera = Galera::start(3).await.unwrap();
    println!("three take {:?}", begin.elapsed());
    for at in 0..3 {
        eventually(BOUND, || galera.check_size(at, 3)).await;
        write(galera.server(at), at.try_into().unwrap()).await.unwrap();
    }
    for server in galera.servers() {
        assert_eq!(numbers(server).await.unwrap(), [0, 1, 2]);
    }
    // Also without the one that was first, and when it is back.
    galera.server_mut(0).kill().unwrap();
    eventually(BOUND, || galera.check_size(1, 2)).await;
    write(galera.server(1), 3).await.unwrap();
    galera.server_mut(0).restart(Data::Keep).await.unwrap();
    assert_eq!(numbers(galera.server(0)).await.unwrap(), [0, 1, 2, 3]);
    galera.server_mut(0).kill().unwrap();
    galera.server_mut(0).restart(Data::Wipe).await.unwrap();
    assert_eq!(numbers(galera.server(0)).await.unwrap(), [0, 1, 2, 3]);
}

#[tokio::test]
async fn one_that_is_cut_off_refuses_its_clients() {
    let galera = Galera::start(3).await.unwrap();
    write(galera.server(0), 0).await.unwrap();
    galera.cut_off(2).await.unwrap();
    eventually(BOUND, || galera.check_size(0, 2)).await;
    write(galera.server(0), 1).await.unwrap();
    eventually(BOUND, || async {
        match leasehold_testbed::mariadb::ask(galera.server(2), "SELECT * FROM t").await {
            Err(Error::Refused { answer, .. }) if answer.contains("WSREP has not yet prepared") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    galera.heal(2).await.unwrap();
    eventually(BOUND, || galera.check_size(2, 3)).await;
    assert_eq!(numbers(galera.server(2)).await.unwrap(), [0, 1]);
}
