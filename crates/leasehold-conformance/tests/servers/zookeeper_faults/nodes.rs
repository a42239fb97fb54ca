//! Somebody deletes our nodes by hand.

use leasehold::LostReason;
use leasehold_conformance::world::SOON;
use leasehold_testbed::eventually;

use crate::zookeeper_faults::site::{LONG, Site, contender, mourner};

/// A holder whose node is deleted hears of it, long before its session could end.
#[tokio::test]
async fn a_holder_whose_node_is_deleted_is_told() {
    let site = Site::new().await;
    let guard = site.locks(LONG).await.mutex("a").lock().await.expect("a lock");
    let lost = mourner(&guard);
    site.client.delete(&site.nodes("a").await[0], None).await.expect("a deleted node");
    let (_, reason) = tokio::time::timeout(SOON, lost).await.expect("in time").expect("a mourner");
    assert_eq!(reason, LostReason::Taken);
    assert!(!guard.is_held());
}

/// The same while its line is down, so that nobody can tell it: it looks as soon as the line is back, and not only at its deadline.
#[tokio::test]
async fn a_holder_whose_node_is_deleted_while_its_line_is_down_is_told_when_it_is_back() {
    let site = Site::new().await;
    let (locks, proxy) = site.proxied(LONG).await;
    let guard = locks.mutex("a").lock().await.expect("a lock");
    let lost = mourner(&guard);
    proxy.refuse(true);
    proxy.cut();
    site.client.delete(&site.nodes("a").await[0], None).await.expect("a deleted node");
    proxy.refuse(false);
    let (_, reason) = tokio::time::timeout(SOON, lost).await.expect("a loss in time").expect("a mourner");
    assert_eq!(reason, LostReason::Taken);
    assert!(!guard.is_held());
    assert_eq!(site.nodes("a").await.len(), 0, "nothing is taken again by itself");
}

/// A waiter whose node is deleted is not granted because the one ahead leaves: it stands at the end of the queue.
#[tokio::test]
async fn a_waiter_whose_node_is_deleted_goes_to_the_end() {
    let site = Site::new().await;
    let guard = site.locks(LONG).await.mutex("a").lock().await.expect("a lock");
    let first = contender(&site.locks(LONG).await, "a");
    site.until_nodes("a", 2).await;
    let second = contender(&site.locks(LONG).await, "a");
    site.until_nodes("a", 3).await;
    let doomed = site.nodes("a").await[1].clone();
    site.client.delete(&doomed, None).await.expect("a deleted node");
    eventually(SOON, || async {
        let nodes = site.nodes("a").await;
        let back = nodes.len() == 3 && !nodes.contains(&doomed);
        if back { Ok(()) } else { Err(format!("not back in the queue: {nodes:?}")) }
    })
    .await;
    let _ = guard.release().await.expect("a release");
    let (_, next) = tokio::time::timeout(SOON, second).await.expect("in time").expect("a contender");
    assert!(!first.is_finished(), "it has lost its place");
    let token = next.token();
    let _ = next.release().await.expect("a release");
    let (_, last) = tokio::time::timeout(SOON, first).await.expect("in time").expect("a contender");
    assert!(last.token() > token);
}

/// The whole folder goes, with a holder and a waiter in it.
#[tokio::test]
async fn a_deleted_folder_ends_the_hold_and_not_the_waiting() {
    let site = Site::new().await;
    let guard = site.locks(LONG).await.mutex("a").lock().await.expect("a lock");
    let waiter = contender(&site.locks(LONG).await, "a");
    site.until_nodes("a", 2).await;
    let lost = mourner(&guard);
    for node in site.nodes("a").await.iter().rev() {
        site.client.delete(node, None).await.expect("a deleted node");
    }
    let _ = site.client.delete(&site.folder("a"), None).await;
    let (_, reason) = tokio::time::timeout(SOON, lost).await.expect("in time").expect("a mourner");
    assert_eq!(reason, LostReason::Taken);
    let (_, next) = tokio::time::timeout(SOON, waiter).await.expect("in time").expect("a contender");
    assert!(next.token() > guard.token());
}
