//! What others do to our table.

use std::time::Duration;

use leasehold::ErrorKind;
use leasehold_conformance::world::SOON;

use crate::site::{BOTH, Kind, LONG, SHORT, Site, is_free, lock};

/// Somebody keeps our row locked in an open transaction: we wait for it, and go on afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_somebody_locked_is_waited_for() {
    for kind in BOTH {
        let site = Site::new(kind).await;
        let locks = site.locks(LONG).await;
        let _ = lock(&locks, "a").await.release().await.expect("a release");
        let sql = "SELECT * FROM leasehold WHERE name = 'a' FOR UPDATE";
        let waiting = {
            let taken = |locks: leasehold::Locks| tokio::spawn(async move { lock(&locks, "a").await });
            match kind {
                Kind::MariaDb => {
                    use mysql_async::prelude::Queryable;
                    let opts = mysql_async::Opts::from_url(&site.url()).expect("a URL");
                    let mut hand = mysql_async::Conn::new(opts).await.expect("a connection");
                    hand.query_drop("BEGIN").await.expect("a transaction");
                    let _: Vec<mysql_async::Row> = hand.query(sql).await.expect("a row");
                    let waiting = taken(locks.clone());
                    blocked(&site).await;
                    hand.query_drop("COMMIT").await.expect("a commit");
                    waiting
                }
                Kind::Postgres => {
                    let (hand, line) =
                        tokio_postgres::connect(&site.url(), tokio_postgres::NoTls).await.expect("a connection");
                    tokio::spawn(line);
                    hand.batch_execute(&format!("BEGIN; {sql}")).await.expect("a transaction");
                    let waiting = taken(locks.clone());
                    blocked(&site).await;
                    hand.batch_execute("COMMIT").await.expect("a commit");
                    waiting
                }
            }
        };
        assert!(waiting.await.expect("no panic").is_held(), "{kind:?}");
    }
}

/// Waits until a statement of ours is under way and does not end.
async fn blocked(site: &Site) {
    leasehold_testbed::eventually(SOON, || async {
        let all = site.connections().await;
        let stuck = |query: &String| query.contains("INSERT INTO") && query.contains("leasehold");
        if all.iter().any(|one| one.query.as_ref().is_some_and(stuck)) { Ok(()) } else { Err(format!("{all:?}")) }
    })
    .await;
}

/// A table that is dropped is made anew; whoever held knows it before anybody else is let in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_table_is_made_anew() {
    for kind in BOTH {
        let site = Site::new(kind).await;
        let (one, two) = (site.locks(SHORT).await, site.locks(SHORT).await);
        let guard = lock(&one, "a").await;
        let token = guard.token();
        site.ask(&format!("DROP TABLE {}", site.table())).await;
        let lost = tokio::time::timeout(SOON, guard.lost()).await;
        assert!(lost.is_ok(), "{kind:?}: the next renewal finds nothing");
        assert!(lock(&two, "a").await.token() > token, "{kind:?}: tokens rise even so");
    }
}

/// A row that cannot be read is an error that names it, and hides no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_row_says_so() {
    for kind in BOTH {
        let site = Site::new(kind).await;
        let locks = site.locks(LONG).await;
        let (_a, _b) = (lock(&locks, "a").await, lock(&locks, "b").await);
        site.ask(&format!("UPDATE {} SET state = '{{' WHERE name = 'a'", site.table())).await;
        let other = site.locks(LONG).await;
        let error = other.mutex("a").try_lock().await.expect_err("damaged");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{kind:?}: {error}");
        assert!(error.to_string().contains("\"a\""), "{kind:?}: {error}");
        let views = other.list("").await.expect("a list");
        assert_eq!(views.len(), 2, "{kind:?}");
        assert!(views[0].trouble.is_some() && views[1].trouble.is_none(), "{kind:?}: {views:?}");
    }
}

/// A holder whose row is deleted by hand learns it, and lets go in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_row_is_a_lost_lock() {
    for kind in BOTH {
        let site = Site::new(kind).await;
        let (one, two) = (site.locks(SHORT).await, site.locks(LONG).await);
        let guard = lock(&one, "a").await;
        site.ask(&format!("DELETE FROM {}", site.table())).await;
        tokio::time::timeout(Duration::from_secs(10), guard.lost()).await.expect("the next renewal finds nothing");
        assert!(is_free(&two, "a").await, "{kind:?}");
    }
}
