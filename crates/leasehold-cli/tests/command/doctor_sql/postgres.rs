//! PostgreSQL: alone, with a standby, and behind PgBouncer.

use leasehold_testbed::eventually;
use leasehold_testbed::postgres::{self, PgBouncer, PoolMode, Postgres};

use crate::common::examined::{found, of, report};
use crate::common::{BOUND, servers};
use crate::doctor_sql::{all, says, take, together};

#[tokio::test]
async fn a_postgres_as_it_should_be_and_nothing_is_left_behind() {
    let server = servers::postgres().await;
    let (_, first) = report(&server.url()).await;
    assert!(says(found(&first, "table", "ok"), "found").contains("not there yet"), "{first:#}");
    take(&server.url()).await;
    let (_, report) = report(&server.url()).await;
    for level in ["fail", "warn", "unknown"] {
        assert_eq!(all(&report, level), [""; 0], "{report:#}");
    }
    for check in ["version", "read-only", "pooler", "isolation", "lock-row", "collation", "clock", "autovacuum"] {
        found(&report, check, "ok");
    }
    assert!(says(found(&report, "rows", "ok"), "found").starts_with("1 row: 0 in use, 1 idle"), "{report:#}");
    assert!(says(found(&report, "version", "ok"), "found").starts_with("PostgreSQL"));
    let rows = postgres::ask(&server, "SELECT COUNT(*) FROM leasehold").await.unwrap();
    assert_eq!(rows[0][0].as_deref(), Some("1"), "what was tried was rolled back");
    eventually(BOUND, || async {
        let left = postgres::connections(&server).await.unwrap();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
}

#[tokio::test]
async fn a_postgres_set_so_that_locks_are_late_or_lost() {
    let careless = Postgres::new()
        .setting("max_connections", "12")
        .setting("idle_session_timeout", "10000")
        .setting("statement_timeout", "900")
        .setting("synchronous_commit", "off")
        .setting("autovacuum", "off")
        .setting("default_transaction_isolation", "serializable");
    let server = careless.start().await.unwrap();
    let (code, plain) = report(&server.url()).await;
    let expected = ["autovacuum", "connections", "durability", "idle-timeout", "statement-timeout"];
    assert_eq!((code, all(&plain, "warn")), (1, expected.map(ToOwned::to_owned).into()), "{plain:#}");
    assert!(says(found(&plain, "durability", "warn"), "found").contains("fsync=off, synchronous_commit=off"));
    assert!(says(found(&plain, "idle-timeout", "warn"), "means").contains("messages to waiters"));
    // A session that holds a lock sets its own.
    let (_, session) = report(&format!("{}?technique=session", server.url())).await;
    assert!(says(found(&session, "idle-timeout", "ok"), "means").contains("the TTL"), "{session:#}");
    found(&session, "statement-timeout", "ok");
    found(&plain, "isolation", "ok");
    let (_, pooled) = report(&format!("{}?pooler=transaction", server.url())).await;
    found(&pooled, "isolation", "warn");
}

#[tokio::test]
async fn a_standby_takes_no_writes_and_may_have_missed_some() {
    let primary = Postgres::new().sync().start().await.unwrap();
    take(&primary.url()).await;
    let standby = Postgres::replica_of(&primary).start().await.unwrap();
    let (code, alone) = report(&standby.url()).await;
    assert_eq!((code, all(&alone, "fail")), (2, vec!["read-only".to_owned()]), "{alone:#}");
    let (code, both) = report(&together(&[&standby, &primary])).await;
    assert_eq!((code, all(&both, "warn")), (1, vec!["replication".to_owned()]), "{both:#}");
    assert!(says(found(&both, "replication", "warn"), "found").contains("1 replica, asynchronous"), "{both:#}");
    assert_eq!((of(&both, "read-only").len(), of(&both, "lock-row").len()), (2, 1), "{both:#}");
    found(&both, "clocks", "ok");
    for statement in ["ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"] {
        postgres::ask(&primary, statement).await.unwrap();
    }
    eventually(BOUND, || async {
        let (_, report) = report(&together(&[&standby, &primary])).await;
        if all(&report, "warn").is_empty() { Ok(()) } else { Err(format!("{report:#}")) }
    })
    .await;
    let other = servers::postgres().await;
    let (_, apart) = report(&together(&[&primary, &other])).await;
    assert!(says(found(&apart, "writers", "fail"), "means").contains("two may hold one"), "{apart:#}");
}

#[tokio::test]
async fn a_pooler_that_changes_sessions_under_us_is_found() {
    let server = servers::postgres().await;
    take(&server.url()).await;
    let transactions = PgBouncer::new(&server, PoolMode::Transaction).start().await.unwrap();
    let (code, unnamed) = report(&transactions.url()).await;
    assert_eq!((code, all(&unnamed, "fail")), (2, vec!["pooler".to_owned()]), "{unnamed:#}");
    assert!(says(found(&unnamed, "pooler", "fail"), "fix").contains("pooler=transaction"), "{unnamed:#}");
    let (_, named) = report(&format!("{}?pooler=transaction", transactions.url())).await;
    assert_eq!(all(&named, "fail").len() + all(&named, "warn").len(), 0, "{named:#}");
    assert!(says(found(&named, "pooler", "ok"), "found").contains("another session"), "{named:#}");
    found(&named, "lock-row", "ok");
    let sessions = PgBouncer::new(&server, PoolMode::Session).start().await.unwrap();
    let (_, kept) = report(&sessions.url()).await;
    assert!(says(found(&kept, "pooler", "ok"), "found").contains("keeps its session"), "{kept:#}");
}

#[tokio::test]
async fn tables_of_postgres_in_which_locks_would_meet_or_be_lost() {
    let server = servers::postgres().await;
    let rest = "version bigint NOT NULL, token bigint NOT NULL, busy bigint NOT NULL, state text NOT NULL";
    let statements = format!(
        "CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
         CREATE TABLE folded (name text COLLATE loose PRIMARY KEY, {rest});
         CREATE TABLE padded (name char(100) PRIMARY KEY, {rest});
         CREATE TABLE twice (name text COLLATE \"C\", {rest});
         CREATE UNLOGGED TABLE unsafe (name text COLLATE \"C\" PRIMARY KEY, {rest});
         CREATE TABLE narrow (name text COLLATE \"C\" PRIMARY KEY, version int, token int, busy int, state text);
         CREATE TABLE shop (id int PRIMARY KEY);
         GRANT ALL ON ALL TABLES IN SCHEMA public TO leasehold"
    );
    postgres::ask(&server, &statements).await.unwrap();
    for (table, check, level, words) in [
        ("folded", "collation", "fail", "collation loose"),
        ("padded", "collation", "fail", "character"),
        ("twice", "collation", "fail", "no key"),
        ("unsafe", "table-engine", "warn", "UNLOGGED"),
        ("narrow", "table", "fail", "version of type integer"),
        ("shop", "table", "fail", "without the columns"),
    ] {
        let (code, report) = report(&format!("{}?table={table}", server.url())).await;
        assert_eq!(code, if level == "fail" { 2 } else { 1 }, "{table}: {report:#}");
        assert!(says(found(&report, check, level), "found").contains(words), "{table}: {report:#}");
    }
}

#[tokio::test]
async fn rights_that_are_missing_in_postgres() {
    let server = servers::postgres().await;
    postgres::ask(&server, "CREATE USER poor PASSWORD 'password'").await.unwrap();
    let poor = server.url().replace("leasehold:", "poor:");
    let (code, unmade) = report(&poor).await;
    assert_eq!((code, all(&unmade, "fail")), (2, vec!["table".to_owned()]), "{unmade:#}");
    assert!(says(found(&unmade, "table", "fail"), "fix").contains("leasehold engines --ddl postgres"), "{unmade:#}");
    let (_, nowhere) = report(&format!("{}?schema=nowhere", server.url())).await;
    assert!(says(found(&nowhere, "table", "fail"), "found").contains("nowhere"), "{nowhere:#}");
    take(&server.url()).await;
    postgres::ask(&server, "GRANT SELECT ON leasehold TO poor").await.unwrap();
    let (_, denied) = report(&poor).await;
    assert_eq!(all(&denied, "fail"), ["lock-row"], "{denied:#}");
    postgres::ask(&server, "GRANT INSERT, UPDATE ON leasehold TO poor").await.unwrap();
    let (_, enough) = report(&poor).await;
    assert_eq!(all(&enough, "fail").len() + all(&enough, "unknown").len(), 0, "{enough:#}");
    let (_, wrong) = report(&server.url().replace(":password@", ":opensesame@")).await;
    assert!(says(found(&wrong, "login", "fail"), "found").contains("28P01"), "{wrong:#}");
}

#[tokio::test]
async fn rights_that_a_session_of_postgres_needs() {
    let server = servers::postgres().await;
    postgres::ask(&server, "CREATE USER poor PASSWORD 'password'").await.unwrap();
    for (technique, tables) in [("session", vec!["s_tokens"]), ("for-update", vec!["f_tokens", "f_rows"])] {
        let options = format!("?technique={technique}&table={}", &technique[..1]);
        take(&format!("{}{options}", server.url())).await;
        let url = format!("{}{options}", server.url().replace("leasehold:", "poor:"));
        postgres::ask(&server, "GRANT SELECT ON ALL TABLES IN SCHEMA public TO poor").await.unwrap();
        for table in tables {
            let (_, denied) = report(&url).await;
            assert_eq!(all(&denied, "fail"), ["lock-row"], "{table}: {denied:#}");
            postgres::ask(&server, &format!("GRANT INSERT, UPDATE ON {table} TO poor")).await.unwrap();
        }
        let (_, enough) = report(&url).await;
        found(&enough, "lock-row", "ok");
        let rows = postgres::ask(&server, &format!("SELECT COUNT(*) FROM {}_tokens", &technique[..1])).await.unwrap();
        assert_eq!(rows[0][0].as_deref(), Some("1"), "what was tried was rolled back");
    }
}

#[tokio::test]
async fn a_postgres_that_is_marked_read_only() {
    let server = Postgres::new().sync().setting("default_transaction_read_only", "on").start().await.unwrap();
    let (code, marked) = report(&server.url()).await;
    assert_eq!((code, all(&marked, "fail")), (2, vec!["read-only".to_owned()]), "{marked:#}");
    assert!(says(found(&marked, "read-only", "fail"), "found").contains("default_transaction_read_only"), "{marked:#}");
}
