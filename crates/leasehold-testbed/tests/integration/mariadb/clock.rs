//! A MariaDB whose wall clock a test sets.

use std::{fs, os::unix::fs::MetadataExt, time::Duration};

use leasehold_testbed::{Data, Server, WallClock, mariadb::MariaDb};
use mysql_async::prelude::Queryable;
use tokio::time::Instant;

use super::{client, single_value};

/// By how many seconds the server's clock is ahead of that of `reference`.
async fn clock_offset(server: &Server, reference: &Server) -> f64 {
    let question = "SELECT UNIX_TIMESTAMP(SYSDATE(6))";
    let (theirs, ours) = (single_value(server, question).await, single_value(reference, question).await);
    theirs.parse::<f64>().unwrap() - ours.parse::<f64>().unwrap()
}

#[tokio::test]
async fn the_clock_moves_while_the_server_runs() {
    let clock = WallClock::new().unwrap();
    let server = MariaDb::new().clock(&clock).start().await.unwrap();
    let right = MariaDb::new().start().await.unwrap();
    for offset in [0, 3600, -7200, 0] {
        clock.set_offset(offset).unwrap();
        let seen = clock_offset(&server, &right).await;
        assert!((seen - offset as f64).abs() < 60.0, "{seen} instead of {offset}");
    }
}

#[tokio::test]
async fn lock_timeouts_use_the_monotonic_clock() {
    let clock = WallClock::new().unwrap();
    clock.set_offset(86_400).unwrap();
    let server = MariaDb::new().clock(&clock).start().await.unwrap();
    let mut holder = client(&server).await.unwrap();
    let mut waiter = client(&server).await.unwrap();
    let granted: Option<u8> = holder.query_first("SELECT GET_LOCK('l', 0)").await.unwrap();
    assert_eq!(granted, Some(1));
    let begin = Instant::now();
    let refused: Option<u8> = waiter.query_first("SELECT GET_LOCK('l', 1)").await.unwrap();
    assert_eq!(refused, Some(0));
    let waited = begin.elapsed();
    assert!(waited > Duration::from_millis(900), "{waited:?}");
}

#[tokio::test]
async fn a_killed_server_leaves_no_shared_memory_of_its_clock() {
    let clock = WallClock::new().unwrap();
    let mut server = MariaDb::new().clock(&clock).start().await.unwrap();
    let owner = fs::metadata(server.dir()).unwrap().uid();
    // A process of another user with the same id may have left such a file.
    let owners = |pid: u32| fs::metadata(format!("/dev/shm/faketime_shm_{pid}")).map(|found| found.uid()).ok();
    let left = |pid: u32| owners(pid) == Some(owner);
    let first = server.pid().unwrap();
    assert!(owners(first).is_some(), "this test looks at the wrong thing");
    server.kill().unwrap();
    server.restart(Data::Keep).await.unwrap();
    assert!(!left(first), "after a restart");
    let second = server.pid().unwrap();
    drop(server);
    assert!(!left(second), "after a drop");
}
