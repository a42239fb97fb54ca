//! PostgreSQL has many processes, and shared memory outside its folder: all of them end with the
//! server.

use std::{fs, time::Duration};

use leasehold_testbed::{Data, Server, postgres};

use super::{backend_pid, client, insert_row, read_rows, single_value};
use crate::common::is_alive;

/// The segments of shared memory that `process` has created.
fn shared_memory_of(process: u32) -> Vec<String> {
    let table = fs::read_to_string("/proc/sysvipc/shm").unwrap();
    let made_by = |row: &&str| row.split_whitespace().nth(4) == Some(&process.to_string());
    table.lines().skip(1).filter(made_by).map(str::to_owned).collect()
}

fn processes(server: &Server, backend: u64) -> [u32; 2] {
    [server.pid().unwrap(), backend.try_into().unwrap()]
}

#[tokio::test]
async fn a_killed_server_keeps_committed_data_unless_wiped() {
    let mut server = postgres::start().await.unwrap();
    insert_row(&server).await;
    server.kill().unwrap();
    assert!(client(&server).await.is_err());
    server.restart(Data::Keep).await.unwrap();
    assert_eq!(read_rows(&server).await.unwrap(), [7]);
    server.kill().unwrap();
    server.restart(Data::Wipe).await.unwrap();
    assert!(read_rows(&server).await.is_err());
    insert_row(&server).await;
}

#[tokio::test]
async fn killing_a_server_kills_its_backend_processes() {
    let mut server = postgres::start().await.unwrap();
    let client = client(&server).await.unwrap();
    let pids = processes(&server, backend_pid(&client).await);
    assert!(pids.iter().all(|&pid| is_alive(pid)), "{pids:?}");
    server.kill().unwrap();
    assert!(!pids.iter().any(|&pid| is_alive(pid)), "{pids:?}");
    assert!(client.batch_execute("SELECT 1").await.is_err());
}

#[tokio::test]
async fn a_clean_shutdown_does_not_wait_for_clients() {
    let mut server = postgres::start().await.unwrap();
    insert_row(&server).await;
    let lingering = client(&server).await.unwrap();
    server.restart(Data::Keep).await.unwrap();
    // After a crash, the log would report a recovery.
    assert!(!server.log().contains("was not properly shut down"), "{}", server.log());
    assert_eq!(read_rows(&server).await.unwrap(), [7]);
    assert!(lingering.batch_execute("SELECT 1").await.is_err());
}

#[tokio::test]
async fn a_paused_server_does_not_respond_on_any_connection() {
    let mut server = postgres::start().await.unwrap();
    let client = client(&server).await.unwrap();
    server.pause().unwrap();
    let silence = tokio::time::timeout(Duration::from_millis(300), client.batch_execute("SELECT 1")).await;
    assert!(silence.is_err(), "{silence:?}");
    server.resume().unwrap();
    client.batch_execute("SELECT 1").await.unwrap();
    assert_eq!(single_value(&server, "SELECT 1").await, "1");
}

#[tokio::test]
async fn no_shared_memory_is_left_behind() {
    let mut server = postgres::start().await.unwrap();
    let first = server.pid().unwrap();
    assert_eq!(shared_memory_of(first).len(), 1, "this test looks at the wrong thing");
    server.kill().unwrap();
    server.restart(Data::Wipe).await.unwrap();
    assert_eq!(shared_memory_of(first), Vec::<String>::new(), "after a wipe");
    let second = server.pid().unwrap();
    drop(server);
    assert_eq!(shared_memory_of(second), Vec::<String>::new(), "after a drop");
}
