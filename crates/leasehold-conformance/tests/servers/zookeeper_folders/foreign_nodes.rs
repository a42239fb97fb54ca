//! Foreign nodes in a lock's folder.

use leasehold_zookeeper::CreateMode;

use crate::zookeeper_folders::fixture::{Fixture, ProtectedResource, create_node, release, stat, until_waiting};

/// Names that other programs use, and malformed ones.
const FOREIGN_NODES: [(&str, CreateMode); 11] = [
    ("lock-0000000000", CreateMode::Ephemeral),
    ("_c_5b0bd9c1-6ff4-4f7b-9b6f-4a3b3a1b0f55-lock-", CreateMode::EphemeralSequential),
    ("stays", CreateMode::Persistent),
    ("a folder", CreateMode::Persistent),
    ("-----", CreateMode::Persistent),
    ("x-x-0-0-0000000000", CreateMode::Ephemeral),
    // Almost valid claims, which have all digits and lowercase letters.
    ("1-1-x-0-0-0", CreateMode::Ephemeral),
    ("1-+1-x-0-0-", CreateMode::EphemeralSequential),
    ("1-0000000000000000000000000000000A-x-0-0-", CreateMode::EphemeralSequential),
    ("1-0000000000000000000000000000000a-x-0-0-0000000000-", CreateMode::EphemeralSequential),
    ("0000000000000000000000000000000a-x-0-0-", CreateMode::EphemeralSequential),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_nodes_do_not_affect_the_queue() {
    let fixture = Fixture::new("/foreign-nodes").await;
    let (admin, one, two) = (fixture.admin_client().await, fixture.open_locks().await, fixture.open_locks().await);
    for path in ["/foreign-nodes", "/foreign-nodes/a"] {
        create_node(&admin, path, CreateMode::Persistent).await;
    }
    let mut foreign_nodes = Vec::new();
    for (name, mode) in FOREIGN_NODES {
        foreign_nodes.push(create_node(&admin, &format!("/foreign-nodes/a/{name}"), mode).await);
    }
    create_node(&admin, "/foreign-nodes/a/a folder/lock-0000000000", CreateMode::Persistent).await;
    let (resource, mut holder_tasks) = (ProtectedResource::default(), Vec::new());
    for number in 0..4 {
        let mutex = [&one, &two][number % 2].mutex("a");
        holder_tasks.push(resource.spawn_holder(number, false, async move { mutex.lock().await }));
        resource.until_grants(&[0]).await;
        until_waiting(&one, "a", number).await;
    }
    let view = two.inspect("a").await.expect("a view");
    assert_eq!((view.holders.len(), view.waiters.len()), (1, 3), "{view:?}");
    let mut more = Vec::new();
    for (number, holder) in holder_tasks.into_iter().enumerate() {
        resource.until_grants(&(0..=number).collect::<Vec<_>>()).await;
        // Foreign nodes come and go meanwhile.
        more.push(create_node(&admin, "/foreign-nodes/a/lock-", CreateMode::EphemeralSequential).await);
        admin.delete(&foreign_nodes.pop().expect("a foreign node"), None).await.expect("a deleted node");
        holder.release().await;
    }
    for foreign_node in foreign_nodes.iter().chain(&more) {
        assert!(stat(&admin, foreign_node).await.is_some(), "{foreign_node} was deleted");
    }
}

/// The first waiter for permits watches the whole folder: foreign nodes only wake it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_nodes_hold_no_permits() {
    let fixture = Fixture::new("/no-permits").await;
    let (admin, locks) = (fixture.admin_client().await, fixture.open_locks().await);
    let held = locks.semaphore("a", 2).acquire(2).await.expect("both permits");
    let (resource, semaphore) = (ProtectedResource::default(), locks.semaphore("a", 2));
    let waits = resource.spawn_holder(0, true, async move { semaphore.acquire(1).await });
    until_waiting(&locks, "a", 1).await;
    for _ in 0..5 {
        let foreign_node = create_node(&admin, "/no-permits/a/lock-", CreateMode::EphemeralSequential).await;
        admin.delete(&foreign_node, None).await.expect("a deleted node");
    }
    until_waiting(&locks, "a", 1).await;
    resource.until_grants(&[]).await;
    release(held).await;
    resource.until_grants(&[0]).await;
    waits.release().await;
}
