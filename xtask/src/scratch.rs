//! Where the servers of the tests keep what they have.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::say;

/// Where there is a file system in memory.
const IN_MEMORY: &str = "/dev/shm";

/// So much room all servers of a run need at the most, in KiB, with some to spare.
const ROOM: u64 = 6 * 1024 * 1024;

/// Where the servers keep their data: in memory if there is room. Dozens of servers that wait for one disk at the same time wait
/// for seconds, which is not what their tests are about; and what a killed process has written is kept in either.
pub(crate) struct Scratch {
    /// None: where temporary folders are anyway.
    folder: Option<PathBuf>,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        let folder = Path::new(IN_MEMORY).join(format!("leasehold-tests-{}", std::process::id()));
        // Some servers are run by other users.
        let made =
            || fs::create_dir(&folder).and_then(|()| fs::set_permissions(&folder, Permissions::from_mode(0o1777)));
        let fits = room(Path::new(IN_MEMORY)).is_some_and(|room| room >= ROOM);
        Self { folder: (std::env::var_os("TMPDIR").is_none() && fits && made().is_ok()).then_some(folder) }
    }

    /// Has a program, and all that it starts, keep its temporary folders there.
    pub(crate) fn lend(&self, command: &mut Command) {
        if let Some(folder) = &self.folder {
            command.env("TMPDIR", folder);
        }
    }

    /// Says where that is.
    pub(crate) fn words(&self) -> String {
        match &self.folder {
            Some(folder) => format!("in memory ({})", folder.display()),
            None => format!("in {}", std::env::temp_dir().display()),
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(folder) = &self.folder
            && let Err(error) = fs::remove_dir_all(folder)
        {
            say(&format!("xtask: {} is left behind: {error}", folder.display()));
        }
    }
}

/// Removes what killed processes have left there of a clock that was moved for them: a file by their number, with which the next process of that
/// number could not have such a clock.
pub(crate) fn clear_clocks() {
    let Ok(entries) = fs::read_dir(IN_MEMORY) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let pid = name.strip_prefix("faketime_shm_").or_else(|| name.strip_prefix("sem.faketime_sem_"));
        if pid.is_some_and(|pid| pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists()) {
            // Another program's end may have removed it first, and it may be somebody else's.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// How much can be written there, in KiB: no more than there is memory for.
fn room(folder: &Path) -> Option<u64> {
    let df = Command::new("df").args(["--output=avail", "--block-size=1K"]).arg(folder).output().ok()?;
    let free = String::from_utf8_lossy(&df.stdout).lines().nth(1)?.trim().parse::<u64>().ok()?;
    let memory = fs::read_to_string("/proc/meminfo").ok()?;
    let line = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let available = line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?;
    // The servers themselves need memory, too.
    Some(free.min(available / 2))
}
