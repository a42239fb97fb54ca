//! An ensemble elects a leader; members die, restart, and are partitioned.

use std::{io, time::Duration};

use leasehold_testbed::{
    Data, eventually,
    zookeeper::{Ensemble, Role, ZooKeeper},
};
use tokio::time::Instant;

use crate::zookeeper::session::{ErrorCode, NO_NODE, NodeKind, Session};

/// Only a failing test waits this long.
const TEST_TIMEOUT: Duration = leasehold_testbed::TEST_TIMEOUT;
const LONG_SESSION: Duration = Duration::from_secs(30);

/// The time after which members give up an unresponsive one; a partitioned member serves clients
/// for this long.
const PEER_TIMEOUT: Duration = Duration::from_secs(6);

/// Creates a node through the server with this number.
async fn create_node(ensemble: &Ensemble, at: usize, path: &str) -> io::Result<Result<(), ErrorCode>> {
    let mut client = Session::open(ensemble.addr(at), LONG_SESSION).await?;
    client.create(path, "v", NodeKind::Persistent).await
}

async fn read_node(ensemble: &Ensemble, at: usize, path: &str) -> io::Result<Result<String, ErrorCode>> {
    Session::open(ensemble.addr(at), LONG_SESSION).await?.get(path).await
}

/// Waits until the server with this number has the node.
async fn wait_for_node(ensemble: &Ensemble, at: usize, path: &str) {
    eventually(TEST_TIMEOUT, || async {
        match read_node(ensemble, at, path).await {
            Ok(Ok(_)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

async fn wait_for_role(ensemble: &Ensemble, at: usize, wanted: Role) {
    eventually(TEST_TIMEOUT, || async {
        match ensemble.role(at).await {
            Ok(role) if role == wanted => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

#[tokio::test]
async fn an_ensemble_survives_its_leader_which_rejoins_with_or_without_its_data() {
    let mut ensemble = Ensemble::start(3).await.unwrap();
    let hosts: Vec<_> = (0..3).map(|at| format!("127.0.0.1:{}", ensemble.addr(at).port())).collect();
    assert_eq!(ensemble.url(), hosts.join(","));
    let old = ensemble.leader().await.unwrap();
    let others: Vec<_> = (0..3).filter(|&at| at != old).collect();
    assert_eq!(ensemble.followers().await.unwrap(), others);
    create_node(&ensemble, others[0], "/first").await.unwrap().unwrap();

    ensemble.server_mut(old).kill().unwrap();
    let new = ensemble.leader().await.unwrap();
    assert_ne!(new, old);
    ensemble.wait_until_settled(TEST_TIMEOUT).await.unwrap();
    create_node(&ensemble, new, "/second").await.unwrap().unwrap();

    for data in [Data::Keep, Data::Wipe] {
        ensemble.server_mut(old).restart(data).await.unwrap();
        ensemble.wait_until_settled(TEST_TIMEOUT).await.unwrap();
        assert_eq!(ensemble.role(old).await.unwrap(), Role::Follower);
        assert_eq!(read_node(&ensemble, old, "/first").await.unwrap().unwrap(), "v");
        assert_eq!(read_node(&ensemble, old, "/second").await.unwrap().unwrap(), "v");
    }
}

/// A paused leader keeps its connections open, and the others elect another leader all the same.
#[tokio::test]
async fn a_paused_leader_is_replaced_and_rejoins() {
    let mut ensemble = Ensemble::start_with(3, &ZooKeeper::new().peer_timeout(PEER_TIMEOUT)).await.unwrap();
    let old = ensemble.leader().await.unwrap();
    ensemble.server_mut(old).pause().unwrap();
    assert_ne!(ensemble.leader().await.unwrap(), old);
    ensemble.server_mut(old).resume().unwrap();
    wait_for_role(&ensemble, old, Role::Follower).await;
}

#[tokio::test]
async fn a_partitioned_follower_serves_stale_reads_for_a_while() {
    let mut ensemble = Ensemble::start_with(3, &ZooKeeper::new().peer_timeout(PEER_TIMEOUT)).await.unwrap();
    let leader = ensemble.leader().await.unwrap();
    let follower = ensemble.followers().await.unwrap()[0];
    create_node(&ensemble, leader, "/before").await.unwrap().unwrap();
    wait_for_node(&ensemble, follower, "/before").await;

    let mut client = Session::open(ensemble.addr(follower), LONG_SESSION).await.unwrap();
    ensemble.cut_off(follower);
    let cut = Instant::now();
    create_node(&ensemble, leader, "/behind-its-back").await.unwrap().unwrap();
    // The partitioned follower still serves its clients, with outdated data.
    assert_eq!(client.get("/before").await.unwrap().unwrap(), "v");
    assert_eq!(client.get("/behind-its-back").await.unwrap().unwrap_err(), NO_NODE);
    let answered = loop {
        match client.get("/behind-its-back").await {
            Ok(answer) => assert_eq!(answer.unwrap_err(), NO_NODE),
            Err(_) => break cut.elapsed(),
        }
    };
    assert!(answered > PEER_TIMEOUT / 2, "it stopped after {answered:?}");
    wait_for_role(&ensemble, follower, Role::Looking).await;
    assert!(read_node(&ensemble, follower, "/before").await.is_err());
    assert_eq!(ensemble.leader().await.unwrap(), leader, "the others go on");

    ensemble.heal(follower);
    ensemble.wait_until_settled(TEST_TIMEOUT).await.unwrap();
    assert_eq!(read_node(&ensemble, follower, "/behind-its-back").await.unwrap().unwrap(), "v");
}

#[tokio::test]
async fn a_partitioned_leader_is_replaced_and_loses_its_unacknowledged_writes() {
    let mut ensemble = Ensemble::start_with(3, &ZooKeeper::new().peer_timeout(PEER_TIMEOUT)).await.unwrap();
    let old = ensemble.leader().await.unwrap();
    create_node(&ensemble, old, "/before").await.unwrap().unwrap();
    let mut reader = Session::open(ensemble.addr(old), LONG_SESSION).await.unwrap();
    let mut writer = Session::open(ensemble.addr(old), LONG_SESSION).await.unwrap();
    ensemble.cut_off(old);
    // The partitioned leader receives the write, but cannot acknowledge it.
    let written = writer.create("/lost", "v", NodeKind::Persistent);
    let read = reader.get("/before");
    let (written, read) = tokio::join!(written, read);
    assert!(written.is_err(), "{written:?}");
    assert_eq!(read.unwrap().unwrap(), "v");

    let new = ensemble.leader().await.unwrap();
    assert_ne!(new, old);
    ensemble.wait_until_settled(TEST_TIMEOUT).await.unwrap();
    create_node(&ensemble, new, "/after").await.unwrap().unwrap();
    wait_for_role(&ensemble, old, Role::Looking).await;

    ensemble.heal(old);
    ensemble.wait_until_settled(TEST_TIMEOUT).await.unwrap();
    let mut client = Session::open(ensemble.addr(old), LONG_SESSION).await.unwrap();
    assert_eq!(client.get("/after").await.unwrap().unwrap(), "v");
    assert_eq!(client.get("/lost").await.unwrap().unwrap_err(), NO_NODE);
}

/// A partition that heals before any member has detected it loses nothing. A delay between the
/// leader and its followers slows writes, and no reads.
#[tokio::test]
async fn a_short_partition_heals_and_a_delay_slows_writes() {
    let mut ensemble = Ensemble::start(3).await.unwrap();
    for at in 0..3 {
        ensemble.cut_off(at);
        ensemble.heal(at);
        ensemble.wait_until_settled(TEST_TIMEOUT).await.unwrap();
        create_node(&ensemble, at, &format!("/{at}")).await.unwrap().unwrap();
    }
    let leader = ensemble.leader().await.unwrap();
    let delay = Duration::from_millis(100);
    for at in ensemble.followers().await.unwrap() {
        ensemble.delay(leader, at, delay);
    }
    let mut client = Session::open(ensemble.addr(leader), LONG_SESSION).await.unwrap();
    let started = Instant::now();
    client.create("/far", "v", NodeKind::Persistent).await.unwrap().unwrap();
    assert!(started.elapsed() >= delay * 2, "proposal and vote took {:?}", started.elapsed());
    // A read is answered by one server alone, so the delay does not affect it.
    let client = tokio::sync::Mutex::new(client);
    eventually(TEST_TIMEOUT, || async {
        let started = Instant::now();
        assert_eq!(client.lock().await.get("/far").await.unwrap().unwrap(), "v");
        let taken = started.elapsed();
        if taken < delay { Ok(()) } else { Err(format!("it took {taken:?}")) }
    })
    .await;
}
