//! Locks that another version stored in another format.

use leasehold_conformance::formats::assert_lock_format_refused;
use leasehold_testbed::redis::{Reply, RespClient};

use super::fixture::{Fixture, NODES};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_in_another_format_is_an_error() {
    let fixture = Fixture::shared().await;
    let locks = fixture.locks().await;
    let guard = locks.mutex("a").lock().await.expect("the lock");
    for node in 0..NODES {
        let mut connection = RespClient::connect(fixture.server(node).addr()).await.expect("a connection");
        let Reply::Bulk(stored) = connection.command(&["GET", &fixture.key("a")]).await.expect("an answer") else {
            continue;
        };
        let newer = format!("2{}", stored.strip_prefix('1').expect("format 1"));
        connection.command(&["SET", &fixture.key("a"), &newer, "EX", "600"]).await.expect("an answer");
    }
    assert_lock_format_refused(&locks).await;
    drop(guard);
}
