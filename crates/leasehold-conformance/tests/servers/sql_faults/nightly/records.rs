//! Records when the clock is set back, and through a pooler.

use leasehold_testbed::WallClock;
use leasehold_testbed::postgres::{self, PgBouncer, PoolMode};

use crate::sql_faults::fixture::{BOTH, Fixture, LASTING, open_locks};
use crate::sql_faults::records::{increment, open_records};

/// The database's clock is set back by an hour: reported times go back, but versions rise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_set_back_repeats_no_version() {
    for kind in BOTH {
        let clock = WallClock::new().expect("a clock");
        let fixture = Fixture::with_clock(kind, &clock).await;
        let records = open_records(&fixture.open_locks(LASTING).await);
        let made = records.compare_and_set("a", 0, "x").await.expect("an answer").expect("no record so far");
        clock.set_offset(-3600).expect("a clock");
        let back = records.get("a").await.expect("a record");
        assert!(
            back.engine_time + std::time::Duration::from_secs(1800) < made.engine_time,
            "{kind:?}: the server's clock: {back:?}"
        );
        let next = records
            .compare_and_set("a", made.version, "y")
            .await
            .expect("an answer")
            .expect("the version is unchanged");
        assert_eq!(next.version, made.version + 1, "{kind:?}");
        let _ =
            records.compare_and_set("a", next.version, "").await.expect("an answer").expect("the version is unchanged");
        let again = records.compare_and_set("a", 0, "z").await.expect("an answer").expect("the record was removed");
        assert!(again.version > next.version, "{kind:?}: {again:?} after {next:?}");
        assert!(records.compare_and_set("a", made.version, "late").await.expect("an answer").is_none(), "{kind:?}");
    }
}

/// Each statement may use another session of the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_through_a_pooler() {
    let server = postgres::start().await.expect("a server");
    let pooler = PgBouncer::new(&server, PoolMode::Transaction).pool_size(3).start().await.expect("a pooler");
    let url = format!("{}?pooler=transaction", pooler.url());
    let mut clients = Vec::new();
    for _ in 0..4 {
        let locks = open_locks(&url, LASTING).await;
        clients.push(tokio::spawn(async move {
            for _ in 0..10 {
                increment(&open_records(&locks), "a").await;
            }
        }));
    }
    for client in clients {
        client.await.expect("a client");
    }
    assert_eq!(open_records(&open_locks(&server.url(), LASTING).await).get("a").await.expect("a record").value, "40");
}
