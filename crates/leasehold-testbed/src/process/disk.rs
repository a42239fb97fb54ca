//! A disk that a test may fill up.

use std::{
    fs, io,
    io::Write,
    path::{Path, PathBuf},
};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::TempDir;

use crate::{Error, Result};

/// What takes the room away; beside what others keep on the disk.
const FILLER_FILE: &str = "fill";
/// The most that is written at once.
const CHUNK_BYTES: usize = 64 * 1024;

/// A small disk of its own, in memory (tmpfs): filling it up is nobody else's trouble. Only root may have one.
///
/// Dropping it unmounts it, and everything on it is gone. A process that is killed leaves it mounted, with the
/// other folders that it leaves behind.
#[derive(Debug)]
pub struct Disk {
    folder: TempDir,
}

impl Disk {
    /// An empty disk that takes so many bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], also for whoever is not root.
    pub fn new(bytes: u64) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("leasehold-disk-")
            .tempdir()
            .map_err(Error::io("making a temporary folder"))?;
        let options = format!("size={bytes},mode=0755\0");
        let options = std::ffi::CStr::from_bytes_with_nul(options.as_bytes()).ok();
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount("leasehold", folder.path(), "tmpfs", flags, options)
            .map_err(|errno| Error::io("mounting a small disk, which only root may")(errno.into()))?;
        Ok(Self { folder })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Takes all the room that is left.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], for anything but a full disk.
    pub fn fill(&self) -> Result<()> {
        let filling = || Error::io("filling a disk");
        let mut file = fs::OpenOptions::new().append(true).create(true).open(self.filler_path()).map_err(filling())?;
        let zeros = [0; CHUNK_BYTES];
        let mut length = CHUNK_BYTES;
        while length > 0 {
            match file.write(&zeros[..length]) {
                Ok(_) => {}
                // The last bytes, too.
                Err(error) if error.kind() == io::ErrorKind::StorageFull => length /= 2,
                Err(error) => return Err(filling()(error)),
            }
        }
        Ok(())
    }

    /// Gives the room back that [`Disk::fill`] took.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn free(&self) -> Result<()> {
        // Emptied first: a process that is being started may have it open for a moment yet.
        let emptied = fs::OpenOptions::new().write(true).open(self.filler_path()).and_then(|file| file.set_len(0));
        match emptied.and_then(|()| fs::remove_file(self.filler_path())) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io("freeing a disk")(error)),
            _ => Ok(()),
        }
    }

    fn filler_path(&self) -> PathBuf {
        self.path().join(FILLER_FILE)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Nobody is left to tell. Whoever still has a file open there keeps it until he closes it.
        let _ = unmount(self.path(), UnmountFlags::DETACH);
    }
}
