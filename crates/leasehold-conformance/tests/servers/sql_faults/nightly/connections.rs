//! Connections that become unresponsive, and waits longer than the statement timeout.

use std::time::Duration;

use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::{eventually, mariadb};

use super::assert_stay_held;
use crate::sql_faults::fixture::{BOTH, DatabaseKind, Fixture, LASTING, acquire};

/// All idle connections become unresponsive at once: renewals do not try them one after another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_survives_unresponsive_connections() {
    let ttl = Duration::from_secs(15);
    for kind in BOTH {
        let fixture = Fixture::new(kind).await;
        let (locks, proxy) = fixture.open_through_proxy(ttl).await;
        let mut others = tokio::task::JoinSet::new();
        for name in 0..8 {
            let locks = locks.clone();
            others.spawn(async move { acquire(&locks, &format!("other-{name}")).await });
        }
        let others = others.join_all().await;
        let guard = acquire(&locks, "a").await;
        futures_util::future::join_all(others.into_iter().map(leasehold::Guard::release)).await;
        let before = proxy.counts().open;
        assert!(before > 4, "{kind:?}: {before} connections");
        proxy.silence_half(true);
        proxy.silence_half(false);
        assert_stay_held(&[guard], ttl * 2).await;
    }
}

/// The server's statement timeout does not end a wait for a wakeup lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_for_a_wakeup_lock_outlasts_the_statement_timeout() {
    let server = mariadb::MariaDb::new().setting("max_statement_time", "1").start().await.expect("a server");
    let fixture = Fixture::on_server(DatabaseKind::MariaDb, server);
    let (one, two) = (fixture.open_locks(LASTING).await, fixture.open_locks(LASTING).await);
    let guard = acquire(&one, "a").await;
    let waiting = tokio::spawn(async move { acquire(&two, "a").await });
    eventually(TEST_TIMEOUT, || async {
        let sql = "SELECT MAX(time_ms) FROM information_schema.processlist \
             WHERE info LIKE '%GET_LOCK%' AND command <> 'Sleep' AND id <> CONNECTION_ID()";
        let longest = fixture.query_as_admin(sql).await[0][0].as_ref().and_then(|time| time.parse::<f64>().ok());
        if longest.is_some_and(|time| time > 2500.0) { Ok(()) } else { Err(format!("{longest:?} ms")) }
    })
    .await;
    let _ = guard.release().await.expect("a release");
    assert!(waiting.await.expect("no panic").is_held());
}
