//! A Redis whose wall clock a test sets.
#![allow(clippy::unwrap_used, reason = "tests report failures by panicking")]

use std::path::Path;

use leasehold_testbed::{
    Data, Server, WallClock,
    redis::{self, Redis, Reply, RespClient},
};

async fn server_time(server: &Server) -> i64 {
    let reply = RespClient::connect(server.addr()).await.unwrap().command(&["TIME"]).await.unwrap();
    let Reply::Array(parts) = reply else { panic!("{reply:?}") };
    let Reply::Bulk(text) = &parts[0] else { panic!("{parts:?}") };
    text.parse().unwrap()
}

#[tokio::test]
async fn the_clock_moves_while_the_server_runs() {
    let clock = WallClock::new().unwrap();
    let mut server = Redis::new().clock(&clock).start().await.unwrap();
    let right = redis::start().await.unwrap();
    for offset in [0, 3600, -7200, 0] {
        clock.set_offset(offset).unwrap();
        let seen = server_time(&server).await - server_time(&right).await;
        assert!((seen - offset).abs() < 60, "{seen} instead of {offset}");
    }
    let left = |pid: u32| Path::new(&format!("/dev/shm/faketime_shm_{pid}")).exists();
    let first = server.pid().unwrap();
    assert!(left(first), "this test looks at the wrong thing");
    server.kill().unwrap();
    server.restart(Data::Keep).await.unwrap();
    assert!(!left(first), "after a restart");
    let second = server.pid().unwrap();
    drop(server);
    assert!(!left(second), "after a drop");
}
