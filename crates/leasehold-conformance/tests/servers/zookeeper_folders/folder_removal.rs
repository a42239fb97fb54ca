//! A folder that nobody uses vanishes, and with it the count of its claims.

use leasehold_zookeeper::CreateMode;

use crate::zookeeper_folders::fixture::{
    Fixture, create_node, numbers, release, stat, until_gone, until_waiting, within_time,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_after_an_unused_folder_is_removed() {
    let site = Fixture::new("/deep/er").await;
    let (hand, folder) = (site.admin_client().await, site.folder("a"));
    let (knows, comes) = (site.open_locks().await, site.open_locks().await);
    let mut tokens = Vec::new();
    // The first makes the folder; then come one that knew it before, and one that did not.
    for locks in [&knows, &knows, &comes, &knows] {
        let guard = locks.mutex("a").lock().await.expect("the lock");
        assert_eq!(numbers(&hand, &folder).await, [0], "the count begins anew");
        tokens.push(guard.token());
        release(guard).await;
        until_gone(&hand, &folder).await;
    }
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    let base = stat(&hand, site.base).await.expect("the base stays");
    assert_eq!(base.ephemeral_owner, 0, "{base:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_in_use_is_not_removed() {
    let site = Fixture::new("/in-use").await;
    let (hand, folder) = (site.admin_client().await, site.folder("a"));
    let (one, two) = (site.open_locks().await, site.open_locks().await);
    let held = one.mutex("a").lock().await.expect("the lock");
    let made = stat(&hand, &folder).await.expect("a folder").czxid;
    // Another folder comes and goes: the server has looked for empty ones meanwhile.
    let other = two.mutex("b").lock().await.expect("the other lock");
    release(other).await;
    until_gone(&hand, &site.folder("b")).await;
    let waits = tokio::spawn({
        let mutex = two.mutex("a");
        async move { mutex.lock().await }
    });
    until_waiting(&one, "a", 1).await;
    release(held).await;
    let next = within_time("the next one has it", waits).await.expect("no panic").expect("the lock");
    assert_eq!(stat(&hand, &folder).await.expect("a folder").czxid, made, "it is another one");
    release(next).await;
    until_gone(&hand, &folder).await;
}

/// Somebody deletes everything, the base and what is above it, while clients know all of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_base_is_created_again() {
    let site = Fixture::new("/up/down").await;
    let (hand, locks) = (site.admin_client().await, site.open_locks().await);
    let first = locks.mutex("a").lock().await.expect("the lock");
    let token = first.token();
    release(first).await;
    until_gone(&hand, &site.folder("a")).await;
    for path in ["/up/down", "/up"] {
        hand.delete(path, None).await.expect("it is deleted");
    }
    let second = locks.mutex("a").lock().await.expect("the lock");
    assert!(second.token() > token);
    release(second).await;
}

/// Others, too, may make the folder, of another kind: it is used, and stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_created_by_others_is_used() {
    let site = Fixture::new("/made").await;
    let (hand, locks) = (site.admin_client().await, site.open_locks().await);
    for path in ["/made", "/made/a"] {
        create_node(&hand, path, CreateMode::Persistent).await;
    }
    for round in 0..2 {
        let guard = locks.mutex("a").lock().await.expect("the lock");
        assert_eq!(numbers(&hand, "/made/a").await, [round]);
        release(guard).await;
    }
}
