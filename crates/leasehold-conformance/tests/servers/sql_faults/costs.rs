//! What the server is asked, by its own count: one statement to take a free lock and one to give it back, and nothing that a pooler or a cluster cannot do.

use std::time::Duration;

use leasehold::Locks;
use leasehold::clock::ManualClock;
use leasehold_conformance::test_context::{TEST_TIMEOUT, patient_url};
use leasehold_testbed::postgres::{PgBouncer, PoolMode, Postgres};
use leasehold_testbed::{Server, eventually, mariadb};

use crate::sql_faults::fixture::{DatabaseKind, Fixture, LASTING, acquire, open_locks, until_queued};

/// How many times a lock is taken and given back.
const CYCLES: u64 = 40;

async fn run_cycles(locks: &Locks, count: u64) {
    for _ in 0..count {
        let _ = acquire(locks, "a").await.release().await.expect("a release");
    }
}

/// A client for which no time passes.
async fn open_with_stopped_clock(url: &str, hand: &ManualClock) -> Locks {
    Locks::builder().ttl(LASTING).clock(hand.clock()).open(&patient_url(url)).await.expect("a client")
}

/// Where no messages are sent, a client sees evictions by the versions of its rows: all of them with two statements, for 300 locks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn polling_300_rows_takes_two_statements() {
    let (server, hand) = (mariadb::start().await.expect("a server"), ManualClock::new());
    let locks = open_with_stopped_clock(&format!("{}?wake=poll", server.url()), &hand).await;
    let mut held = Vec::new();
    for number in 0..300 {
        held.push(acquire(&locks, &format!("lock {number}")).await);
    }
    let before = count_statements(&server).await;
    let (mut moved, mut asked) = (0, 0);
    let seen = eventually(TEST_TIMEOUT, || {
        hand.advance(Duration::from_millis(200));
        (moved, asked) = (moved + 1, asked + 1);
        let asked = asked;
        let server = &server;
        async move {
            // To ask is counted, too.
            let seen = count_statements(server).await - before - asked;
            if seen >= 6 { Ok(seen) } else { Err(format!("{seen} so far")) }
        }
    })
    .await;
    assert!(seen <= 2 * moved, "{seen} statements in {moved} looks");
    drop(held);
}

/// What MariaDB has counted of these.
async fn status_count(server: &Server, which: &str) -> u64 {
    let sql = format!(
        "SELECT CAST(SUM(variable_value) AS UNSIGNED) FROM information_schema.global_status WHERE variable_name {which}"
    );
    let rows = mariadb::query(server, &sql).await.expect("an answer");
    rows[0][0].as_ref().expect("a value").parse().expect("a number")
}

/// All statements of whatever kind, a prepared one as what it is.
async fn count_statements(server: &Server) -> u64 {
    status_count(
        server,
        "LIKE 'Com\\_%' AND variable_name NOT LIKE 'Com\\_stmt%' AND variable_name NOT LIKE 'Com\\_admin%'",
    )
    .await
}

/// MariaDB: as many inserts as takes, as many updates as releases; and without bells, which a claim gets that is there for long, nothing else.
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
    // On a clock that stands still, nobody looks whether others have written.
    let silent = open_with_stopped_clock(&format!("{}?wake=poll", server.url()), &ManualClock::new()).await;
    run_cycles(&silent, 1).await;
    let before = count_statements(&server).await;
    run_cycles(&silent, CYCLES).await;
    // To ask is counted, too.
    assert_eq!(count_statements(&server).await - before - 1, 2 * CYCLES);
}

/// PostgreSQL: every statement is a transaction. A client that takes its lock so much oftener than another makes two more each time. (Without the
/// connection that listens: what is held when it begins to is renewed at once.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cycle_takes_two_statements_on_postgres() {
    let server = Postgres::new().setting("autovacuum", "off").start().await.expect("a server");
    // From another database: what is asked there does not count.
    let elsewhere = server.url().replace("leasehold:", "postgres:").replace("/test", "/postgres");
    let (hand, line) = tokio_postgres::connect(&elsewhere, tokio_postgres::NoTls).await.expect("a connection");
    tokio::spawn(line);
    let number = async |sql: &str| hand.query_one(sql, &[]).await.expect("a row").get::<_, i64>(0);
    let client = async |count: u64| {
        let locks = open_with_stopped_clock(&format!("{}?wake=poll", server.url()), &ManualClock::new()).await;
        run_cycles(&locks, count).await;
        locks.close().await.expect("an end");
        // A session tells what it did at its end, if not before.
        let left = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'test'";
        eventually(TEST_TIMEOUT, || async { if number(left).await == 0 { Ok(()) } else { Err("not over") } }).await;
        number("SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = 'test'").await
    };
    // The first makes the table.
    let before = client(1).await;
    let once = client(1).await - before;
    let often = client(1 + CYCLES).await - before - once;
    assert_eq!(often - once, 2 * CYCLES as i64);
}

/// Somebody waits, and is let in: `LISTEN` is sent by a plain client, and by none that must not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_client_listens_where_it_must_not() {
    let site = Fixture::on_own_server(DatabaseKind::Postgres).await;
    let pooler = PgBouncer::new(site.server(), PoolMode::Transaction).pool_size(3).start().await.expect("a pooler");
    let listens = async || {
        let all = site.connections().await;
        all.iter().any(|one| one.query.as_ref().is_some_and(|query| query.contains("LISTEN")))
    };
    for url in [
        format!("{}?pooler=transaction", pooler.url()),
        format!("{}?pooler=transaction", site.url()),
        format!("{}?wake=poll", site.url()),
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
    let _plain = site.open_locks(LASTING).await;
    eventually(TEST_TIMEOUT, || async { if listens().await { Ok(()) } else { Err("a plain one should") } }).await;
}

/// How often `GET_LOCK` was sent while one client waits for another and is let in.
pub(super) async fn count_wakeup_locks(server: &Server, options: &str) -> u64 {
    let ask = async |sql: &str| mariadb::query(server, sql).await.expect("an answer");
    ask("SET GLOBAL log_output = 'TABLE'").await;
    ask("TRUNCATE TABLE mysql.general_log").await;
    let url = format!("{}{options}", server.url());
    let (one, two) = (open_locks(&url, LASTING).await, open_locks(&url, LASTING).await);
    ask("SET GLOBAL general_log = ON").await;
    let guard = acquire(&one, "a").await;
    let waiting = tokio::spawn(async move { acquire(&two, "a").await });
    until_queued(&one, "a", 1).await;
    // It looks, or listens: whatever it does, it has begun to.
    let sql = "SELECT count(*) FROM mysql.general_log WHERE argument LIKE";
    let count = async |like: &str| {
        let rows = ask(&format!("{sql} '{like}' AND argument NOT LIKE '%general_log%'")).await;
        rows[0][0].as_ref().expect("a value").parse::<u64>().expect("a number")
    };
    let looks = count("SELECT%FROM%leasehold%").await;
    eventually(TEST_TIMEOUT, || async {
        let begun = count("SELECT%FROM%leasehold%").await > looks + 3 || count("%GET_LOCK%").await > 1;
        if begun { Ok(()) } else { Err("nothing is done yet") }
    })
    .await;
    let _ = guard.release().await.expect("a release");
    assert!(waiting.await.expect("no panic").is_held());
    ask("SET GLOBAL general_log = OFF").await;
    count("%GET_LOCK%").await
}

/// Bells are rung by plain clients, and by none of those who shall look by themselves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_client_uses_wakeup_locks_where_it_must_not() {
    let server = mariadb::start().await.expect("a server");
    assert!(count_wakeup_locks(&server, "").await > 0, "a plain one has bells");
    assert_eq!(count_wakeup_locks(&server, "?wake=poll").await, 0);
}
