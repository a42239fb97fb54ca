//! The server numbers the claims of a folder with 31 bits, and one day it has used them up. Its book says that the count wraps
//! around then. What servers since 3.6 do is worse: they give the last number again, and again, and now and then to somebody who
//! comes while another is being served a negative one. Nobody can tell by these numbers who came first.

use std::sync::Arc;

use leasehold::{Locks, Owner};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_zookeeper::{Acls, Client, CreateMode};
use tokio::task::JoinSet;

use crate::zookeeper_folders::fixture::{
    HolderTask, ProtectedResource, numbers, release, stat, until_gone, until_waiting, within_time,
};
use crate::zookeeper_folders::snapshot::fixture_with_sequence;

/// Somebody asks for the mutex, and waits behind all who asked before.
async fn enqueue(room: &ProtectedResource, locks: &Locks, number: usize, waiting: usize) -> HolderTask {
    let mutex = locks.mutex("a");
    let visitor = room.spawn_holder(number, false, async move { mutex.lock().await });
    if waiting == 0 {
        room.until_grants(&[number]).await;
    }
    until_waiting(locks, "a", waiting).await;
    visitor
}

/// Who holds by the textbook: the first when the numbers are sorted as text. Several if they have the same.
async fn holders_by_sequence(hand: &Client, folder: &str) -> Vec<String> {
    let nodes = hand.list_children(folder).await.expect("a list");
    let text = |node: &String| node.splitn(5, '-').last().map(str::to_owned);
    let first = nodes.iter().map(text).min().expect("a node");
    nodes.into_iter().filter(|node| text(node) == first).collect()
}

/// The node that the first transaction of all has made.
async fn oldest(hand: &Client, folder: &str) -> String {
    let mut found = Vec::new();
    for node in hand.list_children(folder).await.expect("a list") {
        let there = stat(hand, &format!("{folder}/{node}")).await.expect("a node");
        found.push((there.czxid, node));
    }
    found.into_iter().min().expect("a node").1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_are_served_in_order_past_the_last_number() {
    let site = fixture_with_sequence("/order").await;
    let (hand, folder) = (site.admin_client().await, site.folder("a"));
    let clients = [site.open_locks().await, site.open_locks().await, site.open_locks().await];
    let (room, mut visitors) = (ProtectedResource::default(), Vec::new());
    for number in 0..6 {
        visitors.push(enqueue(&room, &clients[number % 3], number, number).await);
    }
    let given = numbers(&hand, &folder).await;
    let late = given.iter().filter(|number| !(0..i32::MAX).contains(*number)).count();
    assert_eq!((given.contains(&(i32::MAX - 2)), late), (true, 4), "{given:?}");

    let mut served: Vec<usize> = vec![0];
    room.until_grants(&served).await;
    for (number, visitor) in visitors.into_iter().enumerate() {
        if number == 3 {
            let holds = oldest(&hand, &folder).await;
            assert_ne!(
                holders_by_sequence(&hand, &folder).await,
                [holds],
                "the textbook would do, and this test shows nothing"
            );
        }
        visitor.release().await;
        if number < 5 {
            served.push(number + 1);
        }
        room.until_grants(&served).await;
    }
}

/// Who comes when all numbers are used up waits for whoever holds, however their nodes are listed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_later_claim_with_the_same_number_waits() {
    let site = fixture_with_sequence("/same").await;
    let clients = [site.open_locks().await, site.open_locks().await];
    let (room, mut visitors, mut served) = (ProtectedResource::default(), Vec::new(), vec![0]);
    for number in 0..12 {
        visitors.push(enqueue(&room, &clients[number % 2], number, number).await);
        room.until_grants(&served).await;
    }
    let mut waiting = 11;
    for (number, visitor) in visitors.into_iter().enumerate() {
        visitor.release().await;
        if number < 11 {
            (waiting, served) = (waiting - 1, (0..=number + 1).collect());
        }
        room.until_grants(&served).await;
        until_waiting(&clients[0], "a", waiting).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_and_writers_past_the_last_number() {
    let site = fixture_with_sequence("/readers").await;
    let (locks, room) = (site.open_locks().await, ProtectedResource::default());
    let mut visitors = Vec::new();
    // Two readers hold; a writer, two readers and a writer wait.
    for (number, reads) in [true, true, false, true, true, false].into_iter().enumerate() {
        let lock = locks.rwlock("a");
        visitors.push(
            room.spawn_holder(number, reads, async move { if reads { lock.read().await } else { lock.write().await } }),
        );
        if number < 2 {
            room.until_grants(&(0..=number).collect::<Vec<_>>()).await;
        } else {
            until_waiting(&locks, "a", number - 1).await;
        }
    }
    room.until_grants(&[0, 1]).await;
    let mut visitors = visitors.into_iter();
    let mut next = || visitors.next().expect("a visitor");
    next().release().await;
    until_waiting(&locks, "a", 4).await;
    room.until_grants(&[0, 1]).await;
    next().release().await;
    room.until_grants(&[0, 1, 2]).await;
    next().release().await;
    // Both readers, in either order: they were let in together.
    until_waiting(&locks, "a", 1).await;
    until_holders(&room, 5).await;
    next().release().await;
    until_waiting(&locks, "a", 1).await;
    next().release().await;
    until_holders(&room, 6).await;
    next().release().await;
}

/// Waits until so many have come in.
async fn until_holders(room: &ProtectedResource, count: usize) {
    leasehold_testbed::eventually(TEST_TIMEOUT, || async {
        if room.grant_count() == count { Ok(()) } else { Err(format!("{count} should have come in: {room:?}")) }
    })
    .await;
}

/// An owner that re-enters stands with itself, though others have the same number.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_re_enters_past_the_last_number() {
    let site = fixture_with_sequence("/owner").await;
    let (locks, other) = (site.open_locks().await, site.open_locks().await);
    let (owner, room) = (Owner::new(), ProtectedResource::default());
    let outer = locks.mutex("a").owner(&owner).lock().await.expect("the lock");
    let mut visitors = Vec::new();
    for number in 0..4 {
        visitors.push(enqueue(&room, &other, number, number + 1).await);
    }
    let inner = locks.mutex("a").owner(&owner).timeout(TEST_TIMEOUT).lock().await.expect("the lock again");
    assert_eq!(inner.token(), outer.token());
    release(outer).await;
    room.until_grants(&[]).await;
    until_waiting(&other, "a", 4).await;
    release(inner).await;
    for (number, visitor) in visitors.into_iter().enumerate() {
        room.until_grants(&(0..=number).collect::<Vec<_>>()).await;
        visitor.release().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_go_round_past_the_last_number() {
    let site = fixture_with_sequence("/permits").await;
    let (locks, room) = (site.open_locks().await, ProtectedResource::default());
    let mut visitors = Vec::new();
    for number in 0..6usize {
        let semaphore = locks.semaphore("a", 2);
        visitors.push(room.spawn_holder(number, true, async move { semaphore.acquire(1).await }));
        if number < 2 {
            until_holders(&room, number + 1).await;
        }
        until_waiting(&locks, "a", number.saturating_sub(1)).await;
    }
    for (number, visitor) in visitors.into_iter().enumerate() {
        room.until_grants(&(0..(number + 2).min(6)).collect::<Vec<_>>()).await;
        visitor.release().await;
    }
}

/// Many at once: some of them are then given negative numbers, and others the last one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_clients_pass_the_last_number() {
    const CLIENTS: usize = 6;
    const ROUNDS: usize = 10;
    let site = Arc::new(fixture_with_sequence("/crowd").await);
    // Somebody else's node keeps the folder, so that the count is not begun anew.
    let hand = site.admin_client().await;
    hand.create(&format!("{}/stays", site.folder("a")), b"", &CreateMode::Persistent.with_acls(Acls::anyone_all()))
        .await
        .expect("a node");
    let (room, mut tasks) = (ProtectedResource::default(), JoinSet::new());
    for number in 0..CLIENTS {
        let (site, room) = (Arc::clone(&site), room.clone());
        tasks.spawn(async move {
            let locks = site.open_locks().await;
            for _ in 0..ROUNDS {
                let guard = locks.mutex("a").timeout(TEST_TIMEOUT).lock().await.expect("the lock");
                room.enter(number, false, &guard);
                tokio::task::yield_now().await;
                room.release(number, guard).await;
            }
        });
    }
    within_time("all have had their turns", tasks.join_all()).await;
    room.check();
    assert_eq!(room.grant_count(), CLIENTS * ROUNDS);
}

/// Numbers that are used up do not stay so: whoever leaves such a folder empty removes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sequence_restarts_once_the_folder_is_empty() {
    let site = fixture_with_sequence("/anew").await;
    let (hand, folder, locks) = (site.admin_client().await, site.folder("a"), site.open_locks().await);
    let mut tokens = Vec::new();
    for _ in 0..2 {
        let guard = locks.mutex("a").lock().await.expect("the lock");
        tokens.push(guard.token());
        release(guard).await;
    }
    until_gone(&hand, &folder).await;
    let guard = locks.mutex("a").lock().await.expect("the lock");
    tokens.push(guard.token());
    assert_eq!(numbers(&hand, &folder).await, [0]);
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
}
