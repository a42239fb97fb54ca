//! A folder that nobody uses vanishes, and with it the count of its claims.

use leasehold_zookeeper::CreateMode;

use crate::zookeeper_folders::site::{Site, give_back, make, numbers, soon, stat, until_gone, until_waiting};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_vanishes_after_use_and_tokens_rise_all_the_same() {
    let site = Site::new("/deep/er").await;
    let (hand, folder) = (site.hand().await, site.folder("a"));
    let (knows, comes) = (site.locks().await, site.locks().await);
    let mut tokens = Vec::new();
    // The first makes the folder; then come one that knew it before, and one that did not.
    for locks in [&knows, &knows, &comes, &knows] {
        let guard = locks.mutex("a").lock().await.expect("the lock");
        assert_eq!(numbers(&hand, &folder).await, [0], "the count begins anew");
        tokens.push(guard.token());
        give_back(guard).await;
        until_gone(&hand, &folder).await;
    }
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    let base = stat(&hand, site.base).await.expect("the base stays");
    assert_eq!(base.ephemeral_owner, 0, "{base:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_stays_while_somebody_uses_it() {
    let site = Site::new("/in-use").await;
    let (hand, folder) = (site.hand().await, site.folder("a"));
    let (one, two) = (site.locks().await, site.locks().await);
    let held = one.mutex("a").lock().await.expect("the lock");
    let made = stat(&hand, &folder).await.expect("a folder").czxid;
    // Another folder comes and goes: the server has looked for empty ones meanwhile.
    let other = two.mutex("b").lock().await.expect("the other lock");
    give_back(other).await;
    until_gone(&hand, &site.folder("b")).await;
    let waits = tokio::spawn({
        let mutex = two.mutex("a");
        async move { mutex.lock().await }
    });
    until_waiting(&one, "a", 1).await;
    give_back(held).await;
    let next = soon("the next one has it", waits).await.expect("no panic").expect("the lock");
    assert_eq!(stat(&hand, &folder).await.expect("a folder").czxid, made, "it is another one");
    give_back(next).await;
    until_gone(&hand, &folder).await;
}

/// Somebody deletes everything, the base and what is above it, while clients know all of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_base_that_was_deleted_is_made_again() {
    let site = Site::new("/up/down").await;
    let (hand, locks) = (site.hand().await, site.locks().await);
    let first = locks.mutex("a").lock().await.expect("the lock");
    let token = first.token();
    give_back(first).await;
    until_gone(&hand, &site.folder("a")).await;
    for path in ["/up/down", "/up"] {
        hand.delete(path, None).await.expect("it is deleted");
    }
    let second = locks.mutex("a").lock().await.expect("the lock");
    assert!(second.token() > token);
    give_back(second).await;
}

/// Others, too, may make the folder, of another kind: it is used, and stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_that_somebody_else_has_made_is_used() {
    let site = Site::new("/made").await;
    let (hand, locks) = (site.hand().await, site.locks().await);
    for path in ["/made", "/made/a"] {
        make(&hand, path, CreateMode::Persistent).await;
    }
    for round in 0..2 {
        let guard = locks.mutex("a").lock().await.expect("the lock");
        assert_eq!(numbers(&hand, "/made/a").await, [round]);
        give_back(guard).await;
    }
}
