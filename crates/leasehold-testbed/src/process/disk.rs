//! A disk that a test can fill up.

use std::{
    fs, io,
    io::Write,
    path::{Path, PathBuf},
};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::TempDir;

use crate::{Error, Result};

/// The file that fills the disk.
const FILLER_FILE: &str = "fill";
/// The maximum size of one write.
const CHUNK_BYTES: usize = 64 * 1024;

/// A small separate disk in memory (tmpfs), so that filling it up affects no other program. Only
/// root can mount one.
///
/// Dropping it unmounts it and deletes its files. A killed process leaves it mounted, like its
/// other temporary folders.
#[derive(Debug)]
pub struct Disk {
    folder: TempDir,
}

impl Disk {
    /// Mounts an empty disk of this size.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], also without root privileges.
    pub fn new(bytes: u64) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("leasehold-disk-")
            .tempdir()
            .map_err(Error::io("creating a temporary folder"))?;
        let options = format!("size={bytes},mode=0755\0");
        let options = std::ffi::CStr::from_bytes_with_nul(options.as_bytes()).ok();
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount("leasehold", folder.path(), "tmpfs", flags, options)
            .map_err(|errno| Error::io("mounting a small disk, which only root may")(errno.into()))?;
        Ok(Self { folder })
    }

    /// Where the disk is mounted.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Fills up the disk, to its last byte.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], for all errors except a full disk.
    pub fn fill(&self) -> Result<()> {
        let filling = || Error::io("filling a disk");
        let mut file = fs::OpenOptions::new().append(true).create(true).open(self.filler_path()).map_err(filling())?;
        let zeros = [0; CHUNK_BYTES];
        let mut length = CHUNK_BYTES;
        while length > 0 {
            match file.write(&zeros[..length]) {
                Ok(_) => {}
                // Smaller writes fill the last bytes, too.
                Err(error) if error.kind() == io::ErrorKind::StorageFull => length /= 2,
                Err(error) => return Err(filling()(error)),
            }
        }
        Ok(())
    }

    /// Frees the space that [`Disk::fill`] used.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn free(&self) -> Result<()> {
        // Truncated first: a starting process may still have it open for a moment.
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
        // An error cannot be returned. Open files stay usable until they are closed.
        let _ = unmount(self.path(), UnmountFlags::DETACH);
    }
}
