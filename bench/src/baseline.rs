//! The baselines: the minimum of work for each task.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::time::{ClockId, clock_gettime};

/// The machine's monotonic clock, with which the benches measure.
pub(crate) fn monotonic_now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Only the system calls that the file engine's guarantees need. Acquire: lock the file
/// exclusively; check that the file is still in place, and that other clients see this process
/// alive; read the holders; write the new token and holder in one call; unlock. Release: the same
/// without the checks. Without a durable token and a holder's record, two `flock` calls would be
/// enough.
pub(crate) struct RawFile(File);

impl RawFile {
    pub(crate) fn new(dir: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(dir.join("raw"))?;
        file.write_all_at(&[0; 1024 + 64 * 128], 0)?;
        Ok(Self(file))
    }

    pub(crate) fn acquire_and_release(&self) -> io::Result<()> {
        let mut page = [0; 4096];
        flock(&self.0, FlockOperation::LockExclusive)?;
        std::hint::black_box(self.0.metadata()?.nlink());
        std::hint::black_box(self.0.metadata()?.nlink());
        self.0.read_exact_at(&mut page, 0)?;
        self.0.write_all_at(&page[960..1152], 960)?;
        flock(&self.0, FlockOperation::Unlock)?;
        flock(&self.0, FlockOperation::LockExclusive)?;
        self.0.read_exact_at(&mut page, 0)?;
        self.0.write_all_at(&page[1024..1152], 1024)?;
        flock(&self.0, FlockOperation::Unlock)?;
        Ok(())
    }

    /// A hand-off with 64 waiters: release with the next waiter's grant, then join the queue again.
    /// Both steps read all 64 records. The first writes in an order that survives a crash: the
    /// freed record, the counter, the granted record.
    pub(crate) fn hand_off(&self) -> io::Result<()> {
        let mut records = [0; 1024 + 64 * 128];
        let mut step = |writes: &[std::ops::Range<usize>], check: bool| -> io::Result<()> {
            flock(&self.0, FlockOperation::LockExclusive)?;
            if check {
                std::hint::black_box(self.0.metadata()?.nlink());
                std::hint::black_box(self.0.metadata()?.nlink());
            }
            self.0.read_exact_at(&mut records[..4096], 0)?;
            self.0.read_exact_at(&mut records[4096..], 4096)?;
            for write in writes {
                self.0.write_all_at(&records[write.clone()], write.start as u64)?;
            }
            Ok(flock(&self.0, FlockOperation::Unlock)?)
        };
        step(&[1024..1152, 960..1024, 8192..8320], false)?;
        step(std::slice::from_ref(&(1024..1152)), true)
    }

    /// A hand-off with 64 waiters with one write per step and no checks: the cost without
    /// protection against crashes half-way, removed files, and live clients that seem dead.
    pub(crate) fn unchecked_hand_off(&self) -> io::Result<()> {
        let mut records = [0; 1024 + 64 * 128];
        for write in [960..1280, 1024..1152] {
            flock(&self.0, FlockOperation::LockExclusive)?;
            self.0.read_exact_at(&mut records[..4096], 0)?;
            self.0.read_exact_at(&mut records[4096..], 4096)?;
            self.0.write_all_at(&records[write.clone()], write.start as u64)?;
            flock(&self.0, FlockOperation::Unlock)?;
        }
        Ok(())
    }

    /// Locks and unlocks the file as flock(1) does, without token, holder or queue.
    pub(crate) fn bare_flock(&self) -> io::Result<()> {
        flock(&self.0, FlockOperation::LockExclusive)?;
        flock(&self.0, FlockOperation::Unlock)?;
        Ok(())
    }
}
