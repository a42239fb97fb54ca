//! The lease table behind a pooler, and on a read-only server.

use std::time::Duration;

use leasehold::clock::ManualClock;
use leasehold::{ErrorKind, Locks};
use leasehold_conformance::test_context::patient_url;
use leasehold_testbed::postgres::{PgBouncer, PoolMode};
use leasehold_testbed::{Proxy, mariadb, postgres};

use crate::sql_faults::fixture::{LASTING, ShiftedClock, acquire, is_lock_free, open_locks, until_queued};

/// Locks work by polling through a pooler that may give each transaction another session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_work_through_a_transaction_pooler() {
    let server = postgres::start().await.expect("a server");
    let pooler = PgBouncer::new(&server, PoolMode::Transaction).pool_size(3).start().await.expect("a pooler");
    let url = format!("{}?pooler=transaction", pooler.url());
    let ahead = ShiftedClock::new();
    let (one, two) = (ahead.open_locks(&url, LASTING).await, open_locks(&url, LASTING).await);
    let mut last = acquire(&one, "a").await;
    for round in 0..10 {
        let (from, to) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
        let waiter = to.clone();
        let waiting = tokio::spawn(async move { acquire(&waiter, "a").await });
        until_queued(from, "a", 1).await;
        let token = last.token();
        let _ = last.release().await.expect("a release");
        last = waiting.await.expect("no panic");
        assert!(last.token() > token, "round {round}");
    }
    // Held over renewals: after ten hand-offs, the holder is the client whose clock is moved.
    ahead.renew_now(&[&last], LASTING).await;
    assert!(!is_lock_free(&two, "a").await && !is_lock_free(&one, "a").await);
}

/// A server marked read-only is respected even by users who could still write: a user with every
/// privilege on MariaDB, and any user on PostgreSQL, who may set `default_transaction_read_only`.
/// No technique writes there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_marked_read_only_refuses_locks_to_every_user() {
    let my = mariadb::start().await.expect("a server");
    for sql in ["CREATE USER boss@'%' IDENTIFIED BY 'password'", "GRANT ALL ON *.* TO boss@'%'"] {
        mariadb::query(&my, sql).await.expect("an answer");
    }
    let pg = postgres::start().await.expect("a server");
    let urls = [my.url().replace("leasehold:", "boss:"), pg.url()];
    let marks = ["SET GLOBAL read_only = ON", "ALTER DATABASE test SET default_transaction_read_only = on"];
    for url in &urls {
        for technique in ["row", "for-update", "session"] {
            // The tables exist: only the lock is refused.
            let locks = open_locks(&format!("{url}?technique={technique}"), LASTING).await;
            let _ = acquire(&locks, "a").await.release().await.expect("a release");
        }
    }
    mariadb::query(&my, marks[0]).await.expect("an answer");
    postgres::query(&pg, marks[1]).await.expect("an answer");
    mariadb::query(&my, "INSERT INTO leasehold_rows VALUES ('boss')")
        .await
        .expect("a user with every privilege may write");
    for url in &urls {
        for technique in ["row", "for-update", "session"] {
            let url = format!("{url}?technique={technique}");
            let error = match Locks::open(&url).await {
                Ok(locks) => locks.mutex("a").try_lock().await.expect_err("the server is read-only"),
                Err(error) => error,
            };
            assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true), "{url}: {error}");
            assert!(error.to_string().contains("takes no writes"), "{url}: {error}");
        }
    }
}

/// A read-only server closes each connection after its error. Calls that follow at once do not open
/// a new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_server_gets_few_connections() {
    let server = mariadb::start().await.expect("a server");
    let proxy = Proxy::start(server.addr()).await.expect("a proxy");
    let url = server.url().replace(&server.addr().to_string(), &proxy.addr().to_string());
    // The client's clock is stopped, so no back-off ends, however slow the machine is.
    let manual_clock = ManualClock::new();
    let locks =
        Locks::builder().ttl(LASTING).clock(manual_clock.clock()).open(&patient_url(&url)).await.expect("locks");
    let _ = acquire(&locks, "a").await.release().await.expect("a release");
    mariadb::query(&server, "SET GLOBAL read_only = ON").await.expect("an answer");
    let before = proxy.counts().accepted;
    for _ in 0..50 {
        let error = locks.mutex("a").try_lock().await.expect_err("the server is read-only");
        assert!(error.to_string().contains("takes no writes"), "{error}");
    }
    let opened = proxy.counts().accepted - before;
    assert!(opened <= 2, "{opened} connections for 50 calls");
    mariadb::query(&server, "SET GLOBAL read_only = OFF").await.expect("an answer");
    manual_clock.advance(Duration::from_secs(1));
    let _ = acquire(&locks, "a").await.release().await.expect("a release");
}
