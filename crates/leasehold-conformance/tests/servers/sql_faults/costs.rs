//! Statements by the server's own count: one to acquire a free lock, one to release it, and nothing
//! that a pooler or a cluster cannot do.

use std::time::Duration;

use leasehold::Locks;
use leasehold::clock::ManualClock;
use leasehold_conformance::test_context::{TEST_TIMEOUT, patient_url};
use leasehold_testbed::postgres::{PgBouncer, PoolMode, Postgres};
use leasehold_testbed::{Server, eventually, mariadb};

use crate::sql_faults::fixture::{DatabaseKind, Fixture, LASTING, acquire, open_locks, until_queued};

/// The number of acquire and release cycles.
const CYCLES: u64 = 40;

async fn run_cycles(locks: &Locks, count: u64) {
    for _ in 0..count {
        let _ = acquire(locks, "a").await.release().await.expect("a release");
    }
}

/// A client with a stopped clock.
async fn open_with_stopped_clock(url: &str, manual_clock: &ManualClock) -> Locks {
    Locks::builder().ttl(LASTING).clock(manual_clock.clock()).open(&patient_url(url)).await.expect("a client")
}

/// Without notifications, a client detects force releases by its rows' versions: two statements
/// check all of 300 locks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn polling_300_rows_takes_two_statements() {
    let (server, manual_clock) = (mariadb::start().await.expect("a server"), ManualClock::new());
    let locks = open_with_stopped_clock(&format!("{}?wake=poll", server.url()), &manual_clock).await;
    let mut held = Vec::new();
    for number in 0..300 {
        held.push(acquire(&locks, &format!("lock {number}")).await);
    }
    let before = count_statements(&server).await;
    let (mut polls, mut own_queries) = (0, 0);
    let seen = eventually(TEST_TIMEOUT, || {
        manual_clock.advance(Duration::from_millis(200));
        (polls, own_queries) = (polls + 1, own_queries + 1);
        let own_queries = own_queries;
        let server = &server;
        async move {
            // The statistics query itself is counted as well.
            let seen = count_statements(server).await - before - own_queries;
            if seen >= 6 { Ok(seen) } else { Err(format!("{seen} so far")) }
        }
    })
    .await;
    assert!(seen <= 2 * polls, "{seen} statements in {polls} polls");
    drop(held);
}

/// MariaDB's count of these statements.
async fn status_count(server: &Server, which: &str) -> u64 {
    let sql = format!(
        "SELECT CAST(SUM(variable_value) AS UNSIGNED) FROM information_schema.global_status WHERE variable_name {which}"
    );
    let rows = mariadb::query(server, &sql).await.expect("an answer");
    rows[0][0].as_ref().expect("a value").parse().expect("a number")
}

/// All statements of any kind; a prepared one counts as its own kind.
async fn count_statements(server: &Server) -> u64 {
    status_count(
        server,
        "LIKE 'Com\\_%' AND variable_name NOT LIKE 'Com\\_stmt%' AND variable_name NOT LIKE 'Com\\_admin%'",
    )
    .await
}

/// MariaDB: one insert per acquire and one update per release. Without wakeup locks, which only
/// long-lived claims get, there are no other statements.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cycle_takes_two_statements_on_mariadb() {
    let server = mariadb::start().await.expect("a server");
    let plain = open_locks(&server.url(), LASTING).await;
    run_cycles(&plain, 1).await;
    let before = (status_count(&server, "= 'Com_insert'").await, status_count(&server, "= 'Com_update'").await);
    run_cycles(&plain, CYCLES).await;
    let after = (status_count(&server, "= 'Com_insert'").await, status_count(&server, "= 'Com_update'").await);
    assert_eq!((after.0 - before.0, after.1 - before.1), (CYCLES, CYCLES));
    drop(plain);
    eventually(TEST_TIMEOUT, || async {
        let left = mariadb::connections(&server).await.expect("a list");
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    // With a stopped clock the client does not poll its rows.
    let polling = open_with_stopped_clock(&format!("{}?wake=poll", server.url()), &ManualClock::new()).await;
    run_cycles(&polling, 1).await;
    let before = count_statements(&server).await;
    run_cycles(&polling, CYCLES).await;
    // The statistics query itself is counted as well.
    assert_eq!(count_statements(&server).await - before - 1, 2 * CYCLES);
}

/// PostgreSQL: every statement is a transaction. A client with `CYCLES` more cycles has two more
/// transactions for each. (Without the listening connection, whose start renews all held locks.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cycle_takes_two_statements_on_postgres() {
    let server = Postgres::new().setting("autovacuum", "off").start().await.expect("a server");
    // Connect to another database, whose statements do not count.
    let elsewhere = server.url().replace("leasehold:", "postgres:").replace("/test", "/postgres");
    let (raw, connection) = tokio_postgres::connect(&elsewhere, tokio_postgres::NoTls).await.expect("a connection");
    tokio::spawn(connection);
    let number = async |sql: &str| raw.query_one(sql, &[]).await.expect("a row").get::<_, i64>(0);
    let client = async |count: u64| {
        let locks = open_with_stopped_clock(&format!("{}?wake=poll", server.url()), &ManualClock::new()).await;
        run_cycles(&locks, count).await;
        locks.close().await.expect("a closed client");
        // A session may report its statistics only when it ends.
        let left = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'test'";
        eventually(TEST_TIMEOUT, || async { if number(left).await == 0 { Ok(()) } else { Err("sessions remain") } })
            .await;
        number("SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = 'test'").await
    };
    // The first client creates the table.
    let before = client(1).await;
    let once = client(1).await - before;
    let often = client(1 + CYCLES).await - before - once;
    assert_eq!(often - once, 2 * CYCLES as i64);
}

/// A waiter is served. A plain client sends `LISTEN`; clients behind a transaction pooler and
/// polling clients do not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_client_listens_where_it_must_not() {
    let fixture = Fixture::on_own_server(DatabaseKind::Postgres).await;
    let pooler = PgBouncer::new(fixture.server(), PoolMode::Transaction).pool_size(3).start().await.expect("a pooler");
    let listens = async || {
        let all = fixture.connections().await;
        all.iter().any(|one| one.query.as_ref().is_some_and(|query| query.contains("LISTEN")))
    };
    for url in [
        format!("{}?pooler=transaction", pooler.url()),
        format!("{}?pooler=transaction", fixture.url()),
        format!("{}?wake=poll", fixture.url()),
    ] {
        let (one, two) = (open_locks(&url, LASTING).await, open_locks(&url, LASTING).await);
        let guard = acquire(&one, "a").await;
        let waiting = tokio::spawn(async move { acquire(&two, "a").await });
        until_queued(&one, "a", 1).await;
        assert!(!listens().await, "{url}");
        let _ = guard.release().await.expect("a release");
        assert!(waiting.await.expect("no panic").is_held());
        assert!(!listens().await, "{url}");
    }
    let _plain = fixture.open_locks(LASTING).await;
    eventually(TEST_TIMEOUT, || async { if listens().await { Ok(()) } else { Err("a plain client should listen") } })
        .await;
}

/// Counts `GET_LOCK` calls while one client waits for another and is served.
pub(super) async fn count_wakeup_locks(server: &Server, options: &str) -> u64 {
    let query = async |sql: &str| mariadb::query(server, sql).await.expect("an answer");
    query("SET GLOBAL log_output = 'TABLE'").await;
    query("TRUNCATE TABLE mysql.general_log").await;
    let url = format!("{}{options}", server.url());
    let (one, two) = (open_locks(&url, LASTING).await, open_locks(&url, LASTING).await);
    query("SET GLOBAL general_log = ON").await;
    let guard = acquire(&one, "a").await;
    let waiting = tokio::spawn(async move { acquire(&two, "a").await });
    until_queued(&one, "a", 1).await;
    // Wait until the waiter has begun to poll or to wait for its wakeup lock.
    let sql = "SELECT count(*) FROM mysql.general_log WHERE argument LIKE";
    let count = async |like: &str| {
        let rows = query(&format!("{sql} '{like}' AND argument NOT LIKE '%general_log%'")).await;
        rows[0][0].as_ref().expect("a value").parse::<u64>().expect("a number")
    };
    let polls = count("SELECT%FROM%leasehold%").await;
    eventually(TEST_TIMEOUT, || async {
        let begun = count("SELECT%FROM%leasehold%").await > polls + 3 || count("%GET_LOCK%").await > 1;
        if begun { Ok(()) } else { Err("the waiter has not begun") }
    })
    .await;
    let _ = guard.release().await.expect("a release");
    assert!(waiting.await.expect("no panic").is_held());
    query("SET GLOBAL general_log = OFF").await;
    count("%GET_LOCK%").await
}

/// Plain clients use wakeup locks; polling clients do not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_client_uses_wakeup_locks_where_it_must_not() {
    let server = mariadb::start().await.expect("a server");
    assert!(count_wakeup_locks(&server, "").await > 0, "a plain client uses wakeup locks");
    assert_eq!(count_wakeup_locks(&server, "?wake=poll").await, 0);
}
