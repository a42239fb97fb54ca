//! Tests of a folder that is used for a long time: unused lock files are removed, and a folder that
//! was removed or moved is used again once it is back.

use std::fs;

use super::tests::{LONG_TTL, TestFolder, acquire, until};
use crate::clock::ManualClock;
use crate::{ErrorKind, Locks, LostReason, ReleaseOutcome};

/// The token of a lock whose file was removed meanwhile is above its tokens before.
#[tokio::test]
async fn many_names_leave_few_files_in_a_long_running_process() {
    let test_folder = TestFolder::new();
    let locks = test_folder.open().await;
    let held = locks.mutex("held").lock().await.unwrap();
    let first = acquire(&locks, "name-0").await;
    let names = if cfg!(feature = "nightly") { 3000 } else { 1000 };
    for number in 1..names {
        acquire(&locks, &format!("name-{number}")).await;
    }
    let files = || fs::read_dir(test_folder.dir.join("locks")).unwrap().count();
    until(async || files() <= 500).await;
    assert!(held.is_held() && test_folder.file("held").exists());
    assert!(locks.mutex("held").try_lock().await.unwrap().is_none());
    assert!(acquire(&locks, "name-0").await > first);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sweeping_beside_lock_traffic_repeats_no_token_and_keeps_exclusion() {
    let test_folder = TestFolder::new();
    let clients: Vec<Locks> = vec![test_folder.open().await, test_folder.open().await, test_folder.open().await];
    let workers = clients.iter().enumerate().map(|(worker, locks)| {
        let locks = locks.clone();
        tokio::spawn(async move {
            let mut tokens = Vec::new();
            for round in 0..400 {
                // One name for all, free between two turns, and many names that trigger the sweep.
                let guard = locks.mutex("common").lock().await.unwrap();
                tokens.push(guard.token());
                assert!(guard.is_held());
                let _ = guard.release().await.unwrap();
                acquire(&locks, &format!("{worker}-{round}")).await;
            }
            tokens
        })
    });
    let mut tokens = Vec::new();
    for worker in workers {
        let of_one = worker.await.unwrap();
        assert!(of_one.is_sorted_by(|a, b| a < b));
        tokens.extend(of_one);
    }
    let all = tokens.len();
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), all, "no token repeats");
}

#[tokio::test]
async fn a_removed_and_restored_folder_is_used_again() {
    let test_folder = TestFolder::new();
    let manual_clock = ManualClock::running();
    let locks = test_folder.open_with_clock(&manual_clock).await;
    let guard = locks.mutex("a").lock().await.unwrap();
    let records = locks.records().unwrap();
    records.compare_and_set("r", 0, "one").await.unwrap().unwrap();
    fs::remove_dir_all(&test_folder.dir).unwrap();
    // Its renewal is due.
    manual_clock.advance(LONG_TTL / 3);
    assert_eq!(guard.lost().await, LostReason::Revoked);
    assert_eq!(locks.mutex("a").try_lock().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(records.get("r").await.unwrap_err().kind(), ErrorKind::Unavailable);
    // Another client creates the folder again and holds a lock in it, which this client then finds
    // held.
    let other = test_folder.open().await;
    let held = other.mutex("a").lock().await.unwrap();
    assert!(locks.mutex("a").try_lock().await.unwrap().is_none());
    drop(held);
    let again = locks.mutex("a").lock().await.unwrap();
    assert!(other.mutex("a").try_lock().await.unwrap().is_none());
    assert!(again.token() > guard.token(), "tokens continue above those that this process knows");
    assert_eq!(records.get("r").await.unwrap().version, 0);
    records.compare_and_set("r", 0, "two").await.unwrap().unwrap();
    assert_eq!(other.records().unwrap().get("r").await.unwrap().value, "two");
}

#[tokio::test]
async fn a_moved_folder_is_not_used_beside_its_replacement() {
    let test_folder = TestFolder::new();
    let locks = test_folder.open().await;
    acquire(&locks, "a").await;
    fs::rename(&test_folder.dir, test_folder.dir.with_file_name("moved")).unwrap();
    let other = test_folder.open().await;
    let _held = other.mutex("a").lock().await.unwrap();
    assert_eq!(locks.inspect("a").await.unwrap().holders.len(), 1);
    assert!(locks.mutex("a").try_lock().await.unwrap().is_none());
}

/// A holder whose folder was moved excludes no other client any more. Its release reports that,
/// even before the next renewal does.
#[tokio::test]
async fn releasing_a_lock_in_a_moved_folder_reports_its_loss() {
    let test_folder = TestFolder::new();
    let locks = test_folder.open().await;
    let guard = locks.mutex("a").lock().await.unwrap();
    fs::rename(&test_folder.dir, test_folder.dir.with_file_name("moved")).unwrap();
    let _held = test_folder.open().await.mutex("a").lock().await.unwrap();
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::AlreadyLost(LostReason::Revoked));
}

#[tokio::test]
async fn a_client_whose_file_was_removed_registers_again() {
    let test_folder = TestFolder::new();
    let locks = test_folder.open().await;
    for file in fs::read_dir(test_folder.dir.join("clients")).unwrap() {
        fs::remove_file(file.unwrap().path()).unwrap();
    }
    let _guard = locks.mutex("a").lock().await.unwrap();
    assert!(test_folder.open().await.mutex("a").try_lock().await.unwrap().is_none(), "others see that it lives");
}
