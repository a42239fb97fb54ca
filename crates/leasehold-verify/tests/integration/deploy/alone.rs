//! Engines that need no servers.

use leasehold_verify::deploy::Local;
use leasehold_verify::dice::Dice;
use leasehold_verify::history::FaultKind::{DiskFull, Stop};

use crate::deploy::site::{client, faults, grants, start};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_and_file_need_no_servers() {
    let deployment = start(Local::Memory, &[Stop], true).await;
    assert_eq!((deployment.url(), deployment.own_url()), ("memory:", "memory:"));
    let faults = faults(Local::File, &[]);
    let mut deployment = start(Local::File, &faults, true).await;
    let ttl = Local::File.ttl();
    let locks = client(deployment.url(), ttl).await;
    grants(&locks, "at first").await;
    if faults.contains(&DiskFull) {
        let held = locks.mutex("held").lock().await.expect("a lock");
        deployment.begin(DiskFull, &mut Dice::new(1)).await.expect("a full disk");
        let refused = locks.mutex("a new one").try_lock().await;
        assert!(refused.is_err(), "there is no room: {refused:?}");
        let note = deployment.end(DiskFull).await.expect("room");
        assert!(note.contains("room"), "{note}");
        drop(held);
        grants(&locks, "with room").await;
        let folder = std::path::PathBuf::from(deployment.url().trim_start_matches("file://"));
        assert!(folder.exists());
        drop(deployment);
        assert!(!folder.exists(), "the disk is gone");
    }
}
