//! Clients: a file each, locked by its process as long as that lives. The kernel lets go when it dies.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, Timespec, Timestamps, UTIME_NOW, flock, fstat, futimens};

use super::error;
use super::folder::{self, Folder};
use crate::claim::Holder;
use crate::error::Result;

/// How many files of others one start looks at, to clear away those of the dead.
const SWEEP: usize = 256;

/// This client, alive as long as its file is open.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) id: u128,
    file: File,
}

impl Client {
    pub(super) fn register(folder: &Folder, holder: &Holder) -> Result<Self> {
        sweep(folder);
        loop {
            let id = crate::random::bits();
            let path = folder.client_path(id);
            let register = || -> io::Result<Option<Self>> {
                let mut file = folder.open_file(&path, OpenOptions::new().read(true).write(true).create_new(true))?;
                flock(&file, FlockOperation::LockExclusive)?;
                // Before it was locked, somebody who clears away may have thought it dead.
                if file.metadata()?.nlink() == 0 {
                    return Ok(None);
                }
                writeln!(file, "{}\n{}\n{}", holder.host, holder.pid, holder.program)?;
                Ok(Some(Self { id, file }))
            };
            match register() {
                Ok(Some(client)) => return Ok(client),
                Ok(None) => {}
                Err(other) => return Err(error::at(&path, "make", other)),
            }
        }
    }

    /// The file system's present time: our file was just written.
    pub(super) fn started(&self) -> Option<SystemTime> {
        self.file.metadata().and_then(|found| found.modified()).ok()
    }

    /// The file system's present time, since 1970: the kernel's for a file that was just touched. Asked for by system calls of our
    /// own, since a library that falsifies a process's clock also falsifies what the C library says of files.
    pub(super) fn touch(&self) -> io::Result<Duration> {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        futimens(&self.file, &Timestamps { last_access: now, last_modification: now })?;
        let found = fstat(&self.file)?;
        let (seconds, nanos) = (u64::try_from(found.st_mtime), u32::try_from(found.st_mtime_nsec));
        Ok(Duration::new(seconds.unwrap_or(0), nanos.unwrap_or(0)))
    }

    /// Whether our file is still there for others to see.
    pub(super) fn is_registered(&self) -> bool {
        self.file.metadata().is_ok_and(|found| found.nlink() > 0)
    }

    /// A copy of the descriptor that proves our life.
    pub(super) fn lifeline(&self) -> Option<OwnedFd> {
        self.file.try_clone().ok().map(Into::into)
    }
}

/// Whether a client's process lives.
pub(super) fn is_alive(folder: &Folder, client: u128) -> bool {
    match File::open(folder.client_path(client)) {
        Ok(file) => flock(&file, FlockOperation::NonBlockingLockShared).is_err(),
        // Not to be seen (too many open files, say) is not to be dead.
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// Who a client is, for people to see.
pub(super) fn describe(folder: &Folder, client: u128, text: &str) -> Holder {
    let info = fs::read_to_string(folder.client_path(client)).unwrap_or_default();
    let mut lines = info.lines();
    let host = lines.next().unwrap_or("?");
    let pid = lines.next().and_then(|pid| pid.parse().ok()).unwrap_or(0);
    Holder::new(host, pid, lines.next().unwrap_or("?"), text)
}

/// Takes a client's files away.
pub(super) fn remove(folder: &Folder, client: u128) {
    for path in [folder.client_path(client), folder.bell_path(client)] {
        // Somebody else may have been quicker; what stays is cleared away at a later start.
        let _ = fs::remove_file(path);
    }
}

/// Takes a dead client's files away, under the lock that a living one has: who is about to register finds its file gone.
fn clear(folder: &Folder, client: u128) {
    match File::open(folder.client_path(client)) {
        Ok(file) if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() => remove(folder, client),
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => remove(folder, client),
        _ => {}
    }
}

/// Clears away what dead clients left.
fn sweep(folder: &Folder) {
    for name in folder::some_of(folder.clients(), SWEEP) {
        let id = Path::new(&name).file_stem().and_then(|stem| stem.to_str());
        if let Some(id) = id.and_then(|id| u128::from_str_radix(id, 16).ok()) {
            clear(folder, id);
        }
    }
}
