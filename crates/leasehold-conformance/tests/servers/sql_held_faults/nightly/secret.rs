//! The same over TLS, where even the end of a statement is asked for over a line of its own.

use leasehold_conformance::world::SOON;
use leasehold_testbed::eventually;
use leasehold_testbed::mariadb::MariaDb;
use leasehold_testbed::postgres::Postgres;

use crate::sql_held_faults::site::{Kind, LASTING, Site, lock, open, waits};

/// Taken, waited for, left and given back.
async fn over_tls(kind: Kind) {
    let (server, ca) = match kind {
        Kind::MariaDb => {
            let tls = MariaDb::new().tls().start().await.expect("a server");
            (tls.server, tls.ca)
        }
        Kind::Postgres => {
            let tls = Postgres::new().tls().start().await.expect("a server");
            (tls.server, tls.ca)
        }
    };
    for table in Site::of(kind, server).tables() {
        // Who cannot end its statement cuts its line after `connect-timeout`: not within this test.
        let url = format!("{}&tls=on&ca={}&connect-timeout=600s", table.url(), ca.display());
        let (locks, other) = (open(&url, LASTING).await, open(&url, LASTING).await);
        let guard = locks.mutex("a").lock().await.expect("a lock");
        let waiter = tokio::spawn({
            let other = other.clone();
            async move { lock(&other, "a").await.token() }
        });
        table.site.until("waits", waits).await;
        waiter.abort();
        eventually(SOON, || async {
            let left = table.site.connections().await.into_iter().find(waits);
            left.map_or(Ok(()), |connection| Err(format!("{connection:?} still waits")))
        })
        .await;
        assert!(guard.is_held() && waiter.await.is_err_and(|ended| ended.is_cancelled()));
        let token = guard.token();
        let _ = guard.release().await.expect("a release");
        let next = lock(&other, "a").await;
        assert!(next.token() > token, "{}", table.technique);
    }
}

crate::sql_held_faults::on_both! { over_tls }
