//! The checks of `leasehold doctor` for `file:`: whether the folder can store locks, its file
//! system, and its free space.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access, statvfs};

use crate::{Finding, Level};
use leasehold::engine::EngineUrl;
use leasehold::{Error, ErrorKind, Result};
use leasehold_internals::file::config::{self, Config};
use leasehold_internals::file::folder::{self, Folder};

/// Less free space, in bytes, causes a warning: it is too little for a few thousand locks.
const MIN_FREE_SPACE: u64 = 16 * 1024 * 1024;

/// Examines the folder. A folder that does not exist is not created.
pub(crate) fn examine(url: &EngineUrl) -> Result<Vec<Finding>> {
    let config = Config::parse(url)?;
    let (nearest, exists) = nearest_existing(&config.dir);
    let shown = config.dir.display().to_string();
    let is_used = exists && !matches!(config.dir.join("locks").try_exists(), Ok(false));
    let folder = match (exists, is_used) {
        (true, true) => check_used_folder(&config, &shown),
        (true, false) => check_unused_folder(&config, &nearest, &shown),
        _ => check_creatable(&nearest, &shown),
    };
    let mut findings = vec![folder];
    findings.push(check_file_system(&nearest, &shown));
    findings.push(check_free_space(&nearest, &shown));
    if url.path.is_empty() {
        findings.push(check_default_folders(&config.dir, &config::default_dirs(), &shown));
    }
    Ok(findings)
}

/// Warns if other default folders on this host store locks. Without a folder in the URL each user
/// has a separate one, and a job with another `XDG_STATE_HOME` has yet another.
fn check_default_folders(used: &Path, all: &[PathBuf], shown: &str) -> Finding {
    let canonical = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let others: Vec<String> = all
        .iter()
        .filter(|dir| has_locks(dir) && canonical(dir) != canonical(used))
        .map(|dir| dir.display().to_string())
        .collect();
    let new = |level, found: String| Finding::new(level, "default-folder", shown, found);
    match others.len() {
        0 => new(Level::Ok, "no other user's default folder is visible".to_owned())
            .impact("without a path, `file:` is a separate folder for each user; folders in unreadable homes or below another XDG_STATE_HOME are not visible"),
        _ => new(Level::Warn, format!("there are other default folders on this host: {}", others.join(", ")))
            .impact("locks in different folders do not exclude each other: two users may both hold the same name")
            .fix("use one folder for all users: file:///srv/locks?mode=0770&group=NAME"),
    }
}

/// Whether this folder stores locks. A folder whose content this user may not read counts as one:
/// another user's default folder has mode 0700.
fn has_locks(dir: &Path) -> bool {
    match dir.join("locks").metadata() {
        Ok(found) => found.is_dir(),
        Err(error) => error.kind() == io::ErrorKind::PermissionDenied && dir.is_dir(),
    }
}

/// The folder, or the nearest existing one above it; and whether the folder itself exists.
fn nearest_existing(dir: &Path) -> (PathBuf, bool) {
    let mut above = dir.ancestors().skip(1);
    match dir.try_exists() {
        Ok(false) => {
            let found = above.find(|dir| !dir.as_os_str().is_empty() && dir.exists());
            (found.map_or_else(|| PathBuf::from("."), Path::to_path_buf), false)
        }
        // A folder that this user may not read exists, and opening it returns the reason.
        _ => (dir.to_path_buf(), true),
    }
}

/// Checks a folder that stores locks: whether this user may use it.
fn check_used_folder(config: &Config, shown: &str) -> Finding {
    match Folder::open(config) {
        Ok(_) => Finding::new(Level::Ok, "folder", shown, "it exists, belongs to this user, and is writable")
            .impact("locks can be acquired"),
        Err(error) => refused_finding(&error, shown),
    }
}

/// Checks an existing folder in which no lock was ever acquired. It may belong to another user, so
/// no file is created in it.
fn check_unused_folder(config: &Config, dir: &Path, shown: &str) -> Finding {
    match (folder::check_root(config), access(dir, Access::WRITE_OK | Access::EXEC_OK)) {
        (Err(error), _) => refused_finding(&error, shown),
        (Ok(()), Err(error)) => Finding::new(Level::Fail, "folder", shown, format!("it cannot be written: {error}"))
            .impact("no lock can be acquired")
            .fix("give it to the user that acquires locks, or use another folder: file:///dir"),
        (Ok(()), Ok(())) => Finding::new(Level::Ok, "folder", shown, "it exists, and no lock was ever acquired in it")
            .impact("locks can be acquired; if the path is mistyped, they exclude no other client"),
    }
}

/// The finding for a folder that cannot be used because of `error`.
fn refused_finding(error: &Error, shown: &str) -> Finding {
    let fix = match error.kind() {
        ErrorKind::Full => "free space on its file system",
        ErrorKind::Unsupported => "use a local folder: file:///dir",
        _ => "correct the reported error, or use another folder: file:///dir",
    };
    Finding::new(Level::Fail, "folder", shown, error.to_string()).impact("no lock can be acquired").fix(fix)
}

/// Checks whether the missing folder can be created in `above`, the nearest folder that exists.
fn check_creatable(above: &Path, shown: &str) -> Finding {
    match access(above, Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) => Finding::new(Level::Ok, "folder", shown, format!("it does not exist yet; {} does", above.display()))
            .impact("the first lock creates it"),
        Err(error) => {
            let found = format!("it does not exist, and {} cannot be written: {error}", above.display());
            Finding::new(Level::Fail, "folder", shown, found)
                .impact("no lock can be acquired")
                .fix("create the folder and give it to the user that acquires locks, or use another: file:///dir")
        }
    }
}

/// Checks whether the folder is on a local file system. `shown` is its path in the finding.
fn check_file_system(dir: &Path, shown: &str) -> Finding {
    let new = |level, found: &str| Finding::new(level, "file-system", shown, found);
    match folder::check_local(dir) {
        Ok(folder::FileSystemKind::Local) => new(Level::Ok, "it is not a known network file system")
            .impact("the kernel knows all holders, and frees the lock of a holder that dies"),
        Ok(folder::FileSystemKind::Fuse) => new(Level::Warn, "it is a FUSE file system, which may be local or shared")
            .impact("if another host uses it, too, two holders of one lock do not see each other")
            .fix("use a folder on a local disk: file:///dir"),
        Err(error) if error.kind() == ErrorKind::Unsupported => new(Level::Fail, &error.to_string())
            .impact("two hosts could hold the same lock, so it is refused")
            .fix("use a folder on a local disk: file:///dir"),
        Err(error) => new(Level::Unknown, &error.to_string()).impact("two hosts may share it"),
    }
}

/// Checks the free space of the folder's file system. `shown` is its path in the finding.
fn check_free_space(dir: &Path, shown: &str) -> Finding {
    match statvfs(dir) {
        Ok(found) => {
            let free = found.f_bavail.saturating_mul(found.f_frsize);
            let mebibytes = free / (1024 * 1024);
            let level = if free < MIN_FREE_SPACE { Level::Warn } else { Level::Ok };
            let finding = Finding::new(level, "space", shown, format!("{mebibytes} MiB are free"));
            match level {
                Level::Ok => finding.impact("there is space for new locks"),
                _ => finding
                    .impact("without space no new lock can be acquired; held locks can be renewed and released")
                    .fix("free space on its file system"),
            }
        }
        Err(error) => Finding::new(Level::Unknown, "space", shown, error.to_string())
            .impact("without space no new lock can be acquired"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(url: &str) -> Vec<(&'static str, Level)> {
        let findings = examine(&EngineUrl::parse(url).unwrap()).unwrap();
        findings.iter().map(|finding| (finding.check, finding.level)).collect()
    }

    #[test]
    fn several_default_folders_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let all = ["used", "other", "empty"].map(|name| dir.path().join(name));
        std::fs::create_dir_all(all[0].join("locks")).unwrap();
        std::fs::create_dir_all(&all[2]).unwrap();
        assert_eq!(check_default_folders(&all[0], &all, "").level, Level::Ok);
        std::fs::create_dir_all(all[1].join("locks")).unwrap();
        let found = check_default_folders(&all[0], &all, "");
        assert_eq!(found.level, Level::Warn);
        assert!(found.found.contains("/other") && !found.found.contains("/used"), "{found:?}");
    }

    #[test]
    fn existing_creatable_and_impossible_folders_are_distinguished() {
        let dir = tempfile::tempdir().unwrap();
        let here = dir.path().display();
        assert!(levels(&format!("file://{here}")).contains(&("folder", Level::Ok)));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nor in an existing folder");
        assert!(levels(&format!("file://{here}/a/b")).contains(&("folder", Level::Ok)));
        assert!(!dir.path().join("a").exists(), "the examination creates nothing");
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert!(levels(&format!("file://{here}/file")).contains(&("folder", Level::Fail)));
        assert!(levels(&format!("file://{here}/file/x")).contains(&("folder", Level::Fail)));
    }
}
