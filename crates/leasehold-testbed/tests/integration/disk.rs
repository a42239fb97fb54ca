//! [`Disk`]: a small disk that is filled up. Without root, creating one is an error that says so.
#![allow(clippy::unwrap_used, reason = "tests report failures by panicking")]

use std::{fs, io};

use leasehold_testbed::{
    Data, Disk,
    redis::{Redis, Reply, RespClient},
};

const DISK_BYTES: u64 = 1024 * 1024;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn a_full_disk_refuses_writes_and_a_freed_one_accepts_them() {
    if !is_root() {
        assert!(Disk::new(DISK_BYTES).unwrap_err().to_string().contains("only root may"));
        return;
    }
    let disk = Disk::new(DISK_BYTES).unwrap();
    let file = disk.path().join("a");
    fs::write(&file, "before").unwrap();
    disk.fill().unwrap();
    let full = fs::write(disk.path().join("b"), [1; 8192]).unwrap_err();
    assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    disk.free().unwrap();
    disk.free().unwrap();
    fs::write(disk.path().join("b"), [1; 8192]).unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "before");
    let folder = disk.path().to_owned();
    drop(disk);
    assert!(!folder.exists());
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    assert!(!mounts.contains(&*folder.to_string_lossy()), "it is still mounted");
}

/// A Redis that writes to disk before it replies exits when the disk is full. After space is freed
/// and Redis restarts, every acknowledged write is there.
#[tokio::test]
async fn a_redis_with_a_full_disk_exits_and_restarts_with_its_data() {
    if !is_root() {
        return;
    }
    let redis = Redis::new().args(&["--appendonly", "yes", "--appendfsync", "always"]).disk(8 * DISK_BYTES);
    let mut server = redis.start().await.unwrap();
    let mut client = RespClient::connect(server.addr()).await.unwrap();
    client.command(&["SET", "a", "1"]).await.unwrap();
    server.disk().unwrap().fill().unwrap();
    while let Ok(reply) = client.command(&["SET", "b", &"x".repeat(8192)]).await {
        assert_eq!(reply, Reply::Simple("OK".to_owned()));
    }
    server.disk().unwrap().free().unwrap();
    server.restart(Data::Keep).await.unwrap();
    assert!(server.is_running().unwrap());
    let mut client = RespClient::connect(server.addr()).await.unwrap();
    assert_eq!(client.command(&["GET", "a"]).await.unwrap(), Reply::Bulk("1".to_owned()));
    server.restart(Data::Wipe).await.unwrap();
    let mut client = RespClient::connect(server.addr()).await.unwrap();
    assert_eq!(client.command(&["GET", "a"]).await.unwrap(), Reply::Nil);
    server.kill().unwrap();
    assert!(!server.is_running().unwrap());
}
