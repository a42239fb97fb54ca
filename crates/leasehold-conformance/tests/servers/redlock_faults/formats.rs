//! Locks that another version stored in another format.

use leasehold::LostReason;
use leasehold_conformance::formats::assert_lock_format_refused;
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::redis::RespClient;

use tokio::time::timeout;

use super::fixture::{Fixture, LASTING, NODES, ShiftedClock};

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

/// Another program's value in the place of a lock costs the client none of its other leases.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_lock_costs_no_other_lease() {
    let fixture = Fixture::shared().await;
    for (number, value) in ["12345", "1N", "1Nabc"].into_iter().enumerate() {
        let ahead = ShiftedClock::new();
        let locks = fixture.locks_with_clock(&ahead).await;
        let (name, damaged) = (format!("a{number}"), format!("b{number}"));
        let other = locks.mutex(&name).lock().await.expect("the lock");
        let guard = locks.mutex(&damaged).lock().await.expect("the lock");
        for node in 0..NODES {
            fixture.command(node, &["SET", &fixture.key(&damaged), value, "EX", "600"]).await;
        }
        ahead.renew_now(&[&other], LASTING).await;
        assert_eq!(timeout(TEST_TIMEOUT, guard.lost()).await.expect("a loss"), LostReason::Revoked, "{value}");
        assert!(other.is_held(), "{value}");
    }
}
