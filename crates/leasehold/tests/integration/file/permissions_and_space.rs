//! The file engine in folders of other users, in folders without write access, and on a full disk.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use leasehold::{ErrorKind, Locks};

use crate::LONG_TTL;
use crate::file::{TASK, URL, child_command, child_task_test_name, lines};

/// The task `open`: opens the engine, acquires a lock, and prints `opened` or the error.
pub(crate) async fn open_and_report(url: &str) {
    let result = async { Locks::open(url).await?.mutex("a").try_lock().await };
    match result.await {
        Ok(_) => println!("\nresult opened"),
        Err(error) => println!("\nresult {} {error}", error.kind().as_str()),
    }
}

/// The task `fill`, on a small disk: holds a lock, fills the disk with others, and checks what
/// still works. Prints the error of the full disk, and `done`.
pub(crate) async fn fill_disk(url: &str) {
    let dir = Path::new(url.strip_prefix("file://").unwrap());
    fs::write(dir.join("ballast"), vec![1; 64 * 1024]).unwrap();
    let locks = Locks::builder().ttl(LONG_TTL).open(url).await.unwrap();
    let guard = locks.mutex("held").lock().await.unwrap();
    let mut names = 0;
    let error = loop {
        match locks.mutex(format!("name-{names}")).lock().await {
            Ok(guard) => drop(guard.release().await.unwrap()),
            Err(error) => break error,
        }
        names += 1;
        assert!(names < 10_000, "the disk never fills");
    };
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    println!("\nresult {error}");
    // A held lock stays held, and can be released and acquired again. No temporary file is left.
    assert!(guard.is_held());
    let token = guard.token();
    let _ = guard.release().await.unwrap();
    let again = locks.mutex("held").lock().await.unwrap();
    assert!(again.token() > token);
    let temp_files = fs::read_dir(dir.join("locks"))
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().as_encoded_bytes().starts_with(b"."));
    assert_eq!(temp_files.count(), 0);
    // Once there is space again, the lock that failed can be acquired.
    fs::remove_file(dir.join("ballast")).unwrap();
    let _ = locks.mutex(format!("name-{names}")).lock().await.unwrap();
    println!("\nresult done");
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|found| std::os::unix::fs::MetadataExt::uid(&found) == 0)
}

#[test]
fn a_folder_of_another_user_is_refused() {
    let temp_dir = tempfile::tempdir().unwrap();
    let dir = temp_dir.path().join("theirs");
    fs::create_dir(&dir).unwrap();
    // Root gives the folder to another user; any other user opens root's folder.
    let dir = if is_root() {
        chown(&dir, Some(65_534), None).unwrap();
        dir
    } else {
        "/root".into()
    };
    let output = child_command("open", &format!("file://{}", dir.display())).output().unwrap();
    let result = lines(&output.stdout, "result ");
    assert!(result[0].starts_with("denied") && result[0].contains("belongs to user"), "{result:?}");
}

#[test]
fn a_folder_that_cannot_be_written_is_refused() {
    let temp_dir = tempfile::tempdir().unwrap();
    fs::set_permissions(temp_dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let dir = temp_dir.path().join("ours");
    fs::create_dir(&dir).unwrap();
    let mut open = child_command("open", &format!("file://{}", dir.display()));
    if is_root() {
        // Root may write anywhere, so the child runs as another user, from a copy of this binary
        // that this user can read.
        chown(&dir, Some(65_534), Some(65_534)).unwrap();
        let exe = temp_dir.path().join("program");
        // Another process copies it, because a process cannot start a file that it has open for
        // writing.
        assert!(Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&exe).status().unwrap().success());
        open = Command::new(exe);
        open.args(["--exact", child_task_test_name(), "--nocapture"]).uid(65_534).gid(65_534);
        open.env(TASK, "open").env(URL, format!("file://{}", dir.display()));
    }
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o500)).unwrap();
    let output = open.output().unwrap();
    let result = lines(&output.stdout, "result ");
    assert!(result[0].starts_with("denied") && result[0].contains("writable"), "{result:?}");
}

#[test]
fn a_file_in_place_of_the_folder_is_refused() {
    let temp_dir = tempfile::tempdir().unwrap();
    let file = temp_dir.path().join("file");
    fs::write(&file, "mine").unwrap();
    let output = child_command("open", &format!("file://{}/below", file.display())).output().unwrap();
    let result = lines(&output.stdout, "result ");
    assert!(result[0].contains("cannot make the folder"), "{result:?}");
    let output = child_command("open", &format!("file://{}", file.display())).output().unwrap();
    let result = lines(&output.stdout, "result ");
    assert!(result[0].starts_with("invalid-url") && result[0].contains("is not a folder"), "{result:?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
}

#[test]
fn a_full_disk_is_reported_without_data_loss() {
    let temp_dir = tempfile::tempdir().unwrap();
    let small = temp_dir.path().join("small");
    fs::create_dir(&small).unwrap();
    // A file system of 256 KiB in a mount namespace of its own, which ends with the process.
    let mut unshare = Command::new("unshare");
    if !is_root() {
        unshare.arg("--map-root-user");
    }
    let script = "mount -t tmpfs -o size=256k,mode=700 tmpfs \"$1\" && shift && exec \"$@\"";
    unshare.args(["--mount", "sh", "-c", script, "sh"]).arg(&small).arg(std::env::current_exe().unwrap());
    unshare.args(["--exact", child_task_test_name(), "--nocapture", "--test-threads=1"]);
    let output = unshare.env(TASK, "fill").env(URL, format!("file://{}", small.display())).output().unwrap();
    let result = lines(&output.stdout, "result ");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && result.len() == 2, "{result:?} {stderr}");
    assert!(result[0].contains("make room"), "{result:?}");
}
