//! A cluster replaces a dead master, and moves slots while clients use them.
#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::time::Duration;

use leasehold_testbed::{
    Data, Error, Server,
    redis::{Cluster, Reply, RespClient, slot_of},
};

/// Only a failing test waits this long.
const TEST_TIMEOUT: Duration = leasehold_testbed::TEST_TIMEOUT;

fn ok() -> Reply {
    Reply::Simple("OK".to_owned())
}

fn value(text: &str) -> Reply {
    Reply::Bulk(text.to_owned())
}

async fn client(server: &Server) -> RespClient {
    RespClient::connect(server.addr()).await.unwrap()
}

async fn command_once(server: &Server, arguments: &[&str]) -> Reply {
    client(server).await.command(arguments).await.unwrap()
}

/// The reply of a node to a request for a key of `slot` that another node has: `MOVED` or `ASK`.
fn redirect_error(kind: &str, slot: u16, node: &Server) -> Reply {
    Reply::Error(format!("{kind} {slot} 127.0.0.1:{}", node.port()))
}

#[tokio::test]
async fn a_replica_takes_over_the_slots_of_a_dead_master() {
    let mut cluster = Cluster::start(3, 1).await.unwrap();
    let hosts: Vec<_> = cluster.nodes().iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    assert_eq!((cluster.url(), hosts.len()), (format!("redis+cluster://{}", hosts.join(",")), 6));
    let slot = slot_of("kept");
    let old = cluster.owner_of(slot).await.unwrap();
    assert!(old < 3, "the masters come first");
    let mut master = client(&cluster.nodes()[old]).await;
    assert_eq!(master.command(&["SET", "kept", "v"]).await.unwrap(), ok());
    assert_eq!(master.command(&["WAIT", "1", "0"]).await.unwrap(), Reply::Integer(1));
    cluster.cut_replication(old).await.unwrap();
    assert_eq!(master.command(&["SET", "{kept}lost", "v"]).await.unwrap(), ok());
    assert_eq!(master.command(&["WAIT", "1", "50"]).await.unwrap(), Reply::Integer(0));

    cluster.kill_node(old).unwrap();
    cluster.resume_replicas().unwrap();
    let new = cluster.wait_for_failover(slot, TEST_TIMEOUT).await.unwrap();
    assert_eq!(new, old + 3, "its own replica");
    assert_eq!(cluster.owner_of(slot).await.unwrap(), new);
    assert_eq!(command_once(&cluster.nodes()[new], &["GET", "kept"]).await, value("v"));
    assert_eq!(command_once(&cluster.nodes()[new], &["GET", "{kept}lost"]).await, Reply::Nil);
    assert_eq!(command_once(&cluster.nodes()[new], &["SET", "kept", "w"]).await, ok());

    // The old master restarts as a replica of the new one.
    cluster.nodes_mut()[old].restart(Data::Keep).await.unwrap();
    cluster.wait_until_settled(TEST_TIMEOUT).await.unwrap();
    let mut replica = client(&cluster.nodes()[old]).await;
    assert_eq!(replica.command(&["READONLY"]).await.unwrap(), ok());
    assert_eq!(replica.command(&["GET", "kept"]).await.unwrap(), value("w"));
}

#[tokio::test]
async fn a_slot_moves_with_its_keys() {
    let mut cluster = Cluster::start(3, 0).await.unwrap();
    let keys: Vec<_> = (0..250).map(|n| format!("{{tag}}{n}")).collect();
    let slot = slot_of("tag");
    let from = cluster.owner_of(slot).await.unwrap();
    let to = (from + 1) % 3;
    let mut source = client(&cluster.nodes()[from]).await;
    for key in &keys {
        assert_eq!(source.command(&["SET", key, "v"]).await.unwrap(), ok());
    }
    assert_eq!(
        command_once(&cluster.nodes()[to], &["GET", &keys[0]]).await,
        redirect_error("MOVED", slot, &cluster.nodes()[from])
    );

    // During the migration the old node serves the keys that it still has, and replies ASK for
    // others.
    let migration = cluster.begin_migration(slot, to).await.unwrap();
    assert_eq!((migration.slot, migration.from, migration.to), (slot, from, to));
    assert_eq!(source.command(&["GET", &keys[0]]).await.unwrap(), value("v"));
    let asked = redirect_error("ASK", slot, &cluster.nodes()[to]);
    assert_eq!(source.command(&["GET", "{tag}new"]).await.unwrap(), asked);
    assert_eq!(cluster.move_keys(&migration).await.unwrap(), keys.len());
    assert_eq!(source.command(&["GET", &keys[0]]).await.unwrap(), asked);
    let mut target = client(&cluster.nodes()[to]).await;
    let moved = redirect_error("MOVED", slot, &cluster.nodes()[from]);
    assert_eq!(target.command(&["GET", &keys[0]]).await.unwrap(), moved);
    assert_eq!(target.command(&["ASKING"]).await.unwrap(), ok());
    assert_eq!(target.command(&["GET", &keys[0]]).await.unwrap(), value("v"));
    assert_eq!(cluster.owner_of(slot).await.unwrap(), from);

    cluster.finish_migration(migration).await.unwrap();
    assert_eq!(cluster.owner_of(slot).await.unwrap(), to);
    let moved = redirect_error("MOVED", slot, &cluster.nodes()[to]);
    assert_eq!(source.command(&["GET", &keys[0]]).await.unwrap(), moved);
    for key in &keys {
        assert_eq!(target.command(&["GET", key]).await.unwrap(), value("v"), "{key}");
    }

    // In one call: to the third node, and then to the node that already has it.
    let third = (from + 2) % 3;
    cluster.migrate_slot(slot, third).await.unwrap();
    cluster.migrate_slot(slot, third).await.unwrap();
    assert_eq!(cluster.owner_of(slot).await.unwrap(), third);
    assert_eq!(command_once(&cluster.nodes()[third], &["GET", &keys[249]]).await, value("v"));
}

#[tokio::test]
async fn slot_numbers_match_redis_and_a_replica_accepts_no_slot() {
    let mut cluster = Cluster::start(1, 1).await.unwrap();
    for key in ["", "a", "foo", "123456789", "a{b}c", "{}a", "a{}b", "a{{b}}", "a{b", "ключ", "{ключ}1"] {
        let slot = command_once(&cluster.nodes()[1], &["CLUSTER", "KEYSLOT", key]).await;
        assert_eq!(slot, Reply::Integer(slot_of(key).into()), "{key}");
    }
    let refused = cluster.migrate_slot(7, 1).await;
    assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
}
