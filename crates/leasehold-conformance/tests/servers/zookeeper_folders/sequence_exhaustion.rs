//! The server numbers the claims of a folder with 31 bits, and one day they are used up. According
//! to its documentation the counter then wraps around. Servers since 3.6 instead repeat the last
//! number, and sometimes give a negative one to a concurrent request. So the numbers no longer show
//! who came first.

use std::sync::Arc;

use leasehold::{Locks, Owner};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_zookeeper::{Acls, Client, CreateMode};
use tokio::task::JoinSet;

use crate::zookeeper_folders::fixture::{
    HolderTask, ProtectedResource, numbers, release, stat, until_gone, until_waiting, within_time,
};
use crate::zookeeper_folders::snapshot::fixture_with_sequence;

/// Queues for the mutex, behind all earlier waiters.
async fn enqueue(resource: &ProtectedResource, locks: &Locks, number: usize, waiting: usize) -> HolderTask {
    let mutex = locks.mutex("a");
    let holder = resource.spawn_holder(number, false, async move { mutex.lock().await });
    if waiting == 0 {
        resource.until_grants(&[number]).await;
    }
    until_waiting(locks, "a", waiting).await;
    holder
}

/// The textbook's holder: the lowest number when sorted as text. There may be several with the same
/// one.
async fn holders_by_sequence(admin: &Client, folder: &str) -> Vec<String> {
    let nodes = admin.list_children(folder).await.expect("a list");
    let text = |node: &String| node.splitn(6, '-').last().map(str::to_owned);
    let first = nodes.iter().map(text).min().expect("a node");
    nodes.into_iter().filter(|node| text(node) == first).collect()
}

/// The node with the lowest creation transaction.
async fn oldest(admin: &Client, folder: &str) -> String {
    let mut found = Vec::new();
    for node in admin.list_children(folder).await.expect("a list") {
        let stat = stat(admin, &format!("{folder}/{node}")).await.expect("a node");
        found.push((stat.czxid, node));
    }
    found.into_iter().min().expect("a node").1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_are_served_in_order_past_the_last_number() {
    let fixture = fixture_with_sequence("/order").await;
    let (admin, folder) = (fixture.admin_client().await, fixture.folder("a"));
    let clients = [fixture.open_locks().await, fixture.open_locks().await, fixture.open_locks().await];
    let (resource, mut holder_tasks) = (ProtectedResource::default(), Vec::new());
    for number in 0..6 {
        holder_tasks.push(enqueue(&resource, &clients[number % 3], number, number).await);
    }
    let given = numbers(&admin, &folder).await;
    let late = given.iter().filter(|number| !(0..i32::MAX).contains(*number)).count();
    assert_eq!((given.contains(&(i32::MAX - 2)), late), (true, 4), "{given:?}");

    let mut served: Vec<usize> = vec![0];
    resource.until_grants(&served).await;
    for (number, holder) in holder_tasks.into_iter().enumerate() {
        if number == 3 {
            let holds = oldest(&admin, &folder).await;
            assert_ne!(
                holders_by_sequence(&admin, &folder).await,
                [holds],
                "the textbook is right here, so the test shows nothing"
            );
        }
        holder.release().await;
        if number < 5 {
            served.push(number + 1);
        }
        resource.until_grants(&served).await;
    }
}

/// A claim that arrives after the numbers are used up waits for the holder, however the nodes are
/// listed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_later_claim_with_the_same_number_waits() {
    let fixture = fixture_with_sequence("/same").await;
    let clients = [fixture.open_locks().await, fixture.open_locks().await];
    let (resource, mut holder_tasks, mut served) = (ProtectedResource::default(), Vec::new(), vec![0]);
    for number in 0..12 {
        holder_tasks.push(enqueue(&resource, &clients[number % 2], number, number).await);
        resource.until_grants(&served).await;
    }
    let mut waiting = 11;
    for (number, holder) in holder_tasks.into_iter().enumerate() {
        holder.release().await;
        if number < 11 {
            (waiting, served) = (waiting - 1, (0..=number + 1).collect());
        }
        resource.until_grants(&served).await;
        until_waiting(&clients[0], "a", waiting).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_and_writers_past_the_last_number() {
    let fixture = fixture_with_sequence("/readers").await;
    let (locks, resource) = (fixture.open_locks().await, ProtectedResource::default());
    let mut holder_tasks = Vec::new();
    // Two readers hold; a writer, two readers and a writer wait.
    for (number, reads) in [true, true, false, true, true, false].into_iter().enumerate() {
        let lock = locks.rwlock("a");
        holder_tasks.push(
            resource.spawn_holder(
                number,
                reads,
                async move { if reads { lock.read().await } else { lock.write().await } },
            ),
        );
        if number < 2 {
            resource.until_grants(&(0..=number).collect::<Vec<_>>()).await;
        } else {
            until_waiting(&locks, "a", number - 1).await;
        }
    }
    resource.until_grants(&[0, 1]).await;
    let mut holder_tasks = holder_tasks.into_iter();
    let mut next = || holder_tasks.next().expect("a holder");
    next().release().await;
    until_waiting(&locks, "a", 4).await;
    resource.until_grants(&[0, 1]).await;
    next().release().await;
    resource.until_grants(&[0, 1, 2]).await;
    next().release().await;
    // Both readers in either order: they were granted together.
    until_waiting(&locks, "a", 1).await;
    until_holders(&resource, 5).await;
    next().release().await;
    until_waiting(&locks, "a", 1).await;
    next().release().await;
    until_holders(&resource, 6).await;
    next().release().await;
}

/// Waits until `count` holders have entered.
async fn until_holders(resource: &ProtectedResource, count: usize) {
    leasehold_testbed::eventually(TEST_TIMEOUT, || async {
        if resource.grant_count() == count { Ok(()) } else { Err(format!("{count} should have entered: {resource:?}")) }
    })
    .await;
}

/// An owner re-enters its own hold, even if other claims have the same number.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_re_enters_past_the_last_number() {
    let fixture = fixture_with_sequence("/owner").await;
    let (locks, other) = (fixture.open_locks().await, fixture.open_locks().await);
    let (owner, resource) = (Owner::new(), ProtectedResource::default());
    let outer = locks.mutex("a").owner(&owner).lock().await.expect("the lock");
    let mut holder_tasks = Vec::new();
    for number in 0..4 {
        holder_tasks.push(enqueue(&resource, &other, number, number + 1).await);
    }
    let inner = locks.mutex("a").owner(&owner).timeout(TEST_TIMEOUT).lock().await.expect("the lock again");
    assert_eq!(inner.token(), outer.token());
    release(outer).await;
    resource.until_grants(&[]).await;
    until_waiting(&other, "a", 4).await;
    release(inner).await;
    for (number, holder) in holder_tasks.into_iter().enumerate() {
        resource.until_grants(&(0..=number).collect::<Vec<_>>()).await;
        holder.release().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_are_granted_past_the_last_number() {
    let fixture = fixture_with_sequence("/permits").await;
    let (locks, resource) = (fixture.open_locks().await, ProtectedResource::default());
    let mut holder_tasks = Vec::new();
    for number in 0..6usize {
        let semaphore = locks.semaphore("a", 2);
        holder_tasks.push(resource.spawn_holder(number, true, async move { semaphore.acquire(1).await }));
        if number < 2 {
            until_holders(&resource, number + 1).await;
        }
        until_waiting(&locks, "a", number.saturating_sub(1)).await;
    }
    for (number, holder) in holder_tasks.into_iter().enumerate() {
        resource.until_grants(&(0..(number + 2).min(6)).collect::<Vec<_>>()).await;
        holder.release().await;
    }
}

/// Many concurrent clients: some get negative numbers, and others the last one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_clients_pass_the_last_number() {
    const CLIENTS: usize = 6;
    const ROUNDS: usize = 10;
    let fixture = Arc::new(fixture_with_sequence("/crowd").await);
    // A foreign node keeps the folder, so that the sequence does not restart.
    let admin = fixture.admin_client().await;
    admin
        .create(&format!("{}/stays", fixture.folder("a")), b"", &CreateMode::Persistent.with_acls(Acls::anyone_all()))
        .await
        .expect("a node");
    let (resource, mut tasks) = (ProtectedResource::default(), JoinSet::new());
    for number in 0..CLIENTS {
        let (fixture, resource) = (Arc::clone(&fixture), resource.clone());
        tasks.spawn(async move {
            let locks = fixture.open_locks().await;
            for _ in 0..ROUNDS {
                let guard = locks.mutex("a").timeout(TEST_TIMEOUT).lock().await.expect("the lock");
                resource.enter(number, false, &guard);
                tokio::task::yield_now().await;
                resource.release(number, guard).await;
            }
        });
    }
    within_time("all clients are done", tasks.join_all()).await;
    resource.check();
    assert_eq!(resource.grant_count(), CLIENTS * ROUNDS);
}

/// The sequence restarts: a client that leaves such a folder empty removes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sequence_restarts_once_the_folder_is_empty() {
    let fixture = fixture_with_sequence("/restart").await;
    let (admin, folder, locks) = (fixture.admin_client().await, fixture.folder("a"), fixture.open_locks().await);
    let mut tokens = Vec::new();
    for _ in 0..2 {
        let guard = locks.mutex("a").lock().await.expect("the lock");
        tokens.push(guard.token());
        release(guard).await;
    }
    until_gone(&admin, &folder).await;
    let guard = locks.mutex("a").lock().await.expect("the lock");
    tokens.push(guard.token());
    assert_eq!(numbers(&admin, &folder).await, [0]);
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
}
