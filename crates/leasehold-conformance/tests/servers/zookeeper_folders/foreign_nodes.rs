//! Nodes in a lock's folder that are not ours.

use leasehold_zookeeper::CreateMode;

use crate::zookeeper_folders::fixture::{Fixture, ProtectedResource, create_node, release, stat, until_waiting};

/// As others name theirs, and as nobody should name his.
const FOREIGN_NODES: [(&str, CreateMode); 10] = [
    ("lock-0000000000", CreateMode::Ephemeral),
    ("_c_5b0bd9c1-6ff4-4f7b-9b6f-4a3b3a1b0f55-lock-", CreateMode::EphemeralSequential),
    ("stays", CreateMode::Persistent),
    ("a folder", CreateMode::Persistent),
    ("-----", CreateMode::Persistent),
    ("x-x-0-0-0000000000", CreateMode::Ephemeral),
    // Almost ours: but we write all digits, and small letters.
    ("1-x-0-0-0", CreateMode::Ephemeral),
    ("+1-x-0-0-", CreateMode::EphemeralSequential),
    ("0000000000000000000000000000000A-x-0-0-", CreateMode::EphemeralSequential),
    ("0000000000000000000000000000000a-x-0-0-0000000000-", CreateMode::EphemeralSequential),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_nodes_do_not_affect_the_queue() {
    let site = Fixture::new("/strangers").await;
    let (hand, one, two) = (site.admin_client().await, site.open_locks().await, site.open_locks().await);
    for path in ["/strangers", "/strangers/a"] {
        create_node(&hand, path, CreateMode::Persistent).await;
    }
    let mut strangers = Vec::new();
    for (name, mode) in FOREIGN_NODES {
        strangers.push(create_node(&hand, &format!("/strangers/a/{name}"), mode).await);
    }
    create_node(&hand, "/strangers/a/a folder/lock-0000000000", CreateMode::Persistent).await;
    let (room, mut visitors) = (ProtectedResource::default(), Vec::new());
    for number in 0..4 {
        let mutex = [&one, &two][number % 2].mutex("a");
        visitors.push(room.spawn_holder(number, false, async move { mutex.lock().await }));
        room.until_grants(&[0]).await;
        until_waiting(&one, "a", number).await;
    }
    let view = two.inspect("a").await.expect("a view");
    assert_eq!((view.holders.len(), view.waiters.len()), (1, 3), "{view:?}");
    let mut more = Vec::new();
    for (number, visitor) in visitors.into_iter().enumerate() {
        room.until_grants(&(0..=number).collect::<Vec<_>>()).await;
        // They come and go meanwhile.
        more.push(create_node(&hand, "/strangers/a/lock-", CreateMode::EphemeralSequential).await);
        hand.delete(&strangers.pop().expect("a stranger"), None).await.expect("a stranger goes");
        visitor.release().await;
    }
    for stranger in strangers.iter().chain(&more) {
        assert!(stat(&hand, stranger).await.is_some(), "{stranger} is none of our business");
    }
}

/// The first who waits for permits looks at the whole folder: strangers wake it, and that is all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_nodes_hold_no_permits() {
    let site = Fixture::new("/no-permits").await;
    let (hand, locks) = (site.admin_client().await, site.open_locks().await);
    let held = locks.semaphore("a", 2).acquire(2).await.expect("both permits");
    let (room, semaphore) = (ProtectedResource::default(), locks.semaphore("a", 2));
    let waits = room.spawn_holder(0, true, async move { semaphore.acquire(1).await });
    until_waiting(&locks, "a", 1).await;
    for _ in 0..5 {
        let stranger = create_node(&hand, "/no-permits/a/lock-", CreateMode::EphemeralSequential).await;
        hand.delete(&stranger, None).await.expect("it goes");
    }
    until_waiting(&locks, "a", 1).await;
    room.until_grants(&[]).await;
    release(held).await;
    room.until_grants(&[0]).await;
    waits.release().await;
}
