//! Locks that another version stored in another format.

use leasehold_conformance::formats::assert_lock_format_refused;
use leasehold_testbed::redis::RespClient;

use super::fixture::{Fixture, NODES};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_in_another_format_is_an_error() {
    let fixture = Fixture::shared().await;
    let locks = fixture.locks().await;
    let guard = locks.mutex("a").lock().await.expect("the lock");
    for node in 0..NODES {
        let mut connection = RespClient::connect(fixture.server(node).addr()).await.expect("a connection");
        let key = fixture.key("a");
        let reply = connection.command(&["GET", &key]).await.expect("an answer");
        let Some(stored) = reply.bytes() else { continue };
        let newer = [b"2", stored.strip_prefix(b"1").expect("format 1")].concat();
        let set: [&[u8]; 5] = [b"SET", key.as_bytes(), &newer, b"EX", b"600"];
        connection.command(&set).await.expect("an answer");
    }
    assert_lock_format_refused(&locks).await;
    drop(guard);
}
