//! Replicas follow their master, and Sentinels promote one of them when it dies.
#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::time::Duration;

use leasehold_testbed::{
    Data, Server, eventually,
    redis::{self, Redis, Reply, RespClient, SentinelSet},
};

/// Only a failing test waits this long.
const TEST_TIMEOUT: Duration = leasehold_testbed::TEST_TIMEOUT;
const PASSWORD: &str = "s3cret";

fn ok() -> Reply {
    Reply::Simple("OK".to_owned())
}

fn value(text: &str) -> Reply {
    Reply::Bulk(text.to_owned())
}

async fn client(server: &Server) -> RespClient {
    RespClient::connect(server.addr()).await.unwrap()
}

/// Waits until `count` replicas have all of this client's writes, at most `milliseconds`. Returns
/// how many have them.
async fn wait_for_replicas(client: &mut RespClient, count: &str, milliseconds: &str) -> Reply {
    client.command(&["WAIT", count, milliseconds]).await.unwrap()
}

#[tokio::test]
async fn a_replica_follows_from_the_start() {
    let master = redis::start().await.unwrap();
    assert_eq!(client(&master).await.command(&["SET", "before", "v"]).await.unwrap(), ok());
    let replica = redis::replica_of(&master).start().await.unwrap();
    assert_eq!(client(&replica).await.command(&["GET", "before"]).await.unwrap(), value("v"));
    let refused = client(&replica).await.command(&["SET", "k", "v"]).await.unwrap();
    assert!(matches!(&refused, Reply::Error(text) if text.starts_with("READONLY")), "{refused:?}");
}

#[tokio::test]
async fn a_replica_authenticates_to_its_master() {
    let master = Redis::new().password(PASSWORD).start().await.unwrap();
    assert_eq!(master.url(), format!("redis://:{PASSWORD}@127.0.0.1:{}/", master.port()));
    let replica = redis::replica_of(&master).password(PASSWORD).start().await.unwrap();
    let mut client = client(&replica).await;
    let refused = client.command(&["GET", "k"]).await.unwrap();
    assert!(matches!(&refused, Reply::Error(text) if text.starts_with("NOAUTH")), "{refused:?}");
    assert_eq!(client.command(&["AUTH", PASSWORD]).await.unwrap(), ok());
    assert_eq!(client.command(&["GET", "k"]).await.unwrap(), Reply::Nil);
}

/// Pausing the replicas alone loses no write, so [`SentinelSet::cut_replication`] also makes the
/// master drop its connections to them.
#[tokio::test]
async fn a_pause_alone_loses_no_write() {
    let mut master = redis::start().await.unwrap();
    let mut replica = redis::replica_of(&master).start().await.unwrap();
    let mut writer = client(&master).await;
    assert_eq!(writer.command(&["SET", "first", "v"]).await.unwrap(), ok());
    assert_eq!(wait_for_replicas(&mut writer, "1", "0").await, Reply::Integer(1));
    replica.pause().unwrap();
    assert_eq!(writer.command(&["SET", "written", "v"]).await.unwrap(), ok());
    master.kill().unwrap();
    replica.resume().unwrap();
    eventually(TEST_TIMEOUT, || async {
        match client(&replica).await.command(&["GET", "written"]).await.unwrap() {
            reply if reply == value("v") => Ok(()),
            reply => Err(format!("{reply:?}")),
        }
    })
    .await;
}

#[tokio::test]
async fn sentinels_promote_a_replica_of_a_dead_master() {
    let mut set = SentinelSet::start_with_down_after(2, &Redis::new(), Duration::from_secs(5)).await.unwrap();
    let ports: Vec<_> = set.sentinel_addrs().iter().map(|addr| format!("127.0.0.1:{}", addr.port())).collect();
    assert_eq!(set.url(), format!("redis+sentinel://{}/mymaster", ports.join(",")));
    assert_eq!((set.nodes().len(), ports.len()), (3, 3));
    let mut before = client(&set.nodes()[0]).await;
    assert_eq!(before.command(&["SET", "kept", "v"]).await.unwrap(), ok());
    assert_eq!(wait_for_replicas(&mut before, "2", "0").await, Reply::Integer(2));

    assert_eq!(set.kill_master().await.unwrap(), 0);
    let new = set.wait_for_failover(TEST_TIMEOUT).await.unwrap();
    assert_ne!(new, 0);
    assert_eq!(set.master().await.unwrap(), new);
    let mut after = client(&set.nodes()[new]).await;
    assert_eq!(after.command(&["GET", "kept"]).await.unwrap(), value("v"));
    assert_eq!(after.command(&["SET", "more", "v"]).await.unwrap(), ok());

    // The old master restarts as a replica of the new one, and refuses writes.
    set.nodes_mut()[0].restart(Data::Keep).await.unwrap();
    set.wait_until_settled(TEST_TIMEOUT).await.unwrap();
    assert_eq!(set.master().await.unwrap(), new);
    assert_eq!(client(&set.nodes()[0]).await.command(&["GET", "more"]).await.unwrap(), value("v"));
}

#[tokio::test]
async fn writes_after_cut_replication_are_lost_in_the_failover() {
    let each = Redis::new().password(PASSWORD);
    let mut set = SentinelSet::start_with_down_after(1, &each, Duration::from_secs(5)).await.unwrap();
    assert!(set.url().starts_with(&format!("redis+sentinel://:{PASSWORD}@127.0.0.1:")));
    let mut master = client(&set.nodes()[0]).await;
    assert_eq!(master.command(&["AUTH", PASSWORD]).await.unwrap(), ok());
    assert_eq!(master.command(&["SET", "kept", "v"]).await.unwrap(), ok());
    assert_eq!(wait_for_replicas(&mut master, "1", "0").await, Reply::Integer(1));
    set.cut_replication().await.unwrap();
    assert_eq!(master.command(&["SET", "lost", "v"]).await.unwrap(), ok());
    assert_eq!(wait_for_replicas(&mut master, "1", "50").await, Reply::Integer(0));
    assert_eq!(set.kill_master().await.unwrap(), 0);
    set.resume_replicas().unwrap();

    assert_eq!(set.wait_for_failover(TEST_TIMEOUT).await.unwrap(), 1);
    let mut new = client(&set.nodes()[1]).await;
    assert_eq!(new.command(&["AUTH", PASSWORD]).await.unwrap(), ok());
    assert_eq!(new.command(&["GET", "kept"]).await.unwrap(), value("v"));
    assert_eq!(new.command(&["GET", "lost"]).await.unwrap(), Reply::Nil);
}
