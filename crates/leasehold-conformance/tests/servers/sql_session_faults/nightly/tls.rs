//! The same over TLS, where even cancelling a statement needs its own connection.

use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::eventually;
use leasehold_testbed::mariadb::MariaDb;
use leasehold_testbed::postgres::Postgres;

use crate::sql_session_faults::fixture::{DatabaseKind, Fixture, LASTING, acquire, is_waiting, open_locks};

/// Acquire, wait, cancel and release.
async fn locks_work_over_tls(kind: DatabaseKind) {
    let (server, ca) = match kind {
        DatabaseKind::MariaDb => {
            let tls = MariaDb::new().tls().start().await.expect("a server");
            (tls.server, tls.ca)
        }
        DatabaseKind::Postgres => {
            let tls = Postgres::new().tls().start().await.expect("a server");
            (tls.server, tls.ca)
        }
    };
    for table in Fixture::on_server(kind, server).techniques() {
        // A client that cannot cancel its statement closes the connection after `connect-timeout`:
        // not within this test.
        let url = format!("{}&tls=on&ca={}&connect-timeout=600s", table.url(), ca.display());
        let (locks, other) = (open_locks(&url, LASTING).await, open_locks(&url, LASTING).await);
        let guard = locks.mutex("a").lock().await.expect("a lock");
        let waiter = tokio::spawn({
            let other = other.clone();
            async move { acquire(&other, "a").await.token() }
        });
        table.fixture.until_connection("waits", is_waiting).await;
        waiter.abort();
        eventually(TEST_TIMEOUT, || async {
            let left = table.fixture.connections().await.into_iter().find(is_waiting);
            left.map_or(Ok(()), |connection| Err(format!("{connection:?} still waits")))
        })
        .await;
        assert!(guard.is_held() && waiter.await.is_err_and(|ended| ended.is_cancelled()));
        let token = guard.token();
        let _ = guard.release().await.expect("a release");
        let next = acquire(&other, "a").await;
        assert!(next.token() > token, "{}", table.technique);
    }
}

crate::sql_session_faults::on_both! { locks_work_over_tls }
