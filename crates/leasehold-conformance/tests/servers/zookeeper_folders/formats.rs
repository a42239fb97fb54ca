//! Claims and records that another version stored in another format.

use leasehold_conformance::formats::{assert_lock_format_refused, assert_record_format_refused};
use leasehold_zookeeper::CreateMode;

use crate::zookeeper_folders::fixture::{Fixture, create_node, release};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_or_record_in_another_format_is_an_error() {
    let fixture = Fixture::new("/formats").await;
    let (admin, locks) = (fixture.admin_client().await, fixture.open_locks().await);
    let records = locks.records().expect("records");
    assert!(records.compare_and_set("a", 0, "x").await.expect("an answer").is_some());
    // Unlike a container, this folder stays while it is empty.
    create_node(&admin, "/formats/a", CreateMode::Persistent).await;
    release(locks.mutex("a").lock().await.expect("the lock")).await;
    create_node(&admin, "/formats/a/2-a-claim-", CreateMode::EphemeralSequential).await;
    admin.set_data("/formats/%records/a", b"2\nx", None).await.expect("a write");
    assert_lock_format_refused(&locks).await;
    let left = admin.list_children("/formats/a").await.expect("a list");
    assert!(left.len() == 1 && left[0].starts_with("2-"), "the refused request left a node: {left:?}");
    assert_record_format_refused(&locks).await;
    let listed = locks.list("").await.expect("a list");
    assert!(listed.iter().any(|view| view.damage.is_some()), "{listed:?}");
}
