//! MariaDB, alone.

use leasehold_testbed::mariadb::{self, MariaDb};
use leasehold_testbed::postgres::Postgres;
use leasehold_testbed::{Server, WallClock, eventually};

use crate::common::examined::{examine, found, of, report};
use crate::common::{BOUND, servers};
use crate::doctor_sql::{all, says, take, together};

async fn my(server: &Server, statements: &[&str]) {
    for statement in statements {
        mariadb::ask(server, statement).await.unwrap();
    }
}

#[tokio::test]
async fn a_mariadb_as_it_should_be_and_nothing_is_left_behind() {
    let server = servers::mariadb().await;
    let (_, first) = report(&server.url()).await;
    assert!(says(found(&first, "table", "ok"), "found").contains("not there yet"), "{first:#}");
    assert!(mariadb::ask(&server, "SHOW TABLES").await.unwrap().is_empty(), "it makes none");
    take(&server.url()).await;
    let (_, report) = report(&server.url()).await;
    for level in ["fail", "warn", "unknown"] {
        assert_eq!(all(&report, level), [""; 0], "{report:#}");
    }
    for check in ["version", "read-only", "pooler", "galera", "binlog-format", "packet", "isolation", "lock-row"] {
        found(&report, check, "ok");
    }
    assert!(says(found(&report, "rows", "ok"), "found").starts_with("1 row: 0 in use, 1 idle"), "{report:#}");
    assert!(says(found(&report, "version", "ok"), "found").contains("MariaDB"));
    assert!(!report.to_string().contains(mariadb::PASSWORD));
    let rows = mariadb::ask(&server, "SELECT COUNT(*) FROM leasehold").await.unwrap();
    assert_eq!(rows[0][0].as_deref(), Some("1"), "what was tried was rolled back");
    eventually(BOUND, || async {
        let left = mariadb::connections(&server).await.unwrap();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    let ran = examine(&server.url(), &[]).await;
    assert!(ran.out().contains("ok: fit for locks"), "{}", ran.out());
}

#[tokio::test]
async fn a_mariadb_set_so_that_locks_are_late_lost_or_refused() {
    let careless = MariaDb::new()
        .setting("max_connections", "8")
        .setting("max_allowed_packet", "1048576")
        .setting("max_statement_time", "0.9")
        .setting("log_bin", "log")
        .setting("binlog_format", "STATEMENT");
    let server = careless.start().await.unwrap();
    let (code, report) = report(&server.url()).await;
    assert_eq!((code, all(&report, "fail")), (2, vec!["binlog-format".to_owned()]), "{report:#}");
    assert_eq!(all(&report, "warn"), ["connections", "durability", "packet"], "{report:#}");
    assert!(says(found(&report, "statement-timeout", "ok"), "means").contains("none"), "{report:#}");
    let durability = found(&report, "durability", "warn");
    assert!(says(durability, "found").contains("innodb_flush_log_at_trx_commit=2, sync_binlog=0"), "{durability}");
    assert!(says(durability, "means").contains("tokens still rise"), "{durability}");
    // It is not only reported: InnoDB does refuse.
    my(
        &server,
        &["CREATE TABLE leasehold (name VARBINARY(512) PRIMARY KEY, version BIGINT NOT NULL, \
        token BIGINT NOT NULL, busy BIGINT NOT NULL, state MEDIUMTEXT CHARACTER SET utf8mb4 NOT NULL)"],
    )
    .await;
    let (_, report) = crate::common::examined::report(&server.url()).await;
    assert!(says(found(&report, "lock-row", "fail"), "found").contains("1665"), "{report:#}");
    my(&server, &["SET GLOBAL binlog_format = 'ROW'"]).await;
    found(&crate::common::examined::report(&server.url()).await.1, "lock-row", "ok");
}

#[tokio::test]
async fn a_mariadb_that_takes_no_writes_or_lets_nobody_in() {
    let server = MariaDb::new().sync().read_only().start().await.unwrap();
    let (code, read_only) = report(&server.url()).await;
    assert_eq!((code, all(&read_only, "fail")), (2, vec!["read-only".to_owned()]), "{read_only:#}");
    let (_, wrong) = report(&server.url().replace(":password@", ":opensesame@")).await;
    assert!(says(found(&wrong, "login", "fail"), "found").contains("1045"), "{wrong:#}");
    assert!(!wrong.to_string().contains("opensesame"));
    let (_, nowhere) = report(&server.url().replace("/test", "/nowhere")).await;
    found(&nowhere, "login", "fail");
    let (code, away) = report("mysql://u:p@127.0.0.1:1/d").await;
    assert_eq!((code, all(&away, "fail")), (2, vec!["reachable".to_owned()]), "{away:#}");
    // An additional writer beside it, and an unreachable server.
    let writer = servers::mariadb().await;
    let (_, both) = report(&together(&[&server, &writer]).replace("/test", ",127.0.0.1:1/test")).await;
    assert_eq!(all(&both, "fail"), [""; 0], "{both:#}");
    assert_eq!(all(&both, "warn"), ["reachable"], "{both:#}");
    assert_eq!(of(&both, "read-only").len(), 2, "{both:#}");
    my(&server, &["SET GLOBAL read_only = OFF"]).await;
    let (_, both) = report(&together(&[&server, &writer])).await;
    assert!(says(found(&both, "writers", "fail"), "means").contains("two may hold one"), "{both:#}");
    let twice = together(&[&writer, &writer]);
    found(&report(&twice).await.1, "same-server", "warn");
}

#[tokio::test]
async fn tables_of_mariadb_in_which_locks_would_meet_or_be_lost() {
    let server = servers::mariadb().await;
    let of = |table: &str| format!("{}?table={table}", server.url());
    let rest = "version BIGINT NOT NULL, token BIGINT NOT NULL, busy BIGINT NOT NULL, state MEDIUMTEXT NOT NULL";
    my(
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
        ("twice", "collation", "no key"),
        ("unsafe", "table-engine", "MyISAM"),
        ("shop", "table", "without the columns version, token, busy, state"),
    ] {
        let (code, report) = report(&of(table)).await;
        assert_eq!(code, 2, "{table}: {report:#}");
        assert!(says(found(&report, check, "fail"), "found").contains(words), "{table}: {report:#}");
    }
    let left = mariadb::ask(&server, "SELECT COUNT(*) FROM unsafe").await.unwrap();
    assert_eq!(left[0][0].as_deref(), Some("0"), "where nothing can be rolled back, nothing is tried");
    take(&server.url()).await;
    my(
        &server,
        &[
            "INSERT INTO leasehold VALUES ('torn', 1, 1, 0, '{')",
            "INSERT INTO leasehold SELECT 'stuck', version, token, 9000000000000000, state FROM leasehold WHERE name = 'job'",
        ],
    )
    .await;
    let (_, report) = report(&server.url()).await;
    assert_eq!(all(&report, "warn"), ["damaged-rows", "endless-rows"], "{report:#}");
    assert!(says(found(&report, "damaged-rows", "warn"), "found").contains("\"torn\""), "{report:#}");
}

#[tokio::test]
async fn rights_that_are_missing_in_mariadb() {
    let server = servers::mariadb().await;
    my(&server, &["CREATE USER poor@'%' IDENTIFIED BY 'password'", "GRANT SELECT ON test.* TO poor@'%'"]).await;
    let url = format!("{}?table=locks", server.url().replace("leasehold:", "poor:"));
    let (code, unmade) = report(&url).await;
    assert_eq!((code, all(&unmade, "fail")), (2, vec!["table".to_owned()]), "{unmade:#}");
    assert!(says(found(&unmade, "table", "fail"), "fix").contains("leasehold engines --ddl mysql --table locks"));
    take(&format!("{}?table=locks", server.url())).await;
    let (_, denied) = report(&url).await;
    assert_eq!(all(&denied, "fail"), ["lock-row"], "{denied:#}");
    assert!(says(found(&denied, "lock-row", "fail"), "fix").contains("GRANT SELECT, INSERT, UPDATE"), "{denied:#}");
    my(&server, &["GRANT SELECT, INSERT, UPDATE ON test.locks TO poor@'%'"]).await;
    let (_, enough) = report(&url).await;
    assert_eq!(all(&enough, "fail"), [""; 0], "{enough:#}");
    assert_eq!(all(&enough, "unknown"), [""; 0], "{enough:#}");
}

#[tokio::test]
async fn rights_that_a_session_of_mariadb_needs() {
    let server = servers::mariadb().await;
    my(&server, &["CREATE USER poor@'%' IDENTIFIED BY 'password'", "GRANT SELECT ON test.* TO poor@'%'"]).await;
    for (technique, tables) in [("session", vec!["s_tokens"]), ("for-update", vec!["f_tokens", "f_rows"])] {
        let options = format!("?technique={technique}&table={}", &technique[..1]);
        take(&format!("{}{options}", server.url())).await;
        let url = format!("{}{options}", server.url().replace("leasehold:", "poor:"));
        for table in tables {
            let (_, denied) = report(&url).await;
            assert_eq!(all(&denied, "fail"), ["lock-row"], "{table}: {denied:#}");
            my(&server, &[&format!("GRANT SELECT, INSERT, UPDATE ON test.{table} TO poor@'%'")]).await;
        }
        let (_, enough) = report(&url).await;
        found(&enough, "lock-row", "ok");
        let rows = mariadb::ask(&server, &format!("SELECT COUNT(*) FROM {}_tokens", &technique[..1])).await.unwrap();
        assert_eq!(rows[0][0].as_deref(), Some("1"), "what was tried was rolled back");
    }
}

#[tokio::test]
async fn clocks_that_are_wrong() {
    let (my_clock, pg_clock) = (WallClock::new().unwrap(), WallClock::new().unwrap());
    let my = MariaDb::new().sync().clock(&my_clock).start().await.unwrap();
    let pg = Postgres::new().sync().clock(&pg_clock).start().await.unwrap();
    for (server, clock) in [(&my, &my_clock), (&pg, &pg_clock)] {
        assert_eq!(all(&report(&server.url()).await.1, "warn"), [""; 0]);
        clock.move_to(3600).unwrap();
        let ahead = eventually(BOUND, || async {
            let (_, report) = report(&server.url()).await;
            if all(&report, "warn") == ["clock"] { Ok(report) } else { Err(format!("{report:#}")) }
        })
        .await;
        let finding = found(&ahead, "clock", "warn");
        assert!(says(finding, "found").contains("min ahead of ours"), "{finding}");
        assert!(says(finding, "means").contains("clock alone decides"), "{finding}");
    }
}
