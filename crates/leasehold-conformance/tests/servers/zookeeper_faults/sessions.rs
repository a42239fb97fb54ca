//! The number of a client's sessions, counted by the server.

use std::time::Duration;

use leasehold::Locks;
use leasehold::clock::ManualClock;
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::zookeeper::{self, ZooKeeper};
use leasehold_testbed::{Server, eventually};

use crate::zookeeper_faults::fixture::LONG_TTL;

/// Connections that have a session.
async fn count_sessions(server: &Server) -> usize {
    let listed = zookeeper::send_word(server.addr(), "cons").await.expect("a list");
    listed.lines().filter(|line| line.contains("sid=")).count()
}

/// One process holds a hundred locks with a hundred TTLs, on a server that allows sixty
/// connections: a few sessions serve them all, and unused ones are closed.
#[tokio::test]
async fn a_hundred_ttls_share_few_sessions() {
    let server = ZooKeeper::new().setting("maxClientCnxns", "60").start().await.expect("a server");
    for rising in [true, false] {
        let clock = ManualClock::running();
        let url = format!("zookeeper://{}/s-{rising}", server.addr());
        let locks = Locks::builder().ttl(LONG_TTL).clock(clock.clock()).open(&url).await.expect("a client");
        let mut guards = Vec::new();
        for number in 0..100u64 {
            let step = if rising { number } else { 99 - number };
            let ttl = LONG_TTL + Duration::from_secs(step);
            let guard =
                locks.mutex(format!("lock-{number}")).ttl(ttl).timeout(TEST_TIMEOUT).lock().await.expect("a lock");
            assert!(guard.remaining() <= ttl, "a dead holder's lock is free within its TTL");
            guards.push(guard);
        }
        let open = count_sessions(&server).await;
        assert!(open <= 8, "{open} sessions for 100 TTLs, rising: {rising}");
        for guard in guards {
            let _ = guard.release().await.expect("a release");
        }
        eventually(TEST_TIMEOUT, || async {
            clock.advance(Duration::from_secs(60));
            let open = count_sessions(&server).await;
            if open == 1 { Ok(()) } else { Err(format!("{open} sessions without a held lock")) }
        })
        .await;
        // The next lock has a session all the same.
        assert!(locks.mutex("next").lock().await.expect("a lock").is_held());
        locks.close().await.expect("a closed client");
        eventually(TEST_TIMEOUT, || async {
            let open = count_sessions(&server).await;
            if open == 0 { Ok(()) } else { Err(format!("{open} sessions of a closed client")) }
        })
        .await;
    }
}
