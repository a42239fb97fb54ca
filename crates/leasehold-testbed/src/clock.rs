//! A wall clock that a test can set.

use std::{
    env, fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use tempfile::TempDir;

use crate::{Error, Result};

/// The library that replaces a process's clock, below `/usr/lib/<architecture>`.
const LIBRARY: &str = "faketime/libfaketimeMT.so.1";
/// The Debian package of the library.
const PACKAGE: &str = "faketime";
/// Where the library creates files in shared memory.
const SHARED_MEMORY: &str = "/dev/shm";

/// The wall clock of one or several servers, which a test can set while they run.
///
/// Only the wall clock changes: the monotonic clock, which servers use for timeouts, is not
/// affected.
///
/// ```no_run
/// # async fn example() -> leasehold_testbed::Result<()> {
/// use leasehold_testbed::{WallClock, mariadb::MariaDb};
///
/// let clock = WallClock::new()?;
/// let server = MariaDb::new().clock(&clock).start().await?;
/// clock.set_offset(-3600)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct WallClock {
    folder: Arc<TempDir>,
    library: PathBuf,
}

impl WallClock {
    /// A clock that shows the right time until it is set.
    ///
    /// # Errors
    ///
    /// [`Error::NotInstalled`], naming the package; [`Error::Io`].
    pub fn new() -> Result<Self> {
        let library = find_library().ok_or_else(|| Error::not_installed(LIBRARY, PACKAGE))?;
        let readable = fs::Permissions::from_mode(0o755);
        let folder = tempfile::Builder::new()
            .prefix("leasehold-clock-")
            .permissions(readable)
            .tempdir()
            .map_err(Error::io("creating a temporary folder"))?;
        let clock = Self { folder: Arc::new(folder), library };
        clock.set_offset(0)?;
        Ok(clock)
    }

    /// Sets the clock this many seconds ahead of the right time; behind it if negative.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn set_offset(&self, seconds: i64) -> Result<()> {
        let draft = self.folder.path().join("draft");
        let write = || {
            fs::write(&draft, format!("{seconds:+}\n"))?;
            fs::set_permissions(&draft, fs::Permissions::from_mode(0o644))?;
            fs::rename(&draft, self.file())
        };
        write().map_err(Error::io("setting a clock"))
    }

    /// The file with the clock's offset, which the processes read.
    fn file(&self) -> PathBuf {
        self.folder.path().join("offset")
    }

    /// The environment variables with which a process uses this clock.
    pub fn environment(&self) -> Vec<(String, String)> {
        // With the C library in the list, the preloaded library finds the replaced functions
        // without loading a library. Some servers' memory allocators crash otherwise.
        let preload = format!("{} libc.so.6", self.library.display());
        let variables = [
            ("LD_PRELOAD", preload),
            ("FAKETIME_TIMESTAMP_FILE", self.file().display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ];
        variables.map(|(name, value)| (name.to_owned(), value)).to_vec()
    }
}

/// Removes the shared memory that the clock of a killed process has left. The process's id is in
/// `pid_file`, which it would have removed at a clean exit; without that file there is no effect.
pub(crate) fn remove_leftovers(pid_file: &Path) {
    let Ok(text) = fs::read_to_string(pid_file) else {
        return;
    };
    let (Ok(pid), Ok(owner)) = (text.trim().parse::<u32>(), fs::metadata(pid_file)) else {
        return;
    };
    remove_shared_memory(pid, owner.uid());
}

/// Removes the shared memory that the clock of a killed process has left: the process `pid` of this
/// own user.
pub(crate) fn remove_leftovers_of(pid: u32) {
    remove_shared_memory(pid, rustix::process::geteuid().as_raw());
}

fn remove_shared_memory(pid: u32, owner: u32) {
    for name in [format!("faketime_shm_{pid}"), format!("sem.faketime_sem_{pid}")] {
        let file = Path::new(SHARED_MEMORY).join(name);
        if fs::metadata(&file).is_ok_and(|found| found.uid() == owner) {
            // Errors are ignored: only a few bytes remain.
            let _ = fs::remove_file(file);
        }
    }
}

/// The path of the library on this machine; `None` if it is not installed.
fn find_library() -> Option<PathBuf> {
    let architecture = format!("{}-linux-gnu", env::consts::ARCH);
    let here = Path::new("/usr/lib").join(architecture).join(LIBRARY);
    here.is_file().then_some(here)
}
