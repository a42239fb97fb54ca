//! PostgreSQL: alone, with a standby, and behind PgBouncer.

use leasehold_testbed::eventually;
use leasehold_testbed::postgres::{self, PgBouncer, PoolMode, Postgres};

use crate::common::doctor_report::{assert_finding, doctor_report, findings_of};
use crate::common::{TEST_TIMEOUT, shared_servers};
use crate::doctor_sql::{acquire_and_release, checks_except_latency, multi_host_url, text_of};

#[tokio::test]
async fn a_well_configured_postgres_is_fit_and_the_probe_leaves_no_data() {
    let server = shared_servers::postgres().await;
    let (_, first) = doctor_report(&server.url()).await;
    assert!(text_of(assert_finding(&first, "table", "ok"), "found").contains("not there yet"), "{first:#}");
    acquire_and_release(&server.url()).await;
    let (_, report) = doctor_report(&server.url()).await;
    for level in ["fail", "warn", "unknown"] {
        assert_eq!(checks_except_latency(&report, level), [""; 0], "{report:#}");
    }
    for check in ["version", "read-only", "pooler", "isolation", "lock-row", "collation", "clock", "autovacuum"] {
        assert_finding(&report, check, "ok");
    }
    assert!(
        text_of(assert_finding(&report, "rows", "ok"), "found").starts_with("1 row: 0 in use, 1 idle"),
        "{report:#}"
    );
    assert!(text_of(assert_finding(&report, "version", "ok"), "found").starts_with("PostgreSQL"));
    let rows = postgres::query(&server, "SELECT COUNT(*) FROM leasehold").await.unwrap();
    assert_eq!(rows[0][0].as_deref(), Some("1"), "the probe was rolled back");
    eventually(TEST_TIMEOUT, || async {
        let left = postgres::connections(&server).await.unwrap();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
}

#[tokio::test]
async fn postgres_settings_that_delay_or_lose_locks_are_found() {
    let careless = Postgres::new()
        .setting("max_connections", "12")
        .setting("idle_session_timeout", "10000")
        .setting("statement_timeout", "900")
        .setting("synchronous_commit", "off")
        .setting("autovacuum", "off")
        .setting("default_transaction_isolation", "serializable");
    let server = careless.start().await.unwrap();
    let (code, plain) = doctor_report(&server.url()).await;
    let expected = ["autovacuum", "connections", "durability", "idle-timeout", "statement-timeout"];
    assert_eq!((code, checks_except_latency(&plain, "warn")), (1, expected.map(ToOwned::to_owned).into()), "{plain:#}");
    assert!(
        text_of(assert_finding(&plain, "durability", "warn"), "found").contains("fsync=off, synchronous_commit=off")
    );
    assert!(text_of(assert_finding(&plain, "idle-timeout", "warn"), "means").contains("messages to waiters"));
    // A session that holds a lock sets its own.
    let (_, session) = doctor_report(&format!("{}?technique=session", server.url())).await;
    assert!(text_of(assert_finding(&session, "idle-timeout", "ok"), "means").contains("the TTL"), "{session:#}");
    assert_finding(&session, "statement-timeout", "ok");
    assert_finding(&plain, "isolation", "ok");
    let (_, pooled) = doctor_report(&format!("{}?pooler=transaction", server.url())).await;
    assert_finding(&pooled, "isolation", "warn");
}

#[tokio::test]
async fn a_standby_is_read_only_and_may_lack_writes() {
    let primary = Postgres::new().fsync().start().await.unwrap();
    acquire_and_release(&primary.url()).await;
    let standby = Postgres::replica_of(&primary).start().await.unwrap();
    let (code, alone) = doctor_report(&standby.url()).await;
    assert_eq!((code, checks_except_latency(&alone, "fail")), (2, vec!["read-only".to_owned()]), "{alone:#}");
    let (code, both) = doctor_report(&multi_host_url(&[&standby, &primary])).await;
    assert_eq!((code, checks_except_latency(&both, "warn")), (1, vec!["replication".to_owned()]), "{both:#}");
    assert!(
        text_of(assert_finding(&both, "replication", "warn"), "found").contains("1 replica, asynchronous"),
        "{both:#}"
    );
    assert_eq!((findings_of(&both, "read-only").len(), findings_of(&both, "lock-row").len()), (2, 1), "{both:#}");
    assert_finding(&both, "clocks", "ok");
    for statement in ["ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"] {
        postgres::query(&primary, statement).await.unwrap();
    }
    eventually(TEST_TIMEOUT, || async {
        let (_, report) = doctor_report(&multi_host_url(&[&standby, &primary])).await;
        if checks_except_latency(&report, "warn").is_empty() { Ok(()) } else { Err(format!("{report:#}")) }
    })
    .await;
    let other = shared_servers::postgres().await;
    let (_, apart) = doctor_report(&multi_host_url(&[&primary, &other])).await;
    assert!(
        text_of(assert_finding(&apart, "writers", "fail"), "means").contains("two clients may hold one"),
        "{apart:#}"
    );
}

#[tokio::test]
async fn a_transaction_pooler_is_found() {
    let server = shared_servers::postgres().await;
    acquire_and_release(&server.url()).await;
    let transactions = PgBouncer::new(&server, PoolMode::Transaction).start().await.unwrap();
    let (code, unnamed) = doctor_report(&transactions.url()).await;
    assert_eq!((code, checks_except_latency(&unnamed, "fail")), (2, vec!["pooler".to_owned()]), "{unnamed:#}");
    assert!(text_of(assert_finding(&unnamed, "pooler", "fail"), "fix").contains("pooler=transaction"), "{unnamed:#}");
    let (_, named) = doctor_report(&format!("{}?pooler=transaction", transactions.url())).await;
    assert_eq!(
        checks_except_latency(&named, "fail").len() + checks_except_latency(&named, "warn").len(),
        0,
        "{named:#}"
    );
    assert!(text_of(assert_finding(&named, "pooler", "ok"), "found").contains("another session"), "{named:#}");
    assert_finding(&named, "lock-row", "ok");
    let sessions = PgBouncer::new(&server, PoolMode::Session).start().await.unwrap();
    let (_, kept) = doctor_report(&sessions.url()).await;
    assert!(text_of(assert_finding(&kept, "pooler", "ok"), "found").contains("keeps its session"), "{kept:#}");
}

#[tokio::test]
async fn postgres_tables_that_would_merge_or_lose_locks_are_found() {
    let server = shared_servers::postgres().await;
    let rest = "version bigint NOT NULL, token bigint NOT NULL, busy bigint NOT NULL, state text NOT NULL, \
        format bigint NOT NULL DEFAULT 1";
    let statements = format!(
        "CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
         CREATE TABLE folded (name text COLLATE loose PRIMARY KEY, {rest});
         CREATE TABLE padded (name char(100) PRIMARY KEY, {rest});
         CREATE TABLE twice (name text COLLATE \"C\", {rest});
         CREATE UNLOGGED TABLE unsafe (name text COLLATE \"C\" PRIMARY KEY, {rest});
         CREATE TABLE narrow (name text COLLATE \"C\" PRIMARY KEY, version int, token int, busy int, state text,
             format bigint);
         CREATE TABLE shop (id int PRIMARY KEY);
         GRANT ALL ON ALL TABLES IN SCHEMA public TO leasehold"
    );
    postgres::query(&server, &statements).await.unwrap();
    for (table, check, level, words) in [
        ("folded", "collation", "fail", "collation loose"),
        ("padded", "collation", "fail", "character"),
        ("twice", "collation", "fail", "no unique key"),
        ("unsafe", "table-engine", "warn", "UNLOGGED"),
        ("narrow", "table", "fail", "version of type integer"),
        ("shop", "table", "fail", "without the columns"),
    ] {
        let (code, report) = doctor_report(&format!("{}?table={table}", server.url())).await;
        assert_eq!(code, if level == "fail" { 2 } else { 1 }, "{table}: {report:#}");
        assert!(text_of(assert_finding(&report, check, level), "found").contains(words), "{table}: {report:#}");
    }
}

#[tokio::test]
async fn missing_privileges_in_postgres_are_failures() {
    let server = shared_servers::postgres().await;
    postgres::query(&server, "CREATE USER poor PASSWORD 'password'").await.unwrap();
    let poor = server.url().replace("leasehold:", "poor:");
    let (code, unmade) = doctor_report(&poor).await;
    assert_eq!((code, checks_except_latency(&unmade, "fail")), (2, vec!["table".to_owned()]), "{unmade:#}");
    assert!(
        text_of(assert_finding(&unmade, "table", "fail"), "fix").contains("leasehold engines --ddl postgres"),
        "{unmade:#}"
    );
    let (_, nowhere) = doctor_report(&format!("{}?schema=nowhere", server.url())).await;
    assert!(text_of(assert_finding(&nowhere, "table", "fail"), "found").contains("nowhere"), "{nowhere:#}");
    acquire_and_release(&server.url()).await;
    postgres::query(&server, "GRANT SELECT ON leasehold TO poor").await.unwrap();
    let (_, denied) = doctor_report(&poor).await;
    assert_eq!(checks_except_latency(&denied, "fail"), ["lock-row"], "{denied:#}");
    postgres::query(&server, "GRANT INSERT, UPDATE ON leasehold TO poor").await.unwrap();
    let (_, enough) = doctor_report(&poor).await;
    assert_eq!(
        checks_except_latency(&enough, "fail").len() + checks_except_latency(&enough, "unknown").len(),
        0,
        "{enough:#}"
    );
    let (_, wrong) = doctor_report(&server.url().replace(":password@", ":opensesame@")).await;
    assert!(text_of(assert_finding(&wrong, "login", "fail"), "found").contains("28P01"), "{wrong:#}");
}

#[tokio::test]
async fn missing_privileges_for_postgres_session_locks_are_failures() {
    let server = shared_servers::postgres().await;
    postgres::query(&server, "CREATE USER poor PASSWORD 'password'").await.unwrap();
    for (technique, tables) in [("session", vec!["s_tokens"]), ("for-update", vec!["f_tokens", "f_rows"])] {
        let options = format!("?technique={technique}&table={}", &technique[..1]);
        acquire_and_release(&format!("{}{options}", server.url())).await;
        let url = format!("{}{options}", server.url().replace("leasehold:", "poor:"));
        postgres::query(&server, "GRANT SELECT ON ALL TABLES IN SCHEMA public TO poor").await.unwrap();
        for table in tables {
            let (_, denied) = doctor_report(&url).await;
            assert_eq!(checks_except_latency(&denied, "fail"), ["lock-row"], "{table}: {denied:#}");
            postgres::query(&server, &format!("GRANT INSERT, UPDATE ON {table} TO poor")).await.unwrap();
        }
        let (_, enough) = doctor_report(&url).await;
        assert_finding(&enough, "lock-row", "ok");
        let rows = postgres::query(&server, &format!("SELECT COUNT(*) FROM {}_tokens", &technique[..1])).await.unwrap();
        assert_eq!(rows[0][0].as_deref(), Some("1"), "the probe was rolled back");
    }
}

#[tokio::test]
async fn a_postgres_with_read_only_transactions_is_a_failure() {
    let server = Postgres::new().fsync().setting("default_transaction_read_only", "on").start().await.unwrap();
    let (code, marked) = doctor_report(&server.url()).await;
    assert_eq!((code, checks_except_latency(&marked, "fail")), (2, vec!["read-only".to_owned()]), "{marked:#}");
    assert!(
        text_of(assert_finding(&marked, "read-only", "fail"), "found").contains("default_transaction_read_only"),
        "{marked:#}"
    );
}
