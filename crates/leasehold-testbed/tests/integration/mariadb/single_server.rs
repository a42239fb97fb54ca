//! One MariaDB: users, data, settings and connections.

use std::{fs, os::unix::fs::MetadataExt, time::Duration};

use crate::common::data_templates;
use leasehold_testbed::{
    Data, Error, Server, eventually,
    mariadb::{self, MariaDb},
};
use mysql_async::prelude::Queryable;

use super::{client, single_value};

const TEST_TIMEOUT: Duration = leasehold_testbed::TEST_TIMEOUT;

async fn insert_row(server: &Server) {
    let mut client = client(server).await.unwrap();
    client.query_drop("CREATE TABLE t (n INT PRIMARY KEY) ENGINE=InnoDB").await.unwrap();
    client.query_drop("INSERT INTO t VALUES (7)").await.unwrap();
}

async fn read_rows(server: &Server) -> Result<Vec<u32>, mysql_async::Error> {
    client(server).await?.query("SELECT n FROM t").await
}

#[tokio::test]
async fn an_ordinary_user_has_the_database_and_nothing_else() {
    let server = mariadb::start().await.unwrap();
    assert_eq!(server.url(), format!("mysql://leasehold:password@127.0.0.1:{}/test", server.port()));
    insert_row(&server).await;
    assert_eq!(read_rows(&server).await.unwrap(), [7]);
    let mut client = client(&server).await.unwrap();
    for forbidden in ["SET GLOBAL max_connections = 7", "CREATE DATABASE other", "SELECT * FROM mysql.global_priv"] {
        let refused = client.query_drop(forbidden).await.unwrap_err().to_string();
        assert!(refused.contains("denied"), "{forbidden}: {refused}");
    }
    let process = fs::metadata(format!("/proc/{}", server.pid().unwrap())).unwrap();
    assert_eq!(process.uid(), fs::metadata(server.dir()).unwrap().uid());
    let ours = mysql_async::OptsBuilder::from_opts(super::options(&server)).pass(Some("wrong"));
    assert!(mysql_async::Conn::new(ours).await.is_err(), "a wrong password");
}

#[tokio::test]
async fn two_servers_share_nothing() {
    let (one, two) = tokio::join!(mariadb::start(), mariadb::start());
    let (one, two) = (one.unwrap(), two.unwrap());
    insert_row(&one).await;
    let missing = read_rows(&two).await.unwrap_err().to_string();
    assert!(missing.contains("doesn't exist"), "{missing}");
    drop(one);
    assert_eq!(single_value(&two, "SELECT 1").await, "1");
}

#[tokio::test]
async fn a_killed_server_keeps_committed_data_unless_wiped() {
    let mut server = mariadb::start().await.unwrap();
    insert_row(&server).await;
    server.kill().unwrap();
    assert!(client(&server).await.is_err());
    server.restart(Data::Keep).await.unwrap();
    assert_eq!(read_rows(&server).await.unwrap(), [7]);
    // A clean shutdown, although a client is connected.
    let lingering = client(&server).await.unwrap();
    server.restart(Data::Keep).await.unwrap();
    assert_eq!(read_rows(&server).await.unwrap(), [7]);
    drop(lingering);
    server.kill().unwrap();
    server.restart(Data::Wipe).await.unwrap();
    assert!(read_rows(&server).await.is_err());
    insert_row(&server).await;
}

#[tokio::test]
async fn a_second_start_copies_the_data_template() {
    drop(mariadb::start().await.unwrap());
    let invocation = data_templates("mariadb");
    assert!(!invocation.is_empty());
    drop(mariadb::start().await.unwrap());
    assert_eq!(data_templates("mariadb"), invocation);
}

#[tokio::test]
async fn settings_are_applied() {
    let plain = mariadb::start().await.unwrap();
    assert_eq!(single_value(&plain, "SELECT @@innodb_flush_log_at_trx_commit").await, "2");
    let server = MariaDb::new().fsync().read_only().setting("max_connections", "17").start().await.unwrap();
    assert_eq!(single_value(&server, "SELECT @@innodb_flush_log_at_trx_commit").await, "1");
    assert_eq!(single_value(&server, "SELECT @@sync_binlog").await, "1");
    assert_eq!(single_value(&server, "SELECT @@max_connections").await, "17");
    let refused = client(&server).await.unwrap().query_drop("CREATE TABLE t (n INT)").await.unwrap_err();
    assert!(refused.to_string().contains("read-only"), "{refused}");

    let broken = MariaDb::new().setting("no_such_setting", "1").start().await.unwrap_err();
    assert!(matches!(&broken, Error::Exited { log, .. } if log.contains("no_such_setting")), "{broken}");
}

#[tokio::test]
async fn a_query_returns_rows_or_the_servers_error() {
    let server = mariadb::start().await.unwrap();
    let rows = mariadb::query(&server, "SELECT 1, NULL, 'ä' UNION ALL SELECT 2, 'x', ''").await.unwrap();
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(rows, [[text("1"), None, text("ä")], [text("2"), text("x"), text("")]]);
    assert_eq!(mariadb::query(&server, "CREATE TABLE t (n INT)").await.unwrap(), Vec::<Vec<_>>::new());
    let refused = mariadb::query(&server, "SELECT nonsense").await.unwrap_err();
    assert!(matches!(&refused, Error::Refused { answer, .. } if answer.contains("Unknown column")), "{refused}");
}

#[tokio::test]
async fn killing_one_connection_leaves_the_other_open() {
    let server = mariadb::start().await.unwrap();
    let mut one = client(&server).await.unwrap();
    let mut two = client(&server).await.unwrap();
    let ids: Vec<u64> = mariadb::connections(&server).await.unwrap().iter().map(|found| found.id).collect();
    assert_eq!(ids, [u64::from(one.id()), u64::from(two.id())]);

    let id = u64::from(one.id());
    let running = tokio::spawn(async move { one.query_drop("SELECT SLEEP(600)").await });
    eventually(TEST_TIMEOUT, || async {
        let all = mariadb::connections(&server).await.unwrap();
        let runs = all.iter().any(|c| c.id == id && c.query.as_deref() == Some("SELECT SLEEP(600)"));
        if runs { Ok(()) } else { Err(format!("{all:?}")) }
    })
    .await;
    mariadb::kill_connection(&server, id).await.unwrap();
    assert!(tokio::time::timeout(TEST_TIMEOUT, running).await.unwrap().unwrap().is_err());
    two.query_drop("SELECT 1").await.unwrap();
    eventually(TEST_TIMEOUT, || async {
        let left: Vec<u64> = mariadb::connections(&server).await.unwrap().iter().map(|found| found.id).collect();
        if left == [u64::from(two.id())] { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    assert!(mariadb::kill_connection(&server, id).await.is_err(), "it is gone already");
}

#[tokio::test]
async fn a_paused_server_does_not_respond() {
    let mut server = mariadb::start().await.unwrap();
    let mut client = client(&server).await.unwrap();
    server.pause().unwrap();
    let silence = tokio::time::timeout(Duration::from_millis(300), client.query_drop("SELECT 1")).await;
    assert!(silence.is_err(), "{silence:?}");
    server.resume().unwrap();
    assert_eq!(single_value(&server, "SELECT 1").await, "1");
}
