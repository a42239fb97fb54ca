//! The server numbers the claims of a folder with 31 bits, and one day it has used them up. Its book says that the count wraps
//! around then. What servers since 3.6 do is worse: they give the last number again, and again, and now and then to somebody who
//! comes while another is being served a negative one. Nobody can tell by these numbers who came first.

use std::sync::Arc;

use leasehold::{Locks, Owner};
use leasehold_conformance::world::SOON;
use leasehold_zookeeper::{Acls, Client, CreateMode};
use tokio::task::JoinSet;

use crate::zookeeper_folders::site::{Room, Visitor, give_back, numbers, soon, stat, until_gone, until_waiting};
use crate::zookeeper_folders::snapshot::counted;

/// Somebody asks for the mutex, and waits behind all who asked before.
async fn queue(room: &Room, locks: &Locks, number: usize, waiting: usize) -> Visitor {
    let mutex = locks.mutex("a");
    let visitor = room.visit(number, false, async move { mutex.lock().await });
    if waiting == 0 {
        room.until(&[number]).await;
    }
    until_waiting(locks, "a", waiting).await;
    visitor
}

/// Who holds by the textbook: the first when the numbers are sorted as text. Several if they have the same.
async fn textbook(hand: &Client, folder: &str) -> Vec<String> {
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
    let site = counted("/order").await;
    let (hand, folder) = (site.hand().await, site.folder("a"));
    let clients = [site.locks().await, site.locks().await, site.locks().await];
    let (room, mut visitors) = (Room::default(), Vec::new());
    for number in 0..6 {
        visitors.push(queue(&room, &clients[number % 3], number, number).await);
    }
    let given = numbers(&hand, &folder).await;
    let late = given.iter().filter(|number| !(0..i32::MAX).contains(*number)).count();
    assert_eq!((given.contains(&(i32::MAX - 2)), late), (true, 4), "{given:?}");

    let mut served: Vec<usize> = vec![0];
    room.until(&served).await;
    for (number, visitor) in visitors.into_iter().enumerate() {
        if number == 3 {
            let holds = oldest(&hand, &folder).await;
            assert_ne!(textbook(&hand, &folder).await, [holds], "the textbook would do, and this test shows nothing");
        }
        visitor.goes().await;
        if number < 5 {
            served.push(number + 1);
        }
        room.until(&served).await;
    }
}

/// Who comes when all numbers are used up waits for whoever holds, however their nodes are listed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_comes_later_waits_though_he_has_the_same_number() {
    let site = counted("/same").await;
    let clients = [site.locks().await, site.locks().await];
    let (room, mut visitors, mut served) = (Room::default(), Vec::new(), vec![0]);
    for number in 0..12 {
        visitors.push(queue(&room, &clients[number % 2], number, number).await);
        room.until(&served).await;
    }
    let mut waiting = 11;
    for (number, visitor) in visitors.into_iter().enumerate() {
        visitor.goes().await;
        if number < 11 {
            (waiting, served) = (waiting - 1, (0..=number + 1).collect());
        }
        room.until(&served).await;
        until_waiting(&clients[0], "a", waiting).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_and_writers_past_the_last_number() {
    let site = counted("/readers").await;
    let (locks, room) = (site.locks().await, Room::default());
    let mut visitors = Vec::new();
    // Two readers hold; a writer, two readers and a writer wait.
    for (number, reads) in [true, true, false, true, true, false].into_iter().enumerate() {
        let lock = locks.rwlock("a");
        visitors.push(room.visit(
            number,
            reads,
            async move { if reads { lock.read().await } else { lock.write().await } },
        ));
        if number < 2 {
            room.until(&(0..=number).collect::<Vec<_>>()).await;
        } else {
            until_waiting(&locks, "a", number - 1).await;
        }
    }
    room.until(&[0, 1]).await;
    let mut visitors = visitors.into_iter();
    let mut next = || visitors.next().expect("a visitor");
    next().goes().await;
    until_waiting(&locks, "a", 4).await;
    room.until(&[0, 1]).await;
    next().goes().await;
    room.until(&[0, 1, 2]).await;
    next().goes().await;
    // Both readers, in either order: they were let in together.
    until_waiting(&locks, "a", 1).await;
    eventually_inside(&room, 5).await;
    next().goes().await;
    until_waiting(&locks, "a", 1).await;
    next().goes().await;
    eventually_inside(&room, 6).await;
    next().goes().await;
}

/// Waits until so many have come in.
async fn eventually_inside(room: &Room, count: usize) {
    leasehold_testbed::eventually(SOON, || async {
        if room.count() == count { Ok(()) } else { Err(format!("{count} should have come in: {room:?}")) }
    })
    .await;
}

/// An owner that re-enters stands with itself, though others have the same number.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_re_enters_past_the_last_number() {
    let site = counted("/owner").await;
    let (locks, other) = (site.locks().await, site.locks().await);
    let (owner, room) = (Owner::new(), Room::default());
    let outer = locks.mutex("a").owner(&owner).lock().await.expect("the lock");
    let mut visitors = Vec::new();
    for number in 0..4 {
        visitors.push(queue(&room, &other, number, number + 1).await);
    }
    let inner = locks.mutex("a").owner(&owner).wait(SOON).lock().await.expect("the lock again");
    assert_eq!(inner.token(), outer.token());
    give_back(outer).await;
    room.until(&[]).await;
    until_waiting(&other, "a", 4).await;
    give_back(inner).await;
    for (number, visitor) in visitors.into_iter().enumerate() {
        room.until(&(0..=number).collect::<Vec<_>>()).await;
        visitor.goes().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_go_round_past_the_last_number() {
    let site = counted("/permits").await;
    let (locks, room) = (site.locks().await, Room::default());
    let mut visitors = Vec::new();
    for number in 0..6usize {
        let semaphore = locks.semaphore("a", 2);
        visitors.push(room.visit(number, true, async move { semaphore.acquire(1).await }));
        if number < 2 {
            eventually_inside(&room, number + 1).await;
        }
        until_waiting(&locks, "a", number.saturating_sub(1)).await;
    }
    for (number, visitor) in visitors.into_iter().enumerate() {
        room.until(&(0..(number + 2).min(6)).collect::<Vec<_>>()).await;
        visitor.goes().await;
    }
}

/// Many at once: some of them are then given negative numbers, and others the last one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_passes_the_last_number() {
    const CLIENTS: usize = 6;
    const ROUNDS: usize = 10;
    let site = Arc::new(counted("/crowd").await);
    // Somebody else's node keeps the folder, so that the count is not begun anew.
    let hand = site.hand().await;
    hand.create(&format!("{}/stays", site.folder("a")), b"", &CreateMode::Persistent.with_acls(Acls::anyone_all()))
        .await
        .expect("a node");
    let (room, mut tasks) = (Room::default(), JoinSet::new());
    for number in 0..CLIENTS {
        let (site, room) = (Arc::clone(&site), room.clone());
        tasks.spawn(async move {
            let locks = site.locks().await;
            for _ in 0..ROUNDS {
                let guard = locks.mutex("a").wait(SOON).lock().await.expect("the lock");
                room.enter(number, false, &guard);
                tokio::task::yield_now().await;
                room.leave(number, guard).await;
            }
        });
    }
    soon("all have had their turns", tasks.join_all()).await;
    room.check();
    assert_eq!(room.count(), CLIENTS * ROUNDS);
}

/// Numbers that are used up do not stay so: whoever leaves such a folder empty removes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_count_begins_anew_as_soon_as_nobody_is_there() {
    let site = counted("/anew").await;
    let (hand, folder, locks) = (site.hand().await, site.folder("a"), site.locks().await);
    let mut tokens = Vec::new();
    for _ in 0..2 {
        let guard = locks.mutex("a").lock().await.expect("the lock");
        tokens.push(guard.token());
        give_back(guard).await;
    }
    until_gone(&hand, &folder).await;
    let guard = locks.mutex("a").lock().await.expect("the lock");
    tokens.push(guard.token());
    assert_eq!(numbers(&hand, &folder).await, [0]);
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
}
