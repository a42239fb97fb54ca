//! Base paths: where the lock nodes are.

use std::time::Duration;

use leasehold::ErrorKind;
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::eventually;
use leasehold_testbed::zookeeper::ZooKeeper;
use leasehold_zookeeper::{Acls, CreateMode};

use crate::zookeeper_access::fixture::{
    acquire_and_release, admin_client, assert_error, nodes, open_error, open_locks, shared_server,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_parents_are_created_and_the_root_is_a_valid_base() {
    let server = ZooKeeper::new().start().await.expect("a server");
    let admin = admin_client(&server, None).await;
    for (path, folder) in [
        ("", "/leasehold/a"),
        ("/", "/a"),
        ("/one", "/one/a"),
        ("/one/two/three/four/", "/one/two/three/four/a"),
        ("/with%20space/%C3%A9", "/with space/é/a"),
    ] {
        let locks = open_locks(&format!("zookeeper://{}{path}", server.url())).await;
        let held = locks.mutex("a").lock().await.expect("a lock");
        assert_eq!(nodes(&admin, folder).await.len(), 1, "{path}");
        assert_eq!(locks.list("").await.expect("a list").len(), 1, "{path}");
        drop(held);
        locks.flush().await.expect("released");
        acquire_and_release(&locks).await;
    }
    assert_eq!(open_error(&format!("zookeeper://{}/zookeeper/a", server.url())).await.kind(), ErrorKind::InvalidUrl);
}

/// Locks of two bases are independent, even if one base is below the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_of_different_bases_are_independent() {
    let server = shared_server().await;
    let (one, below) = (
        open_locks(&format!("zookeeper://{}/meets", server.url())).await,
        open_locks(&format!("zookeeper://{}/meets/two", server.url())).await,
    );
    let held = one.mutex("a").lock().await.expect("a lock");
    let other = below.mutex("a").lock().await.expect("another lock");
    // The folder of one lock is the other client's base.
    let both = one.mutex("two").lock().await.expect("a third lock");
    assert_eq!(one.list("").await.expect("a list").len(), 2);
    assert_eq!(below.list("").await.expect("a list").len(), 1);
    assert_eq!(one.inspect("two").await.expect("a view").waiters.len(), 0);
    drop((held, other, both));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_base_that_cannot_be_created_is_denied() {
    let server = shared_server().await;
    let admin = admin_client(server, Some("admin:word")).await;
    for (path, acls) in [("/closed", Acls::creator_all()), ("/looked-at", Acls::anyone_read())] {
        admin.create(path, b"", &CreateMode::Persistent.with_acls(acls)).await.expect("a node");
        for base in [path.to_owned(), format!("{path}/below"), format!("{path}/far/below")] {
            let locks = open_locks(&format!("zookeeper://bob:word@{}{base}", server.url())).await;
            let error = locks.mutex("a").lock().await.expect_err("denied");
            assert_error(&error, ErrorKind::Denied, &[&base, "ACL"]);
        }
    }
    // The base is an ephemeral node, which has no children.
    let ephemeral = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
    admin.create("/passing", b"", &ephemeral).await.expect("a node");
    let locks = open_locks(&format!("zookeeper://{}/passing", server.url())).await;
    // An ephemeral node may go away, so the client retries until the wait is over.
    eventually(TEST_TIMEOUT, || async {
        let result = locks.mutex("a").timeout(Duration::from_millis(300)).lock().await;
        let error = result.expect_err("an ephemeral node has no children").to_string();
        if error.contains("ephemeral") { Ok(()) } else { Err(error) }
    })
    .await;
}
