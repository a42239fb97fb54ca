//! Records, where the table, the line or the rights fail.

use leasehold::{ErrorKind, Locks, Records};

use super::fixture::{BOTH, DatabaseKind, Fixture, LASTING, acquire, open_locks};

pub(super) fn open_records(locks: &Locks) -> Records {
    locks.records().expect("records")
}

/// Adds one to a number.
pub(super) async fn increment(records: &Records, name: &str) -> String {
    let add = |value: &str, _| Some((value.parse().unwrap_or(0) + 1).to_string());
    records.update(name, add).await.expect("an update").value
}

/// Without rights on their table, locks work, and whoever asks for a record is told what to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_rights_on_the_records_table_only_locks_work() {
    for kind in BOTH {
        let site = Fixture::new(kind).await;
        let may = "SELECT, INSERT, UPDATE";
        // Users are the whole server's.
        let (poor, table) = (format!("poor_{}", site.database.database), site.table());
        let user = match kind {
            DatabaseKind::MariaDb => format!("{poor}@'%'"),
            DatabaseKind::Postgres => poor.clone(),
        };
        site.query_as_admin(&match kind {
            DatabaseKind::MariaDb => format!("CREATE USER {user} IDENTIFIED BY 'password'"),
            DatabaseKind::Postgres => format!("CREATE USER {user} PASSWORD 'password'"),
        })
        .await;
        let url = site.url().replace("leasehold:", &format!("{poor}:"));
        let owner = site.open_locks(LASTING).await;
        site.query_as_admin(&format!("GRANT {may} ON {table} TO {user}")).await;
        let poor = open_locks(&url, LASTING).await;
        drop(acquire(&poor, "a").await);
        let error = open_records(&poor).get("a").await.expect_err("no rights");
        assert_eq!(error.kind(), ErrorKind::Denied, "{kind:?}: {error}");
        assert!(error.to_string().contains("leasehold engines --ddl"), "{kind:?}: {error}");
        site.query_as_admin(&format!("GRANT {may} ON {table}_records TO {user}")).await;
        assert_eq!(increment(&open_records(&poor), "a").await, "1", "{kind:?}: from now on");
        assert_eq!(increment(&open_records(&owner), "a").await, "2", "{kind:?}");
    }
}

/// A table that is dropped is made anew, and versions go on from the clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_records_table_is_created_again() {
    for kind in BOTH {
        let site = Fixture::new(kind).await;
        let records = open_records(&site.open_locks(LASTING).await);
        let made = records.compare_and_set("a", 0, "x").await.expect("an answer").expect("none was there");
        site.query_as_admin(&format!("DROP TABLE {}_records", site.table())).await;
        assert_eq!(records.get("a").await.expect("an answer").version, 0, "{kind:?}");
        let again = records.compare_and_set("a", 0, "x").await.expect("an answer").expect("none is there");
        assert!(again.version > made.version, "{kind:?}");
    }
}

/// Connections that end while they are idle cost a reader nothing, and a writer one more try.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_idle_connections_are_replaced() {
    for kind in BOTH {
        let site = Fixture::new(kind).await;
        let records = open_records(&site.open_locks(LASTING).await);
        assert_eq!(increment(&records, "a").await, "1", "{kind:?}");
        site.kill_connections().await;
        assert_eq!(records.get("a").await.expect("a record").value, "1", "{kind:?}");
        site.kill_connections().await;
        assert_eq!(increment(&records, "a").await, "2", "{kind:?}: the read comes first, and finds it");
    }
}
