//! Tests the deployments of `memory:` and `file:`, which have no servers.

use leasehold_verify::deployment::LocalEngine;
use leasehold_verify::history::FaultKind::{DiskFull, Stop};
use leasehold_verify::rng::Rng;

use crate::deployment::fixture::{client, faults_except, start, wait_for_grant};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_and_file_need_no_servers() {
    let deployment = start(LocalEngine::Memory, &[Stop], true).await;
    assert_eq!((deployment.url(), deployment.direct_url()), ("memory:", "memory:"));
    let faults = faults_except(LocalEngine::File, &[]);
    let mut deployment = start(LocalEngine::File, &faults, true).await;
    let ttl = LocalEngine::File.default_ttl();
    let locks = client(deployment.url(), ttl).await;
    wait_for_grant(&locks, "at first").await;
    if faults.contains(&DiskFull) {
        let held = locks.mutex("held").lock().await.expect("a lock");
        deployment.begin_fault(DiskFull, &mut Rng::new(1)).await.expect("a full disk");
        let refused = locks.mutex("a new one").try_lock().await;
        assert!(refused.is_err(), "the disk is full: {refused:?}");
        let note = deployment.end_fault(DiskFull).await.expect("its end");
        assert!(note.contains("space again"), "{note}");
        drop(held);
        wait_for_grant(&locks, "with space").await;
        let folder = std::path::PathBuf::from(deployment.url().trim_start_matches("file://"));
        assert!(folder.exists());
        drop(deployment);
        assert!(!folder.exists(), "the disk was unmounted");
    }
}
