//! The leader of an ensemble dies: what the gate wants to see of it.

use leasehold_conformance::world::SOON;
use leasehold_testbed::eventually;
use leasehold_testbed::zookeeper::ZooKeeper;

use crate::zookeeper_faults::site::{LONG, contender, ensemble, locks};

/// The leader is killed: sessions live on with the next one, and nobody loses a lock or a place.
#[tokio::test]
async fn a_killed_leader_takes_no_lock_away() {
    let (mut servers, _turn) = ensemble(&ZooKeeper::new()).await;
    let url = format!("zookeeper://{}/e", servers.url());
    let (one, other) = (locks(&url, LONG).await, locks(&url, LONG).await);
    let guard = one.mutex("a").lock().await.expect("a lock");
    let waiter = contender(&other, "a");
    let leader = servers.leader().await.expect("a leader");
    servers.server_mut(leader).kill().expect("a killed leader");
    assert_ne!(servers.leader().await.expect("another leader"), leader);
    // Both clients have reached the others, and have written there.
    for locks in [&one, &other] {
        let write = || async { locks.mutex("b").wait(SOON).lock().await };
        let _ = eventually(SOON, write).await.release().await.expect("a release");
    }
    assert!(guard.is_held(), "lost: {:?}", guard.lost_reason());
    assert!(!waiter.is_finished(), "two at once");
    let token = guard.token();
    let _ = guard.release().await.expect("a release");
    let (_, second) = tokio::time::timeout(SOON, waiter).await.expect("in time").expect("a contender");
    assert!(second.token() > token, "tokens rise over an election");
}
