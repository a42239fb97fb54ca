//! The data folder of the test servers.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::print_line;

/// The file system in memory.
const MEMORY_FILE_SYSTEM: &str = "/dev/shm";

/// The maximum space for all servers of a run, in KiB, with a reserve.
const MIN_FREE_KIB: u64 = 6 * 1024 * 1024;

/// The servers' data folder: in memory if there is space. Dozens of servers that wait for one disk
/// at the same time wait for seconds, and their tests do not test disks. Data that a killed process
/// wrote survives in both.
pub(crate) struct ServerDataFolder {
    /// `None`: the default temporary folder.
    folder: Option<PathBuf>,
}

impl ServerDataFolder {
    pub(crate) fn new() -> Self {
        let folder = Path::new(MEMORY_FILE_SYSTEM).join(format!("leasehold-tests-{}", std::process::id()));
        // Servers that run as another user must be able to enter the folder.
        let made =
            || fs::create_dir(&folder).and_then(|()| fs::set_permissions(&folder, Permissions::from_mode(0o1777)));
        let fits = available_kib(Path::new(MEMORY_FILE_SYSTEM)).is_some_and(|room| room >= MIN_FREE_KIB);
        Self { folder: (std::env::var_os("TMPDIR").is_none() && fits && made().is_ok()).then_some(folder) }
    }

    /// Makes a program, and all its children, create their temporary folders there.
    pub(crate) fn set_tmpdir(&self, command: &mut Command) {
        if let Some(folder) = &self.folder {
            command.env("TMPDIR", folder);
        }
    }

    /// Describes the location.
    pub(crate) fn describe(&self) -> String {
        match &self.folder {
            Some(folder) => format!("in memory ({})", folder.display()),
            None => format!("in {}", std::env::temp_dir().display()),
        }
    }
}

impl Drop for ServerDataFolder {
    fn drop(&mut self) {
        if let Some(folder) = &self.folder
            && let Err(error) = fs::remove_dir_all(folder)
        {
            print_line(&format!("xtask: {} is left behind: {error}", folder.display()));
        }
    }
}

/// Removes the files that killed processes with a moved clock left there. Such a file is named
/// after its process id, and the next process with that id could not move its clock.
pub(crate) fn remove_stale_clock_files() {
    let Ok(entries) = fs::read_dir(MEMORY_FILE_SYSTEM) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let pid = name.strip_prefix("faketime_shm_").or_else(|| name.strip_prefix("sem.faketime_sem_"));
        if pid.is_some_and(|pid| pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists()) {
            // Another program may have removed it first, or another user may own it.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// The space for data there, in KiB: limited by the available memory.
fn available_kib(folder: &Path) -> Option<u64> {
    let df = Command::new("df").args(["--output=avail", "--block-size=1K"]).arg(folder).output().ok()?;
    let free = String::from_utf8_lossy(&df.stdout).lines().nth(1)?.trim().parse::<u64>().ok()?;
    let memory = fs::read_to_string("/proc/meminfo").ok()?;
    let line = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let available = line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?;
    // The servers themselves need memory, too.
    Some(free.min(available / 2))
}
