//! Data that lies in ZooKeeper itself, guarded by the lock's node: the resource's side of fencing, in one transaction.

use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_zookeeper::{Acls, CreateMode, Error, MultiWriteError};

use crate::zookeeper_faults::fixture::{Fixture, LONG_TTL, spawn_waiter};

/// The node of whoever has this token: its number is that of the transaction that made the node.
async fn node_of(site: &Fixture, name: &str, token: leasehold::Token) -> String {
    for node in site.nodes(name).await {
        let stat = site.client.check_stat(&node).await.expect("an answer");
        if stat.is_some_and(|stat| stat.czxid.cast_unsigned() == token.0) {
            return node;
        }
    }
    panic!("no node has token {token}");
}

/// Writes `data` if the lock's node is still there.
async fn guarded_write(site: &Fixture, node: &str, path: &str, data: &[u8]) -> Result<(), MultiWriteError> {
    let mut all = site.client.new_multi_writer();
    all.add_check_version(node, -1).expect("a path");
    all.add_set_data(path, data, None).expect("a path");
    all.commit().await.map(|_| ())
}

/// A holder that has been replaced cannot write any more, however late it comes and whatever it believes.
#[tokio::test]
async fn a_write_of_a_replaced_holder_is_refused() {
    let site = Fixture::new().await;
    let (locks, proxy) = site.open_through_proxy(LONG_TTL).await;
    let guard = locks.mutex("a").lock().await.expect("a lock");
    let old = node_of(&site, "a", guard.token()).await;
    let path = site.folder("data");
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    site.client.create(&path, b"", &options).await.expect("a node for the data");
    guarded_write(&site, &old, &path, b"first").await.expect("the holder writes");
    let other = site.open_locks(LONG_TTL).await;
    let waiter = spawn_waiter(&other, "a");
    // It is put out, and does not hear of it.
    proxy.freeze(true);
    let claim = other.inspect("a").await.expect("a view").holders[0].claim;
    other.force_release("a", claim).await.expect("an eviction");
    let (_, next) = tokio::time::timeout(TEST_TIMEOUT, waiter).await.expect("in time").expect("a contender");
    let new = node_of(&site, "a", next.token()).await;
    guarded_write(&site, &new, &path, b"second").await.expect("the next holder writes");
    let refused = guarded_write(&site, &old, &path, b"too late").await.expect_err("a refused write");
    assert!(matches!(refused, MultiWriteError::OperationFailed { index: 0, source: Error::NoNode }), "{refused}");
    assert_eq!(site.client.get_data(&path).await.expect("the data").0, b"second");
}
