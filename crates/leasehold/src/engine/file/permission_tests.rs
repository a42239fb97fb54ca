//! Tests of a folder that is shared with a group: whatever a member of the group puts into it must
//! not make leasehold read or change anything outside it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use super::tests::{LONG_TTL, TestFolder};
use crate::{ErrorKind, Locks};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

async fn open_shared(test_folder: &TestFolder, options: &str) -> crate::Result<Locks> {
    Locks::builder().ttl(LONG_TTL).open(&format!("{}{options}", test_folder.url())).await
}

async fn acquire(locks: &Locks, name: &str) -> crate::Result<()> {
    let _ = locks.mutex(name).lock().await?.release().await?;
    Ok(())
}

/// A file of this user outside the shared folder, which the group must not be able to read or
/// change.
fn private_file(test_folder: &TestFolder) -> PathBuf {
    let path = test_folder.dir.with_file_name("private-file");
    fs::write(&path, "private").unwrap();
    chmod(&path, 0o600);
    path
}

fn assert_untouched(path: &Path) {
    assert_eq!((fs::read_to_string(path).unwrap().as_str(), mode(path)), ("private", 0o600));
}

#[tokio::test]
async fn a_link_in_the_place_of_a_folder_is_refused() {
    for folder in ["records", "clients", "locks"] {
        let test_folder = TestFolder::new();
        drop(open_shared(&test_folder, "?mode=0770").await.unwrap());
        let private = test_folder.dir.with_file_name("private-folder");
        fs::create_dir(&private).unwrap();
        chmod(&private, 0o700);
        fs::rename(test_folder.dir.join(folder), test_folder.dir.join("moved")).unwrap();
        symlink(&private, test_folder.dir.join(folder)).unwrap();
        let error = open_shared(&test_folder, "?mode=0770").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{folder}: {error}");
        assert!(error.to_string().contains("link"), "{folder}: {error}");
        assert_eq!((mode(&private), fs::read_dir(&private).unwrap().count()), (0o700, 0), "{folder}");
    }
}

#[tokio::test]
async fn a_link_in_the_place_of_a_file_is_refused() {
    let test_folder = TestFolder::new();
    let private = private_file(&test_folder);
    let locks = open_shared(&test_folder, "?mode=0777").await.unwrap();
    symlink(&private, test_folder.file("job")).unwrap();
    let error = locks.mutex("job").try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    symlink(&private, test_folder.dir.join("records").join("job")).unwrap();
    let error = locks.records().unwrap().get("job").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert_untouched(&private);
}

#[tokio::test]
async fn a_second_name_of_another_file_is_refused() {
    let test_folder = TestFolder::new();
    let private = private_file(&test_folder);
    let locks = open_shared(&test_folder, "?mode=0777").await.unwrap();
    fs::hard_link(&private, test_folder.file("job")).unwrap();
    let error = locks.mutex("job").try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("2 names"), "{error}");
    assert_untouched(&private);
}

#[tokio::test]
async fn a_file_of_ours_that_was_moved_in_keeps_its_mode() {
    let test_folder = TestFolder::new();
    let private = private_file(&test_folder);
    let locks = open_shared(&test_folder, "?mode=0777").await.unwrap();
    fs::rename(&private, test_folder.file("job")).unwrap();
    assert_eq!(locks.mutex("job").try_lock().await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_untouched(&test_folder.file("job"));
}

#[tokio::test]
async fn a_pipe_in_the_place_of_a_file_does_not_block() {
    let test_folder = TestFolder::new();
    let locks = open_shared(&test_folder, "?mode=0770").await.unwrap();
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, test_folder.file("job"), fifo, rustix::fs::Mode::from_raw_mode(0o666), 0)
        .unwrap();
    let error = locks.mutex("job").try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}

#[tokio::test]
async fn a_temporary_file_is_not_written_through_a_link() {
    let test_folder = TestFolder::new();
    let private = private_file(&test_folder);
    let locks = open_shared(&test_folder, "?mode=0770").await.unwrap();
    for temp_name in ["floor.new", "floor", "audit.log", "records/.new"] {
        symlink(&private, test_folder.dir.join(temp_name)).unwrap();
    }
    acquire(&locks, "idle").await.unwrap_err();
    fs::remove_file(test_folder.dir.join("floor")).unwrap();
    acquire(&locks, "idle").await.unwrap();
    test_folder.make_idle("idle");
    drop(open_shared(&test_folder, "?mode=0770").await.unwrap());
    assert!(!test_folder.file("idle").exists(), "the idle file was swept, which raises the floor");
    locks.records().unwrap().update("r", |_, _| Some("value".to_owned())).await.unwrap();
    let held = locks.mutex("a").lock().await.unwrap();
    let claim = locks.inspect("a").await.unwrap().holders[0].claim;
    let _ = locks.force_release("a", claim).await.unwrap();
    drop(held);
    assert_untouched(&private);
}

#[tokio::test]
async fn the_mode_of_an_existing_folder_is_not_changed() {
    let test_folder = TestFolder::new();
    fs::create_dir(&test_folder.dir).unwrap();
    chmod(&test_folder.dir, 0o1777);
    let locks = open_shared(&test_folder, "?mode=0770").await.unwrap();
    acquire(&locks, "a").await.unwrap();
    assert_eq!(mode(&test_folder.dir), 0o1777);
    // A folder that its group cannot use is refused, and stays as it is.
    let other = TestFolder::new();
    fs::create_dir(&other.dir).unwrap();
    chmod(&other.dir, 0o700);
    let error = open_shared(&other, "?mode=0770").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("chmod 2770"), "{error}");
    assert_eq!(mode(&other.dir), 0o700);
}

#[tokio::test]
async fn the_setgid_bit_is_kept() {
    let test_folder = TestFolder::new();
    fs::create_dir(&test_folder.dir).unwrap();
    chmod(&test_folder.dir, 0o2770);
    let locks = open_shared(&test_folder, "?mode=0770").await.unwrap();
    acquire(&locks, "a").await.unwrap();
    assert_eq!(mode(&test_folder.dir), 0o2770);
    assert_eq!(mode(&test_folder.dir.join("locks")), 0o2770);
    // A folder that leasehold creates gets the bit.
    let other = TestFolder::new();
    acquire(&open_shared(&other, "?mode=0770").await.unwrap(), "a").await.unwrap();
    assert_eq!((mode(&other.dir), mode(&other.dir.join("clients"))), (0o2770, 0o2770));
}

#[tokio::test]
async fn everything_in_the_folder_has_its_group() {
    if !rustix::process::geteuid().is_root() {
        panic!("needs root, to give a folder to a group that this process is not in");
    }
    let test_folder = TestFolder::new();
    fs::create_dir(&test_folder.dir).unwrap();
    chmod(&test_folder.dir, 0o770);
    std::os::unix::fs::chown(&test_folder.dir, None, Some(4100)).unwrap();
    let locks = open_shared(&test_folder, "?mode=0770").await.unwrap();
    acquire(&locks, "a").await.unwrap();
    locks.records().unwrap().update("r", |_, _| Some("value".to_owned())).await.unwrap();
    let mut folders = vec![test_folder.dir.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            assert_eq!(fs::symlink_metadata(&path).unwrap().gid(), 4100, "{path:?}");
            folders.extend(path.is_dir().then_some(path));
        }
    }
    // A group can be named, too.
    let other = TestFolder::new();
    drop(open_shared(&other, "?mode=0770&group=4100").await.unwrap());
    assert_eq!((fs::metadata(&other.dir).unwrap().gid(), mode(&other.dir)), (4100, 0o2770));
    let error = open_shared(&other, "?mode=0770&group=4101").await.unwrap_err();
    assert!(error.to_string().contains("chgrp 4101"), "{error}");
}
