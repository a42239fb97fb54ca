//! One PostgreSQL: users, data, settings and connections.

use std::{fs, os::unix::fs::MetadataExt, time::Duration};

use crate::common::data_templates;
use leasehold_testbed::{
    Error, eventually,
    postgres::{self, Postgres},
};

use super::{backend_pid, client, connect, error_message, insert_row, read_rows, single_value};

const TEST_TIMEOUT: Duration = leasehold_testbed::TEST_TIMEOUT;

#[tokio::test]
async fn an_ordinary_user_has_the_database_and_nothing_else() {
    let server = postgres::start().await.unwrap();
    assert_eq!(server.url(), format!("postgres://leasehold:password@127.0.0.1:{}/test", server.port()));
    insert_row(&server).await;
    assert_eq!(read_rows(&server).await.unwrap(), [7]);
    let ordinary = client(&server).await.unwrap();
    for forbidden in ["ALTER SYSTEM SET work_mem = 64", "CREATE DATABASE other", "CREATE ROLE other"] {
        let refused = error_message(&ordinary.batch_execute(forbidden).await.unwrap_err());
        assert!(refused.contains("permission denied"), "{forbidden}: {refused}");
    }
    let wrong = connect(&server.url().replace("password", "wrong")).await.unwrap_err();
    assert!(error_message(&wrong).contains("password authentication failed"), "{wrong:?}");
    let admin = connect(&server.url().replace("leasehold", postgres::ADMIN)).await.unwrap();
    admin.batch_execute("CREATE ROLE other").await.unwrap();
    let process = fs::metadata(format!("/proc/{}", server.pid().unwrap())).unwrap();
    assert_eq!(process.uid(), fs::metadata(server.dir()).unwrap().uid());
}

#[tokio::test]
async fn two_servers_share_nothing() {
    let (one, two) = tokio::join!(postgres::start(), postgres::start());
    let (one, two) = (one.unwrap(), two.unwrap());
    insert_row(&one).await;
    let missing = error_message(&read_rows(&two).await.unwrap_err());
    assert!(missing.contains("does not exist"), "{missing}");
    drop(one);
    assert_eq!(single_value(&two, "SELECT 1").await, "1");
}

#[tokio::test]
async fn a_second_start_copies_the_data_template() {
    drop(postgres::start().await.unwrap());
    let made = data_templates("postgres");
    assert!(!made.is_empty());
    drop(postgres::start().await.unwrap());
    assert_eq!(data_templates("postgres"), made);
}

#[tokio::test]
async fn settings_are_applied() {
    let plain = postgres::start().await.unwrap();
    assert_eq!(single_value(&plain, "SHOW fsync").await, "off");
    assert_eq!(single_value(&plain, "SHOW synchronous_commit").await, "on");
    let server = Postgres::new().fsync().setting("max_connections", "17").start().await.unwrap();
    assert_eq!(single_value(&server, "SHOW fsync").await, "on");
    assert_eq!(single_value(&server, "SHOW full_page_writes").await, "on");
    assert_eq!(single_value(&server, "SHOW max_connections").await, "17");

    let broken = Postgres::new().setting("no_such_setting", "1").start().await.unwrap_err();
    assert!(matches!(&broken, Error::Exited { log, .. } if log.contains("no_such_setting")), "{broken}");
}

#[tokio::test]
async fn a_query_returns_rows_or_the_servers_error() {
    let server = postgres::start().await.unwrap();
    let rows = postgres::query(&server, "SELECT 1, NULL, 'ä' UNION ALL SELECT 2, 'x', ''").await.unwrap();
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(rows, [[text("1"), None, text("ä")], [text("2"), text("x"), text("")]]);
    assert_eq!(postgres::query(&server, "CREATE TABLE t (n INT)").await.unwrap(), Vec::<Vec<_>>::new());
    let refused = postgres::query(&server, "SELECT nonsense").await.unwrap_err();
    assert!(matches!(&refused, Error::Refused { answer, .. } if answer.contains("does not exist")), "{refused}");
}

#[tokio::test]
async fn killing_one_connection_leaves_the_other_open() {
    let server = postgres::start().await.unwrap();
    let one = client(&server).await.unwrap();
    let two = client(&server).await.unwrap();
    let (id, other) = (backend_pid(&one).await, backend_pid(&two).await);
    let ids: Vec<u64> = postgres::connections(&server).await.unwrap().iter().map(|found| found.id).collect();
    assert_eq!(ids, [id, other]);

    let running = tokio::spawn(async move { one.batch_execute("SELECT pg_sleep(600)").await });
    eventually(TEST_TIMEOUT, || async {
        let all = postgres::connections(&server).await.unwrap();
        let runs = |c: &postgres::Connection| {
            c.id == id && c.state == "active" && c.query.as_deref() == Some("SELECT pg_sleep(600)")
        };
        if all.iter().any(runs) { Ok(()) } else { Err(format!("{all:?}")) }
    })
    .await;
    postgres::kill_connection(&server, id).await.unwrap();
    let end = error_message(&running.await.unwrap().unwrap_err());
    assert!(end.contains("terminating connection"), "{end}");
    two.batch_execute("SELECT 1").await.unwrap();
    eventually(TEST_TIMEOUT, || async {
        let left: Vec<u64> = postgres::connections(&server).await.unwrap().iter().map(|found| found.id).collect();
        if left == [other] { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    let gone = postgres::kill_connection(&server, id).await;
    assert!(matches!(gone, Err(Error::Refused { .. })), "{gone:?}");
}
