//! The leader of an ensemble dies: the short version of the test.

use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::eventually;
use leasehold_testbed::zookeeper::ZooKeeper;

use crate::zookeeper_faults::fixture::{LONG_TTL, ensemble, open_locks, spawn_waiter};

/// The leader is killed: sessions continue with the next one, and no lock or position is lost.
#[tokio::test]
async fn killing_the_leader_loses_no_lock() {
    let (mut servers, _turn) = ensemble(&ZooKeeper::new()).await;
    let url = format!("zookeeper://{}/e", servers.url());
    let (one, other) = (open_locks(&url, LONG_TTL).await, open_locks(&url, LONG_TTL).await);
    let guard = one.mutex("a").lock().await.expect("a lock");
    let waiter = spawn_waiter(&other, "a");
    let leader = servers.leader().await.expect("a leader");
    servers.server_mut(leader).kill().expect("a killed leader");
    assert_ne!(servers.leader().await.expect("another leader"), leader);
    // Both clients have reconnected and written.
    for locks in [&one, &other] {
        let write = || async { locks.mutex("b").timeout(TEST_TIMEOUT).lock().await };
        let _ = eventually(TEST_TIMEOUT, write).await.release().await.expect("a release");
    }
    assert!(guard.is_held(), "lost: {:?}", guard.lost_reason());
    assert!(!waiter.is_finished(), "two holders");
    let token = guard.token();
    let _ = guard.release().await.expect("a release");
    let (_, second) = tokio::time::timeout(TEST_TIMEOUT, waiter).await.expect("in time").expect("no panic");
    assert!(second.token() > token, "tokens rise over an election");
}
