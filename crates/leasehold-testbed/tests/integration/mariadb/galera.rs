//! The members of a Galera cluster replicate every write; a partitioned member refuses its clients.

use std::time::Duration;

use leasehold_testbed::{Data, Error, Server, eventually, mariadb::GaleraCluster};
use mysql_async::prelude::Queryable;

use super::{client, single_value};

const TEST_TIMEOUT: Duration = leasehold_testbed::TEST_TIMEOUT;

async fn insert(server: &Server, number: u32) -> mysql_async::Result<()> {
    let mut client = client(server).await?;
    client.query_drop("CREATE TABLE IF NOT EXISTS t (n INT PRIMARY KEY)").await?;
    client.query_drop(format!("INSERT INTO t VALUES ({number})")).await
}

/// The rows of the table, once every write committed before on any member has arrived.
async fn read_rows(server: &Server) -> mysql_async::Result<Vec<u32>> {
    let mut client = client(server).await?;
    client.query_drop("SET SESSION wsrep_sync_wait = 1").await?;
    client.query("SELECT n FROM t ORDER BY n").await
}

#[tokio::test]
async fn a_single_server_forms_a_cluster() {
    let mut galera = GaleraCluster::start(1).await.unwrap();
    galera.check_size(0, 1).await.unwrap();
    assert_eq!(single_value(galera.server(0), "SELECT @@wsrep_on").await, "1");
    insert(galera.server(0), 1).await.unwrap();
    galera.server_mut(0).kill().unwrap();
    galera.server_mut(0).restart(Data::Keep).await.unwrap();
    assert_eq!(read_rows(galera.server(0)).await.unwrap(), [1]);
}

#[tokio::test]
async fn three_members_replicate_every_write_and_survive_the_loss_of_one() {
    let begin = tokio::time::Instant::now();
    let mut galera = GaleraCluster::start(3).await.unwrap();
    println!("three take {:?}", begin.elapsed());
    for at in 0..3 {
        eventually(TEST_TIMEOUT, || galera.check_size(at, 3)).await;
        insert(galera.server(at), at.try_into().unwrap()).await.unwrap();
    }
    for server in galera.servers() {
        assert_eq!(read_rows(server).await.unwrap(), [0, 1, 2]);
    }
    // Also without the member that was started first, and after it has rejoined.
    galera.server_mut(0).kill().unwrap();
    eventually(TEST_TIMEOUT, || galera.check_size(1, 2)).await;
    insert(galera.server(1), 3).await.unwrap();
    galera.server_mut(0).restart(Data::Keep).await.unwrap();
    assert_eq!(read_rows(galera.server(0)).await.unwrap(), [0, 1, 2, 3]);
    galera.server_mut(0).kill().unwrap();
    galera.server_mut(0).restart(Data::Wipe).await.unwrap();
    assert_eq!(read_rows(galera.server(0)).await.unwrap(), [0, 1, 2, 3]);
}

#[tokio::test]
async fn a_partitioned_member_refuses_its_clients() {
    let galera = GaleraCluster::start(3).await.unwrap();
    insert(galera.server(0), 0).await.unwrap();
    galera.cut_off(2).await.unwrap();
    eventually(TEST_TIMEOUT, || galera.check_size(0, 2)).await;
    insert(galera.server(0), 1).await.unwrap();
    eventually(TEST_TIMEOUT, || async {
        match leasehold_testbed::mariadb::query(galera.server(2), "SELECT * FROM t").await {
            Err(Error::Refused { answer, .. }) if answer.contains("WSREP has not yet prepared") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    galera.heal(2).await.unwrap();
    eventually(TEST_TIMEOUT, || galera.check_size(2, 3)).await;
    assert_eq!(read_rows(galera.server(2)).await.unwrap(), [0, 1]);
}
