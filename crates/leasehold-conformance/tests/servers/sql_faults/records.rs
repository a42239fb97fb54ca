//! Records with missing tables, connections or privileges.

use leasehold::{ErrorKind, Locks, Records};

use super::fixture::{BOTH, DatabaseKind, Fixture, LASTING, acquire, open_locks};

pub(super) fn open_records(locks: &Locks) -> Records {
    locks.records().expect("records")
}

/// Increments a number.
pub(super) async fn increment(records: &Records, name: &str) -> String {
    let add = |value: &str, _| Some((value.parse().unwrap_or(0) + 1).to_string());
    records.update(name, add).await.expect("an update").value
}

/// Without privileges on the records table, locks work, and a record call fails with an error that
/// says what to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_rights_on_the_records_table_only_locks_work() {
    for kind in BOTH {
        let fixture = Fixture::new(kind).await;
        let may = "SELECT, INSERT, UPDATE";
        // Users are global to the server.
        let (poor, table) = (format!("poor_{}", fixture.database.database), fixture.table());
        let user = match kind {
            DatabaseKind::MariaDb => format!("{poor}@'%'"),
            DatabaseKind::Postgres => poor.clone(),
        };
        fixture
            .query_as_admin(&match kind {
                DatabaseKind::MariaDb => format!("CREATE USER {user} IDENTIFIED BY 'password'"),
                DatabaseKind::Postgres => format!("CREATE USER {user} PASSWORD 'password'"),
            })
            .await;
        let url = fixture.url().replace("leasehold:", &format!("{poor}:"));
        let owner = fixture.open_locks(LASTING).await;
        fixture.query_as_admin(&format!("GRANT {may} ON {table} TO {user}")).await;
        let poor = open_locks(&url, LASTING).await;
        drop(acquire(&poor, "a").await);
        let error = open_records(&poor).get("a").await.expect_err("no rights");
        assert_eq!(error.kind(), ErrorKind::Denied, "{kind:?}: {error}");
        assert!(error.to_string().contains("leasehold engines --ddl"), "{kind:?}: {error}");
        fixture.query_as_admin(&format!("GRANT {may} ON {table}_records TO {user}")).await;
        assert_eq!(increment(&open_records(&poor), "a").await, "1", "{kind:?}: with the privileges");
        assert_eq!(increment(&open_records(&owner), "a").await, "2", "{kind:?}");
    }
}

/// A dropped table is created again, and versions continue from the clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_records_table_is_created_again() {
    for kind in BOTH {
        let fixture = Fixture::new(kind).await;
        let records = open_records(&fixture.open_locks(LASTING).await);
        let made = records.compare_and_set("a", 0, "x").await.expect("an answer").expect("no record so far");
        fixture.query_as_admin(&format!("DROP TABLE {}_records", fixture.table())).await;
        assert_eq!(records.get("a").await.expect("an answer").version, 0, "{kind:?}");
        let again = records.compare_and_set("a", 0, "x").await.expect("an answer").expect("no record so far");
        assert!(again.version > made.version, "{kind:?}");
    }
}

/// Idle connections that were closed cost a reader nothing and a writer one retry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_idle_connections_are_replaced() {
    for kind in BOTH {
        let fixture = Fixture::new(kind).await;
        let records = open_records(&fixture.open_locks(LASTING).await);
        assert_eq!(increment(&records, "a").await, "1", "{kind:?}");
        fixture.kill_connections().await;
        assert_eq!(records.get("a").await.expect("a record").value, "1", "{kind:?}");
        fixture.kill_connections().await;
        assert_eq!(increment(&records, "a").await, "2", "{kind:?}: the read comes first and reconnects");
    }
}
