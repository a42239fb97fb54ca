//! Data in ZooKeeper itself, fenced by the lock's node in one transaction.

use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_zookeeper::{Acls, CreateMode, Error, MultiWriteError};

use crate::zookeeper_faults::fixture::{Fixture, LONG_TTL, spawn_waiter};

/// The node of the claim with this token: the token is the node's creation transaction.
async fn node_of(fixture: &Fixture, name: &str, token: leasehold::Token) -> String {
    for node in fixture.nodes(name).await {
        let stat = fixture.client.check_stat(&node).await.expect("an answer");
        if stat.is_some_and(|stat| stat.czxid.cast_unsigned() == token.0) {
            return node;
        }
    }
    panic!("no node has token {token}");
}

/// Writes `data` if the lock's node still exists.
async fn guarded_write(fixture: &Fixture, node: &str, path: &str, data: &[u8]) -> Result<(), MultiWriteError> {
    let mut all = fixture.client.new_multi_writer();
    all.add_check_version(node, -1).expect("a path");
    all.add_set_data(path, data, None).expect("a path");
    all.commit().await.map(|_| ())
}

/// A replaced holder cannot write any more, however late its request arrives.
#[tokio::test]
async fn a_write_of_a_replaced_holder_is_refused() {
    let fixture = Fixture::new().await;
    let (locks, proxy) = fixture.open_through_proxy(LONG_TTL).await;
    let guard = locks.mutex("a").lock().await.expect("a lock");
    let old = node_of(&fixture, "a", guard.token()).await;
    let path = fixture.folder("data");
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    fixture.client.create(&path, b"", &options).await.expect("a data node");
    guarded_write(&fixture, &old, &path, b"first").await.expect("the holder writes");
    let other = fixture.open_locks(LONG_TTL).await;
    let waiter = spawn_waiter(&other, "a");
    // The holder is force-released and does not learn of it.
    proxy.freeze(true);
    let claim = other.inspect("a").await.expect("a view").holders[0].claim;
    other.force_release("a", claim).await.expect("a force release");
    let (_, next) = tokio::time::timeout(TEST_TIMEOUT, waiter).await.expect("in time").expect("no panic");
    let new = node_of(&fixture, "a", next.token()).await;
    guarded_write(&fixture, &new, &path, b"second").await.expect("the next holder writes");
    let refused = guarded_write(&fixture, &old, &path, b"too late").await.expect_err("a refused write");
    assert!(matches!(refused, MultiWriteError::OperationFailed { index: 0, source: Error::NoNode }), "{refused}");
    assert_eq!(fixture.client.get_data(&path).await.expect("the data").0, b"second");
}
