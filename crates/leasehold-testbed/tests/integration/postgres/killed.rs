//! A PostgreSQL is many processes, and has memory outside its folder: all of it goes at once.

use std::{fs, time::Duration};

use leasehold_testbed::{Data, Server, postgres};

use super::{backend, cell, client, fill, numbers};
use crate::common::alive;

/// The pieces of shared memory that `process` made.
fn memory_of(process: u32) -> Vec<String> {
    let table = fs::read_to_string("/proc/sysvipc/shm").unwrap();
    let made_by = |row: &&str| row.split_whitespace().nth(4) == Some(&process.to_string());
    table.lines().skip(1).filter(made_by).map(str::to_owned).collect()
}

fn processes(server: &Server, backend: u64) -> [u32; 2] {
    [server.pid().unwrap(), backend.try_into().unwrap()]
}

#[tokio::test]
async fn a_killed_one_keeps_what_was_committed_or_loses_it_by_a_wipe() {
    let mut server = postgres::start().await.unwrap();
    fill(&server).await;
    server.kill().unwrap();
    assert!(client(&server).await.is_err());
    server.restart(Data::Keep).await.unwrap();
    assert_eq!(numbers(&server).await.unwrap(), [7]);
    server.kill().unwrap();
    server.restart(Data::Wipe).await.unwrap();
    assert!(numbers(&server).await.is_err());
    fill(&server).await;
}

#[tokio::test]
async fn killing_it_kills_the_processes_of_its_connections() {
    let mut server = postgres::start().await.unwrap();
    let client = client(&server).await.unwrap();
    let pids = processes(&server, backend(&client).await);
    assert!(pids.iter().all(|&pid| alive(pid)), "{pids:?}");
    server.kill().unwrap();
    assert!(!pids.iter().any(|&pid| alive(pid)), "{pids:?}");
    assert!(client.batch_execute("SELECT 1").await.is_err());
}

#[tokio::test]
async fn an_orderly_end_does_not_wait_for_clients() {
    let mut server = postgres::start().await.unwrap();
    fill(&server).await;
    let lingering = client(&server).await.unwrap();
    server.restart(Data::Keep).await.unwrap();
    // After a crash it would have said so.
    assert!(!server.log().contains("was not properly shut down"), "{}", server.log());
    assert_eq!(numbers(&server).await.unwrap(), [7]);
    assert!(lingering.batch_execute("SELECT 1").await.is_err());
}

#[tokio::test]
async fn a_paused_one_is_silent_with_all_its_connections() {
    let mut server = postgres::start().await.unwrap();
    let client = client(&server).await.unwrap();
    server.pause().unwrap();
    let silence = tokio::time::timeout(Duration::from_millis(300), client.batch_execute("SELECT 1")).await;
    assert!(silence.is_err(), "{silence:?}");
    server.resume().unwrap();
    client.batch_execute("SELECT 1").await.unwrap();
    assert_eq!(cell(&server, "SELECT 1").await, "1");
}

#[tokio::test]
async fn no_shared_memory_is_left_behind() {
    let mut server = postgres::start().await.unwrap();
    let first = server.pid().unwrap();
    assert_eq!(memory_of(first).len(), 1, "this test looks at the wrong thing");
    server.kill().unwrap();
    server.restart(Data::Wipe).await.unwrap();
    assert_eq!(memory_of(first), Vec::<String>::new(), "after a wipe");
    let second = server.pid().unwrap();
    drop(server);
    assert_eq!(memory_of(second), Vec::<String>::new(), "after a drop");
}
