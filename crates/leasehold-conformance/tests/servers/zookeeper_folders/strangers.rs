//! Nodes in a lock's folder that are not ours.

use leasehold_zookeeper::CreateMode;

use crate::zookeeper_folders::site::{Room, Site, give_back, make, stat, until_waiting};

/// As others name theirs, and as nobody should name his.
const STRANGERS: [(&str, CreateMode); 10] = [
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
async fn strangers_neither_block_nor_confuse() {
    let site = Site::new("/strangers").await;
    let (hand, one, two) = (site.hand().await, site.locks().await, site.locks().await);
    for path in ["/strangers", "/strangers/a"] {
        make(&hand, path, CreateMode::Persistent).await;
    }
    let mut strangers = Vec::new();
    for (name, mode) in STRANGERS {
        strangers.push(make(&hand, &format!("/strangers/a/{name}"), mode).await);
    }
    make(&hand, "/strangers/a/a folder/lock-0000000000", CreateMode::Persistent).await;
    let (room, mut visitors) = (Room::default(), Vec::new());
    for number in 0..4 {
        let mutex = [&one, &two][number % 2].mutex("a");
        visitors.push(room.visit(number, false, async move { mutex.lock().await }));
        room.until(&[0]).await;
        until_waiting(&one, "a", number).await;
    }
    let view = two.inspect("a").await.expect("a view");
    assert_eq!((view.holders.len(), view.waiters.len()), (1, 3), "{view:?}");
    let mut more = Vec::new();
    for (number, visitor) in visitors.into_iter().enumerate() {
        room.until(&(0..=number).collect::<Vec<_>>()).await;
        // They come and go meanwhile.
        more.push(make(&hand, "/strangers/a/lock-", CreateMode::EphemeralSequential).await);
        hand.delete(&strangers.pop().expect("a stranger"), None).await.expect("a stranger goes");
        visitor.goes().await;
    }
    for stranger in strangers.iter().chain(&more) {
        assert!(stat(&hand, stranger).await.is_some(), "{stranger} is none of our business");
    }
}

/// The first who waits for permits looks at the whole folder: strangers wake it, and that is all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_have_no_permits() {
    let site = Site::new("/no-permits").await;
    let (hand, locks) = (site.hand().await, site.locks().await);
    let held = locks.semaphore("a", 2).acquire(2).await.expect("both permits");
    let (room, semaphore) = (Room::default(), locks.semaphore("a", 2));
    let waits = room.visit(0, true, async move { semaphore.acquire(1).await });
    until_waiting(&locks, "a", 1).await;
    for _ in 0..5 {
        let stranger = make(&hand, "/no-permits/a/lock-", CreateMode::EphemeralSequential).await;
        hand.delete(&stranger, None).await.expect("it goes");
    }
    until_waiting(&locks, "a", 1).await;
    room.until(&[]).await;
    give_back(held).await;
    room.until(&[0]).await;
    waits.goes().await;
}
