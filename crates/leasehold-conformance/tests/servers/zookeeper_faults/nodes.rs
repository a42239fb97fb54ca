//! The lock's nodes are deleted by hand.

use leasehold::{ErrorKind, LostReason};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::eventually;

use crate::zookeeper_faults::fixture::{Fixture, LONG_TTL, spawn_loss_watcher, spawn_waiter};

/// A holder whose node is deleted learns of it long before its session could end.
#[tokio::test]
async fn a_holder_learns_that_its_node_was_deleted() {
    let fixture = Fixture::new().await;
    let guard = fixture.open_locks(LONG_TTL).await.mutex("a").lock().await.expect("a lock");
    let lost = spawn_loss_watcher(&guard);
    fixture.client.delete(&fixture.nodes("a").await[0], None).await.expect("a deleted node");
    let (_, reason) = tokio::time::timeout(TEST_TIMEOUT, lost).await.expect("in time").expect("no panic");
    assert_eq!(reason, LostReason::Revoked);
    assert!(!guard.is_held());
}

/// The holder's node is deleted while the holder is disconnected: it learns of the loss when it
/// reconnects, not only at its deadline.
#[tokio::test]
async fn a_disconnected_holder_learns_that_its_node_was_deleted_on_reconnect() {
    let fixture = Fixture::new().await;
    let (locks, proxy) = fixture.open_through_proxy(LONG_TTL).await;
    let guard = locks.mutex("a").lock().await.expect("a lock");
    let lost = spawn_loss_watcher(&guard);
    proxy.refuse(true);
    proxy.cut();
    fixture.client.delete(&fixture.nodes("a").await[0], None).await.expect("a deleted node");
    proxy.refuse(false);
    let (_, reason) = tokio::time::timeout(TEST_TIMEOUT, lost).await.expect("a loss in time").expect("no panic");
    assert_eq!(reason, LostReason::Revoked);
    assert!(!guard.is_held());
    assert_eq!(fixture.nodes("a").await.len(), 0, "the engine does not acquire the lock again");
}

/// A waiter whose node is deleted queues at the end, and gets no grant when the claim ahead leaves.
#[tokio::test]
async fn a_waiter_whose_node_is_deleted_requeues_at_the_end() {
    let fixture = Fixture::new().await;
    let guard = fixture.open_locks(LONG_TTL).await.mutex("a").lock().await.expect("a lock");
    let first = spawn_waiter(&fixture.open_locks(LONG_TTL).await, "a");
    fixture.until_nodes("a", 2).await;
    let second = spawn_waiter(&fixture.open_locks(LONG_TTL).await, "a");
    fixture.until_nodes("a", 3).await;
    let doomed = fixture.nodes("a").await[1].clone();
    fixture.client.delete(&doomed, None).await.expect("a deleted node");
    eventually(TEST_TIMEOUT, || async {
        let nodes = fixture.nodes("a").await;
        let requeued = nodes.len() == 3 && !nodes.contains(&doomed);
        if requeued { Ok(()) } else { Err(format!("not queued again: {nodes:?}")) }
    })
    .await;
    let _ = guard.release().await.expect("a release");
    let (_, next) = tokio::time::timeout(TEST_TIMEOUT, second).await.expect("in time").expect("no panic");
    assert!(!first.is_finished(), "the waiter lost its position");
    let token = next.token();
    let _ = next.release().await.expect("a release");
    let (_, last) = tokio::time::timeout(TEST_TIMEOUT, first).await.expect("in time").expect("no panic");
    assert!(last.token() > token);
}

/// The whole folder is deleted with a holder and a waiter in it.
#[tokio::test]
async fn a_deleted_folder_ends_the_hold_and_not_the_waiting() {
    let fixture = Fixture::new().await;
    let guard = fixture.open_locks(LONG_TTL).await.mutex("a").lock().await.expect("a lock");
    let waiter = spawn_waiter(&fixture.open_locks(LONG_TTL).await, "a");
    fixture.until_nodes("a", 2).await;
    let lost = spawn_loss_watcher(&guard);
    for node in fixture.nodes("a").await.iter().rev() {
        fixture.client.delete(node, None).await.expect("a deleted node");
    }
    let _ = fixture.client.delete(&fixture.folder("a"), None).await;
    let (_, reason) = tokio::time::timeout(TEST_TIMEOUT, lost).await.expect("in time").expect("no panic");
    assert_eq!(reason, LostReason::Revoked);
    let (_, next) = tokio::time::timeout(TEST_TIMEOUT, waiter).await.expect("in time").expect("no panic");
    assert!(next.token() > guard.token());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_with_ten_thousand_nodes_accepts_no_further_claim() {
    let fixture = Fixture::new().await;
    let locks = fixture.open_locks(LONG_TTL).await;
    let first = locks.mutex("a").lock().await.expect("a lock");
    fixture.add_foreign_node("a").await;
    let _ = first.release().await.expect("a release");
    let persistent = leasehold_zookeeper::CreateMode::Persistent.with_acls(leasehold_zookeeper::Acls::anyone_all());
    let numbers: Vec<u32> = (1..10_000).collect();
    for some in numbers.chunks(500) {
        let mut writer = fixture.client.new_multi_writer();
        for number in some {
            writer
                .add_create(&format!("{}/other-{number}", fixture.folder("a")), b"", &persistent)
                .expect("a valid path");
        }
        writer.commit().await.expect("new nodes");
    }
    let error = locks.mutex("a").lock().await.expect_err("the lock is full");
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert!(error.to_string().contains("10000 claims"), "{error}");
    assert_eq!(fixture.nodes("a").await.len(), 10_000, "the claim left a node");
}
