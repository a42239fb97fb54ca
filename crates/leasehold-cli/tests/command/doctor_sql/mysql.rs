//! MariaDB, alone.

use leasehold_testbed::mariadb::{self, MariaDb};
use leasehold_testbed::postgres::Postgres;
use leasehold_testbed::{Server, WallClock, eventually};

use crate::common::doctor_report::{assert_finding, doctor_report, findings_of, run_doctor};
use crate::common::{TEST_TIMEOUT, shared_servers};
use crate::doctor_sql::{acquire_and_release, checks_except_latency, multi_host_url, text_of};

async fn run_statements(server: &Server, statements: &[&str]) {
    for statement in statements {
        mariadb::query(server, statement).await.unwrap();
    }
}

#[tokio::test]
async fn a_well_configured_mariadb_is_fit_and_the_probe_leaves_no_data() {
    let server = shared_servers::mariadb().await;
    let (_, first) = doctor_report(&server.url()).await;
    assert!(text_of(assert_finding(&first, "table", "ok"), "found").contains("not there yet"), "{first:#}");
    assert!(mariadb::query(&server, "SHOW TABLES").await.unwrap().is_empty(), "it creates no table");
    acquire_and_release(&server.url()).await;
    let (_, report) = doctor_report(&server.url()).await;
    for level in ["fail", "warn", "unknown"] {
        assert_eq!(checks_except_latency(&report, level), [""; 0], "{report:#}");
    }
    for check in ["version", "read-only", "pooler", "galera", "binlog-format", "packet", "isolation", "lock-row"] {
        assert_finding(&report, check, "ok");
    }
    assert!(
        text_of(assert_finding(&report, "rows", "ok"), "found").starts_with("1 row: 0 in use, 1 idle"),
        "{report:#}"
    );
    assert!(text_of(assert_finding(&report, "version", "ok"), "found").contains("MariaDB"));
    assert!(!report.to_string().contains(mariadb::PASSWORD));
    let rows = mariadb::query(&server, "SELECT COUNT(*) FROM leasehold").await.unwrap();
    assert_eq!(rows[0][0].as_deref(), Some("1"), "the probe was rolled back");
    eventually(TEST_TIMEOUT, || async {
        let left = mariadb::connections(&server).await.unwrap();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    let ran = run_doctor(&server.url(), &[]).await;
    assert!(ran.stdout().contains("ok: fit for locks"), "{}", ran.stdout());
}

#[tokio::test]
async fn mariadb_settings_that_delay_lose_or_refuse_locks_are_found() {
    let careless = MariaDb::new()
        .setting("max_connections", "8")
        .setting("max_allowed_packet", "1048576")
        .setting("max_statement_time", "0.9")
        .setting("log_bin", "log")
        .setting("binlog_format", "STATEMENT");
    let server = careless.start().await.unwrap();
    let (code, report) = doctor_report(&server.url()).await;
    assert_eq!((code, checks_except_latency(&report, "fail")), (2, vec!["binlog-format".to_owned()]), "{report:#}");
    assert_eq!(checks_except_latency(&report, "warn"), ["connections", "durability", "packet"], "{report:#}");
    assert!(text_of(assert_finding(&report, "statement-timeout", "ok"), "means").contains("none"), "{report:#}");
    let durability = assert_finding(&report, "durability", "warn");
    assert!(text_of(durability, "found").contains("innodb_flush_log_at_trx_commit=2, sync_binlog=0"), "{durability}");
    assert!(text_of(durability, "means").contains("tokens still rise"), "{durability}");
    // The finding is true: InnoDB refuses the write.
    run_statements(
        &server,
        &["CREATE TABLE leasehold (name VARBINARY(512) PRIMARY KEY, version BIGINT NOT NULL, \
        token BIGINT NOT NULL, busy BIGINT NOT NULL, state MEDIUMTEXT CHARACTER SET utf8mb4 NOT NULL, format BIGINT NOT NULL DEFAULT 1)"],
    )
    .await;
    let (_, report) = crate::common::doctor_report::doctor_report(&server.url()).await;
    assert!(text_of(assert_finding(&report, "lock-row", "fail"), "found").contains("1665"), "{report:#}");
    run_statements(&server, &["SET GLOBAL binlog_format = 'ROW'"]).await;
    assert_finding(&crate::common::doctor_report::doctor_report(&server.url()).await.1, "lock-row", "ok");
}

#[tokio::test]
async fn a_read_only_or_inaccessible_mariadb_is_a_failure() {
    let server = MariaDb::new().fsync().read_only().start().await.unwrap();
    let (code, read_only) = doctor_report(&server.url()).await;
    assert_eq!((code, checks_except_latency(&read_only, "fail")), (2, vec!["read-only".to_owned()]), "{read_only:#}");
    let (_, wrong) = doctor_report(&server.url().replace(":password@", ":opensesame@")).await;
    assert!(text_of(assert_finding(&wrong, "login", "fail"), "found").contains("1045"), "{wrong:#}");
    assert!(!wrong.to_string().contains("opensesame"));
    let (_, nowhere) = doctor_report(&server.url().replace("/test", "/nowhere")).await;
    assert_finding(&nowhere, "login", "fail");
    let (code, away) = doctor_report("mysql://u:p@127.0.0.1:1/d").await;
    assert_eq!((code, checks_except_latency(&away, "fail")), (2, vec!["reachable".to_owned()]), "{away:#}");
    // An additional writer beside it, and an unreachable server.
    let writer = shared_servers::mariadb().await;
    let (_, both) = doctor_report(&multi_host_url(&[&server, &writer]).replace("/test", ",127.0.0.1:1/test")).await;
    assert_eq!(checks_except_latency(&both, "fail"), [""; 0], "{both:#}");
    assert_eq!(checks_except_latency(&both, "warn"), ["reachable"], "{both:#}");
    assert_eq!(findings_of(&both, "read-only").len(), 2, "{both:#}");
    run_statements(&server, &["SET GLOBAL read_only = OFF"]).await;
    let (_, both) = doctor_report(&multi_host_url(&[&server, &writer])).await;
    assert!(
        text_of(assert_finding(&both, "writers", "fail"), "means").contains("two clients may hold one"),
        "{both:#}"
    );
    let twice = multi_host_url(&[&writer, &writer]);
    assert_finding(&doctor_report(&twice).await.1, "same-server", "warn");
}

#[tokio::test]
async fn mariadb_tables_that_would_merge_or_lose_locks_are_failures() {
    let server = shared_servers::mariadb().await;
    let of = |table: &str| format!("{}?table={table}", server.url());
    let rest = "version BIGINT NOT NULL, token BIGINT NOT NULL, busy BIGINT NOT NULL, state MEDIUMTEXT NOT NULL, \
        format BIGINT NOT NULL DEFAULT 1";
    run_statements(
        &server,
        &[
            &format!("CREATE TABLE folded (name VARCHAR(500) PRIMARY KEY, {rest}) COLLATE utf8mb4_general_ci"),
            &format!("CREATE TABLE padded (name VARCHAR(500) PRIMARY KEY, {rest}) COLLATE utf8mb4_bin"),
            &format!("CREATE TABLE twice (name VARBINARY(512) NOT NULL, {rest}, KEY (name))"),
            &format!("CREATE TABLE unsafe (name VARBINARY(512) PRIMARY KEY, {rest}) ENGINE=MyISAM"),
            "CREATE TABLE shop (id INT PRIMARY KEY, name VARCHAR(10))",
        ],
    )
    .await;
    for (table, check, words) in [
        ("folded", "collation", "utf8mb4_general_ci"),
        ("padded", "collation", "utf8mb4_bin"),
        ("twice", "collation", "no unique key"),
        ("unsafe", "table-engine", "MyISAM"),
        ("shop", "table", "without the columns version, token, busy, state"),
    ] {
        let (code, report) = doctor_report(&of(table)).await;
        assert_eq!(code, 2, "{table}: {report:#}");
        assert!(text_of(assert_finding(&report, check, "fail"), "found").contains(words), "{table}: {report:#}");
    }
    let left = mariadb::query(&server, "SELECT COUNT(*) FROM unsafe").await.unwrap();
    assert_eq!(left[0][0].as_deref(), Some("0"), "a table without rollback is not probed");
    acquire_and_release(&server.url()).await;
    run_statements(
        &server,
        &[
            "INSERT INTO leasehold VALUES ('torn', 1, 1, 0, '{', 1)",
            "INSERT INTO leasehold VALUES ('newer', 1, 1, 0, '{', 2)",
            "INSERT INTO leasehold SELECT 'stuck', version, token, 9000000000000000, state, 1 FROM leasehold WHERE name = 'job'",
        ],
    )
    .await;
    let (_, report) = doctor_report(&server.url()).await;
    assert_eq!(checks_except_latency(&report, "warn"), ["damaged-rows", "endless-rows"], "{report:#}");
    assert!(
        text_of(assert_finding(&report, "damaged-rows", "warn"), "found").starts_with("1 row (\"torn\")"),
        "{report:#}"
    );
    let newer = assert_finding(&report, "row-formats", "fail");
    assert!(
        text_of(newer, "found").contains("1 row (\"newer\") in format 2, and this version of leasehold reads format 1"),
        "{newer:#}"
    );
}

#[tokio::test]
async fn missing_privileges_in_mariadb_are_failures() {
    let server = shared_servers::mariadb().await;
    run_statements(&server, &["CREATE USER poor@'%' IDENTIFIED BY 'password'", "GRANT SELECT ON test.* TO poor@'%'"])
        .await;
    let url = format!("{}?table=locks", server.url().replace("leasehold:", "poor:"));
    let (code, unmade) = doctor_report(&url).await;
    assert_eq!((code, checks_except_latency(&unmade, "fail")), (2, vec!["table".to_owned()]), "{unmade:#}");
    assert!(
        text_of(assert_finding(&unmade, "table", "fail"), "fix")
            .contains("leasehold engines --ddl mysql --table locks")
    );
    acquire_and_release(&format!("{}?table=locks", server.url())).await;
    let (_, denied) = doctor_report(&url).await;
    assert_eq!(checks_except_latency(&denied, "fail"), ["lock-row"], "{denied:#}");
    assert!(
        text_of(assert_finding(&denied, "lock-row", "fail"), "fix").contains("GRANT SELECT, INSERT, UPDATE"),
        "{denied:#}"
    );
    run_statements(&server, &["GRANT SELECT, INSERT, UPDATE ON test.locks TO poor@'%'"]).await;
    let (_, enough) = doctor_report(&url).await;
    assert_eq!(checks_except_latency(&enough, "fail"), [""; 0], "{enough:#}");
    assert_eq!(checks_except_latency(&enough, "unknown"), [""; 0], "{enough:#}");
}

#[tokio::test]
async fn missing_privileges_for_mariadb_session_locks_are_failures() {
    let server = shared_servers::mariadb().await;
    run_statements(&server, &["CREATE USER poor@'%' IDENTIFIED BY 'password'", "GRANT SELECT ON test.* TO poor@'%'"])
        .await;
    for (technique, tables) in [("session", vec!["s_tokens"]), ("for-update", vec!["f_tokens", "f_rows"])] {
        let options = format!("?technique={technique}&table={}", &technique[..1]);
        acquire_and_release(&format!("{}{options}", server.url())).await;
        let url = format!("{}{options}", server.url().replace("leasehold:", "poor:"));
        for table in tables {
            let (_, denied) = doctor_report(&url).await;
            assert_eq!(checks_except_latency(&denied, "fail"), ["lock-row"], "{table}: {denied:#}");
            run_statements(&server, &[&format!("GRANT SELECT, INSERT, UPDATE ON test.{table} TO poor@'%'")]).await;
        }
        let (_, enough) = doctor_report(&url).await;
        assert_finding(&enough, "lock-row", "ok");
        let rows = mariadb::query(&server, &format!("SELECT COUNT(*) FROM {}_tokens", &technique[..1])).await.unwrap();
        assert_eq!(rows[0][0].as_deref(), Some("1"), "the probe was rolled back");
    }
}

#[tokio::test]
async fn wrong_database_clocks_are_warnings() {
    let (my_clock, pg_clock) = (WallClock::new().unwrap(), WallClock::new().unwrap());
    let my = MariaDb::new().fsync().clock(&my_clock).start().await.unwrap();
    let pg = Postgres::new().fsync().clock(&pg_clock).start().await.unwrap();
    for (server, clock) in [(&my, &my_clock), (&pg, &pg_clock)] {
        assert_eq!(checks_except_latency(&doctor_report(&server.url()).await.1, "warn"), [""; 0]);
        clock.set_offset(3600).unwrap();
        let ahead = eventually(TEST_TIMEOUT, || async {
            let (_, report) = doctor_report(&server.url()).await;
            if checks_except_latency(&report, "warn") == ["clock"] { Ok(report) } else { Err(format!("{report:#}")) }
        })
        .await;
        let finding = assert_finding(&ahead, "clock", "warn");
        assert!(text_of(finding, "found").contains("min ahead of this host's clock"), "{finding}");
        assert!(text_of(finding, "means").contains("clock alone decides"), "{finding}");
    }
}
