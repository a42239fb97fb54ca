//! How long a session lasts, and how long it outlives its client.

use std::path::Path;
use std::time::Duration;

use leasehold::{ErrorKind, Locks};
use leasehold_conformance::actor_process::ActorProcess;
use leasehold_conformance::protocol::LockRequest;
use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT};
use leasehold_testbed::eventually;
use leasehold_testbed::zookeeper::ZooKeeper;

use crate::zookeeper_access::fixture::{acquire_when_free, assert_error, open_locks};

async fn open_locks_with_ttl(url: &str, ttl: Duration) -> Locks {
    Locks::builder().ttl(ttl).open(url).await.expect("a client")
}

/// Each claim's session closes with it: nothing is left on the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_own_session_ends_with_its_claim() {
    let server = ZooKeeper::new().start().await.expect("a server");
    let own = open_locks(&format!("zookeeper://{}/n?session=own", server.url())).await;
    let connections = async || {
        let facts = leasehold_testbed::zookeeper::monitor_values(server.addr()).await.expect("facts");
        // Includes the connection that reads the value.
        facts["zk_num_alive_connections"].parse::<usize>().expect("a number")
    };
    let before = connections().await;
    let mut held = Vec::new();
    for number in 0..5 {
        held.push(own.mutex(format!("n{number}")).lock().await.expect("a lock"));
    }
    assert_eq!(connections().await, before + 5);
    drop(held);
    own.flush().await.expect("all released");
    eventually(TEST_TIMEOUT, || async {
        let now = connections().await;
        if now == before { Ok(()) } else { Err(format!("{now} connections, and {before} before")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ttl_that_no_session_can_keep_is_refused() {
    let server = ZooKeeper::new()
        .session_bounds(Duration::from_secs(4), Duration::from_secs(60))
        .start()
        .await
        .expect("a server");
    for (options, figure, whose) in [
        ("", "4s", "server's shortest session"),
        ("session=own", "4s", "server's shortest session"),
        ("session-timeout=5s", "5s", "session-timeout"),
    ] {
        let locks = open_locks(&format!("zookeeper://{}/n?{options}", server.url())).await;
        let error = locks.mutex("a").ttl(Duration::from_secs(3)).try_lock().await.expect_err("too short");
        assert_error(&error, ErrorKind::InvalidOption, &[figure, whose, "3s"]);
        drop(locks.mutex("a").ttl(Duration::from_secs(5)).lock().await.expect("long enough"));
        locks.flush().await.expect("released");
    }
    // Shorter than any engine allows.
    let locks = open_locks(&format!("zookeeper://{}/n", server.url())).await;
    let error = locks.mutex("a").ttl(Duration::from_millis(500)).try_lock().await.expect_err("too short");
    assert_error(&error, ErrorKind::InvalidOption, &["2s"]);
}

/// A server may allow only sessions shorter than the TTL: they are renewed more often, and a dead
/// holder's lock is free sooner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ttl_longer_than_any_session_is_honored() {
    const SESSION: Duration = Duration::from_secs(4);
    const ROUNDS: usize = 10;
    let ttl = LONG_TTL;
    let server = ZooKeeper::new().session_bounds(Duration::from_millis(200), SESSION).start().await.expect("a server");
    let url = format!("zookeeper://{}/n", server.url());
    let (holds, other) = (open_locks_with_ttl(&url, ttl).await, open_locks_with_ttl(&url, ttl).await);
    let mut dies = ActorProcess::open(Path::new(env!("CARGO_BIN_EXE_leasehold-actor")), &url, ttl).await;
    for round in 0.. {
        // A busy machine may pause for a whole session and lose the locks; then another round must
        // succeed.
        assert!(round < ROUNDS, "lost in each of {ROUNDS} rounds");
        let names = [format!("a{round}"), format!("dies{round}")];
        dies.acquire(LockRequest::exclusive(&names[1])).await;
        let held = holds.mutex(&names[0]).lock().await.expect("a lock");
        // Each renewal extends the deadline by the time that has passed: in total by more than two
        // sessions.
        let last = held.deadline().saturating_add(SESSION * 9 / 4);
        let renewed = || async {
            assert!(held.remaining() <= SESSION, "a lease exceeds the session timeout: {held:?}");
            let ended = held.lost_reason().is_some() || held.deadline() >= last;
            if ended { Ok(()) } else { Err(format!("too few renewals: {held:?}")) }
        };
        eventually(TEST_TIMEOUT, renewed).await;
        let mut second = Vec::new();
        for name in &names {
            second.push(other.mutex(name).try_lock().await.expect("an answer").is_some());
        }
        // Checked after the attempts: a current holder held the lock then as well.
        let both = [held.is_held(), dies.query_held(&names[1]).await.0];
        assert!(!(both[0] && second[0] || both[1] && second[1]), "two holders: {both:?}, {second:?}");
        if both == [true, true] {
            dies.process().sigkill().expect("a dead process");
            // The dead holder's TTL is far longer than this timeout.
            acquire_when_free(&other, &names[1]).await;
            return;
        }
        dies.release(&names[1]).await;
    }
}
