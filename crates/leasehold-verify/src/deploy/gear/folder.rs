//! A folder of this host; on a small disk if the disk is to fill up.

use std::path::PathBuf;
use std::time::Duration;

use leasehold_testbed::Disk;
use tempfile::TempDir;

use super::unfit;
use crate::deploy::{Setup, Strike, Trouble};
use crate::dice::Dice;
use crate::history::FaultKind;

/// Enough for some thousand locks.
const DISK: u64 = 16 * 1024 * 1024;

pub(in crate::deploy) struct Folder {
    place: Place,
    ttl: Duration,
}

enum Place {
    Plain(TempDir),
    Small(Disk),
}

impl Folder {
    pub(super) fn make(setup: &Setup) -> Result<Self, Trouble> {
        let place = if setup.wants(FaultKind::DiskFull) {
            Place::Small(Disk::new(DISK)?)
        } else {
            let folder = tempfile::Builder::new().prefix("leasehold-verify-").tempdir();
            Place::Plain(folder.map_err(|error| Trouble::new(format!("making a temporary folder: {error}")))?)
        };
        Ok(Self { place, ttl: setup.ttl })
    }

    /// The engine creates the folder itself, so that it owns it.
    fn path(&self) -> PathBuf {
        match &self.place {
            Place::Plain(folder) => folder.path().join("locks"),
            Place::Small(disk) => disk.path().join("locks"),
        }
    }

    pub(super) fn url(&self) -> String {
        let path = self.path().to_string_lossy().replace('%', "%25").replace('?', "%3F");
        format!("file://{path}")
    }

    pub(super) fn begin(&mut self, fault: FaultKind, dice: &mut Dice) -> Result<Strike, Trouble> {
        match (&self.place, fault) {
            (Place::Small(disk), FaultKind::DiskFull) => {
                disk.fill()?;
                Ok(Strike::new("the folder's disk".to_owned(), dice.time(self.ttl, self.ttl * 2)))
            }
            _ => Err(unfit(fault)),
        }
    }

    pub(super) fn end(&mut self, fault: FaultKind) -> Result<String, Trouble> {
        match (&self.place, fault) {
            (Place::Small(disk), FaultKind::DiskFull) => {
                disk.free()?;
                Ok("there is room again".to_owned())
            }
            _ => Err(unfit(fault)),
        }
    }
}
