//! Clients: each has a file that its process keeps locked. The kernel releases that lock when the
//! process dies.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags, Timespec, Timestamps, UTIME_NOW, flock, fstat, futimens, stat};
use rustix::io::Errno;

use super::error;
use super::folder::{self, Folder, client_file, socket_file};
use crate::types::{FORMAT, Holder, Result};

/// How many files of other clients one start checks, to remove those of dead ones.
const MAX_CLIENTS_SWEPT: usize = 256;

/// This client, alive as long as its file is open.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) id: u128,
    file: File,
    /// The path where other clients look for the file.
    path: PathBuf,
    /// Device and inode number of the file.
    device_and_inode: (u64, u64),
}

/// The maximum size of a client's file, which has the client's description in three lines.
const MAX_CLIENT_FILE: u64 = 64 * 1024;

impl Client {
    pub(super) fn register(folder: &Folder, holder: &Holder) -> Result<Self> {
        remove_dead_clients(folder);
        loop {
            let id = crate::random::random_bits();
            let path = folder.client_path(id);
            let register = || -> io::Result<Option<Self>> {
                let mut file = folder.clients.create(&client_file(id))?;
                flock(&file, FlockOperation::LockExclusive)?;
                // Before it was locked, a cleaning process may have considered its client dead.
                let found = fstat(&file)?;
                if found.st_nlink == 0 {
                    return Ok(None);
                }
                writeln!(file, "{FORMAT}\n{}\n{}\n{}", holder.host, holder.pid, holder.program)?;
                Ok(Some(Self { id, file, path: path.clone(), device_and_inode: (found.st_dev, found.st_ino) }))
            };
            match register() {
                Ok(Some(client)) => return Ok(client),
                Ok(None) => {}
                Err(other) => return Err(error::io_error_at(&path, "make", other)),
            }
        }
    }

    /// The file system's present time, since 1970: the kernel's time for a file that was just
    /// touched. It uses system calls directly, because a library that fakes a process's clock also
    /// fakes the file times of the C library.
    pub(super) fn touch_and_read_time(&self) -> io::Result<Duration> {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        futimens(&self.file, &Timestamps { last_access: now, last_modification: now })?;
        let found = fstat(&self.file)?;
        let (seconds, nanos) = (u64::try_from(found.st_mtime), u32::try_from(found.st_mtime_nsec));
        Ok(Duration::new(seconds.unwrap_or(0), nanos.unwrap_or(0)))
    }

    /// Whether other processes that open the folder by its path find our file there. They do not if
    /// it was removed, or if the whole folder was removed, moved or replaced.
    pub(super) fn is_registered(&self) -> bool {
        match stat(&self.path) {
            Ok(found) => (found.st_dev, found.st_ino) == self.device_and_inode,
            // A file that cannot be seen may still exist.
            Err(error) => !matches!(error, Errno::NOENT | Errno::NOTDIR),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A copy of the descriptor that proves that this client is alive.
    pub(super) fn liveness_fd(&self) -> Option<OwnedFd> {
        self.file.try_clone().ok().map(Into::into)
    }
}

/// Whether a client's process is alive.
pub(super) fn is_alive(folder: &Folder, client: u128) -> bool {
    match folder.clients.open(&client_file(client), OFlags::RDONLY) {
        Ok(file) => flock(&file, FlockOperation::NonBlockingLockShared).is_err(),
        // A client that cannot be checked (too many open files, for example) may still be alive.
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// Describes a client for an error message.
pub(super) fn read_holder(folder: &Folder, client: u128, text: &str) -> Holder {
    let info = folder.clients.read(&client_file(client), MAX_CLIENT_FILE).ok().flatten().unwrap_or_default();
    let info = String::from_utf8_lossy(&info);
    // An unknown format shows as an unknown client.
    let mut lines = info.strip_prefix(&format!("{FORMAT}\n")).unwrap_or_default().lines();
    let host = lines.next().unwrap_or("?");
    let pid = lines.next().and_then(|pid| pid.parse().ok()).unwrap_or(0);
    Holder::new(host, pid, lines.next().unwrap_or("?"), text)
}

/// Removes a client's files.
pub(super) fn remove_files(folder: &Folder, client: u128) {
    for name in [client_file(client), socket_file(client)] {
        // Another process may have been faster; a later start removes the remaining files.
        let _ = folder.clients.remove(&name);
    }
}

/// Removes a dead client's files, under the lock that a living client holds. A client that is
/// registering at that moment then finds its file missing.
fn remove_if_dead(folder: &Folder, client: u128) {
    match folder.clients.open(&client_file(client), OFlags::RDONLY) {
        Ok(file) if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() => remove_files(folder, client),
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => remove_files(folder, client),
        _ => {}
    }
}

/// Removes the files of dead clients.
fn remove_dead_clients(folder: &Folder) {
    for name in folder::sample_files(&folder.clients, MAX_CLIENTS_SWEPT).0 {
        let id = Path::new(&name).file_stem().and_then(|stem| stem.to_str());
        if let Some(id) = id.and_then(|id| u128::from_str_radix(id, 16).ok()) {
            remove_if_dead(folder, id);
        }
    }
}
