//! The folder of the engine `file:`; on a small disk of its own if that is to fill up.

use std::path::PathBuf;
use std::time::Duration;

use leasehold_testbed::Disk;
use tempfile::TempDir;

use super::unsupported_fault;
use crate::deployment::{ActiveFault, DeploymentOptions, RunError};
use crate::history::FaultKind;
use crate::rng::Rng;

/// The size of the small disk: enough for some thousand locks.
const DISK_BYTES: u64 = 16 * 1024 * 1024;

/// The folder of the engine `file:`, removed when dropped.
pub(in crate::deployment) struct Folder {
    storage: Storage,
    ttl: Duration,
}

enum Storage {
    TempFolder(TempDir),
    /// A disk of its own, which can be filled up.
    SmallDisk(Disk),
}

impl Folder {
    /// Chooses a place for the folder: a small disk if that is to fill up.
    pub(super) fn create(options: &DeploymentOptions) -> Result<Self, RunError> {
        let storage = if options.has_fault(FaultKind::DiskFull) {
            Storage::SmallDisk(Disk::new(DISK_BYTES)?)
        } else {
            let folder = tempfile::Builder::new().prefix("leasehold-verify-").tempdir();
            Storage::TempFolder(
                folder.map_err(|error| RunError::new(format!("cannot create a temporary folder: {error}")))?,
            )
        };
        Ok(Self { storage, ttl: options.ttl })
    }

    /// The path of the engine's folder, which the engine itself creates.
    fn path(&self) -> PathBuf {
        match &self.storage {
            Storage::TempFolder(folder) => folder.path().join("locks"),
            Storage::SmallDisk(disk) => disk.path().join("locks"),
        }
    }

    /// The engine's URL.
    pub(super) fn url(&self) -> String {
        let path = self.path().to_string_lossy().replace('%', "%25").replace('?', "%3F");
        format!("file://{path}")
    }

    /// Fills up the disk.
    pub(super) fn begin_fault(&mut self, fault: FaultKind, rng: &mut Rng) -> Result<ActiveFault, RunError> {
        match (&self.storage, fault) {
            (Storage::SmallDisk(disk), FaultKind::DiskFull) => {
                disk.fill()?;
                Ok(ActiveFault::new("the folder's disk".to_owned(), rng.duration_in(self.ttl, self.ttl * 2)))
            }
            _ => Err(unsupported_fault(fault)),
        }
    }

    /// Frees the disk; returns a note on the result.
    pub(super) fn end_fault(&mut self, fault: FaultKind) -> Result<String, RunError> {
        match (&self.storage, fault) {
            (Storage::SmallDisk(disk), FaultKind::DiskFull) => {
                disk.free()?;
                Ok("there is space again".to_owned())
            }
            _ => Err(unsupported_fault(fault)),
        }
    }
}
