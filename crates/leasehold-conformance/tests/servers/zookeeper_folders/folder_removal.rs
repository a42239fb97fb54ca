//! An unused folder is removed, and its sequence restarts with the next one.

use leasehold_zookeeper::CreateMode;

use crate::zookeeper_folders::fixture::{
    Fixture, create_node, numbers, release, stat, until_gone, until_waiting, within_time,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_after_an_unused_folder_is_removed() {
    let fixture = Fixture::new("/deep/er").await;
    let (admin, folder) = (fixture.admin_client().await, fixture.folder("a"));
    let (known, new) = (fixture.open_locks().await, fixture.open_locks().await);
    let mut tokens = Vec::new();
    // The first claim creates the folder; then come claims of a client that knew it, and of one
    // that did not.
    for locks in [&known, &known, &new, &known] {
        let guard = locks.mutex("a").lock().await.expect("the lock");
        assert_eq!(numbers(&admin, &folder).await, [0], "the sequence restarts");
        tokens.push(guard.token());
        release(guard).await;
        until_gone(&admin, &folder).await;
    }
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    let base = stat(&admin, fixture.base).await.expect("the base stays");
    assert_eq!(base.ephemeral_owner, 0, "{base:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_in_use_is_not_removed() {
    let fixture = Fixture::new("/in-use").await;
    let (admin, folder) = (fixture.admin_client().await, fixture.folder("a"));
    let (one, two) = (fixture.open_locks().await, fixture.open_locks().await);
    let held = one.mutex("a").lock().await.expect("the lock");
    let made = stat(&admin, &folder).await.expect("a folder").czxid;
    // Another folder comes and goes, so the server has checked for empty ones.
    let other = two.mutex("b").lock().await.expect("the other lock");
    release(other).await;
    until_gone(&admin, &fixture.folder("b")).await;
    let waits = tokio::spawn({
        let mutex = two.mutex("a");
        async move { mutex.lock().await }
    });
    until_waiting(&one, "a", 1).await;
    release(held).await;
    let next = within_time("the next waiter gets the lock", waits).await.expect("no panic").expect("the lock");
    assert_eq!(stat(&admin, &folder).await.expect("a folder").czxid, made, "the folder was recreated");
    release(next).await;
    until_gone(&admin, &folder).await;
}

/// The base and its parent are deleted while clients know them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_base_is_created_again() {
    let fixture = Fixture::new("/up/down").await;
    let (admin, locks) = (fixture.admin_client().await, fixture.open_locks().await);
    let first = locks.mutex("a").lock().await.expect("the lock");
    let token = first.token();
    release(first).await;
    until_gone(&admin, &fixture.folder("a")).await;
    for path in ["/up/down", "/up"] {
        admin.delete(path, None).await.expect("deleted");
    }
    let second = locks.mutex("a").lock().await.expect("the lock");
    assert!(second.token() > token);
    release(second).await;
}

/// A folder created by other programs, of another kind, is used and stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_created_by_others_is_used() {
    let fixture = Fixture::new("/made").await;
    let (admin, locks) = (fixture.admin_client().await, fixture.open_locks().await);
    for path in ["/made", "/made/a"] {
        create_node(&admin, path, CreateMode::Persistent).await;
    }
    for round in 0..2 {
        let guard = locks.mutex("a").lock().await.expect("the lock");
        assert_eq!(numbers(&admin, "/made/a").await, [round]);
        release(guard).await;
    }
}
