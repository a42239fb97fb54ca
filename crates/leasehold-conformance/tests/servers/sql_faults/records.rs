//! Records, where the table, the line, the rights or the clock fail.

use leasehold::{ErrorKind, Locks, Records};
use leasehold_testbed::WallClock;
use leasehold_testbed::postgres::{self, PgBouncer, PoolMode};

use super::site::{BOTH, Kind, LONG, Site, lock, locks};

fn of(locks: &Locks) -> Records {
    locks.records().expect("records")
}

/// Adds one to a number.
async fn add(records: &Records, name: &str) -> String {
    let add = |value: &str, _| Some((value.parse().unwrap_or(0) + 1).to_string());
    records.update(name, add).await.expect("an update").value
}

/// Without rights on their table, locks work, and whoever asks for a record is told what to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_rights_there_are_locks_and_no_records() {
    for kind in BOTH {
        let site = Site::new(kind).await;
        let may = "SELECT, INSERT, UPDATE";
        let (user, table) = match kind {
            Kind::MariaDb => ("poor@'%'", "test.leasehold"),
            Kind::Postgres => ("poor", "leasehold"),
        };
        site.ask(&match kind {
            Kind::MariaDb => format!("CREATE USER {user} IDENTIFIED BY 'password'"),
            Kind::Postgres => format!("CREATE USER {user} PASSWORD 'password'"),
        })
        .await;
        let url = site.url().replace("leasehold:", "poor:");
        let owner = site.locks(LONG).await;
        site.ask(&format!("GRANT {may} ON {table} TO {user}")).await;
        let poor = locks(&url, LONG).await;
        drop(lock(&poor, "a").await);
        let error = of(&poor).recall("a").await.expect_err("no rights");
        assert_eq!(error.kind(), ErrorKind::Denied, "{kind:?}: {error}");
        assert!(error.to_string().contains("leasehold engines --ddl"), "{kind:?}: {error}");
        site.ask(&format!("GRANT {may} ON {table}_records TO {user}")).await;
        assert_eq!(add(&of(&poor), "a").await, "1", "{kind:?}: from now on");
        assert_eq!(add(&of(&owner), "a").await, "2", "{kind:?}");
    }
}

/// A table that is dropped is made anew, and versions go on from the clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_table_of_records_is_made_anew() {
    for kind in BOTH {
        let site = Site::new(kind).await;
        let records = of(&site.locks(LONG).await);
        let made = records.record("a", 0, "x").await.expect("an answer").expect("none was there");
        site.ask(&format!("DROP TABLE {}_records", site.table())).await;
        assert_eq!(records.recall("a").await.expect("an answer").version, 0, "{kind:?}");
        let again = records.record("a", 0, "x").await.expect("an answer").expect("none is there");
        assert!(again.version > made.version, "{kind:?}");
    }
}

/// The database's clock is set back by an hour: what is read goes back, and versions rise all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_set_back_repeats_no_version() {
    for kind in BOTH {
        let clock = WallClock::new().expect("a clock");
        let site = Site::with_clock(kind, &clock).await;
        let records = of(&site.locks(LONG).await);
        let made = records.record("a", 0, "x").await.expect("an answer").expect("none was there");
        clock.move_to(-3600).expect("a clock");
        let back = records.recall("a").await.expect("a record");
        assert!(back.now + std::time::Duration::from_secs(1800) < made.now, "{kind:?}: the server's clock: {back:?}");
        let next = records.record("a", made.version, "y").await.expect("an answer").expect("it is as it was");
        assert_eq!(next.version, made.version + 1, "{kind:?}");
        let _ = records.record("a", next.version, "").await.expect("an answer").expect("it is as it was");
        let again = records.record("a", 0, "z").await.expect("an answer").expect("it was removed");
        assert!(again.version > next.version, "{kind:?}: {again:?} after {next:?}");
        assert!(records.record("a", made.version, "late").await.expect("an answer").is_none(), "{kind:?}");
    }
}

/// Connections that end while they are idle cost a reader nothing, and a writer one more try.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ended_connections_are_replaced() {
    for kind in BOTH {
        let site = Site::new(kind).await;
        let records = of(&site.locks(LONG).await);
        assert_eq!(add(&records, "a").await, "1", "{kind:?}");
        site.kill_connections().await;
        assert_eq!(records.recall("a").await.expect("a record").value, "1", "{kind:?}");
        site.kill_connections().await;
        assert_eq!(add(&records, "a").await, "2", "{kind:?}: the read comes first, and finds it");
    }
}

/// Each statement may go to another session of the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_through_a_pooler() {
    let server = postgres::start().await.expect("a server");
    let pooler = PgBouncer::new(&server, PoolMode::Transaction).pool_size(3).start().await.expect("a pooler");
    let url = format!("{}?pooler=transaction", pooler.url());
    let mut clients = Vec::new();
    for _ in 0..4 {
        let locks = locks(&url, LONG).await;
        clients.push(tokio::spawn(async move {
            for _ in 0..10 {
                add(&of(&locks), "a").await;
            }
        }));
    }
    for client in clients {
        client.await.expect("a client");
    }
    assert_eq!(of(&locks(&server.url(), LONG).await).recall("a").await.expect("a record").value, "40");
}
