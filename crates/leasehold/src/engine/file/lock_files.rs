//! Lock files: made, opened, latched, read and written.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags, flock};

use super::error;
use super::folder::{self, Folder};
use super::layout::{
    self, COUNTERS_OFFSET, ContenderDetails, Counters, PAGE_SIZE, SLOTS_OFFSET, SlotRef, TOKEN_BLOCK, TableChanges,
};
use crate::logic::table::LockTable;
use crate::types::{Error, LockName, Result};

/// How many unused lock files are kept open.
const MAX_OPEN_FILES: usize = 256;

/// Why a step was not taken; the lock is unchanged.
#[derive(Debug)]
pub(super) enum StepAborted {
    /// Another process is in the file right now.
    Busy,
    /// Tokens must be put on disk first, which blocks.
    NeedsSync,
    /// Other processes do not see this folder at its path any more: it must be opened again, which
    /// blocks.
    FolderGone,
    /// The step failed.
    Failed(Error),
}

impl From<Error> for StepAborted {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// The open lock files.
#[derive(Debug, Default)]
pub(super) struct LockFiles {
    open: Mutex<HashMap<LockName, Arc<Mutex<LockFile>>>>,
    /// How many files were created since the last sweep.
    created_since_sweep: AtomicUsize,
}

impl LockFiles {
    /// The file of a lock; creates it if it does not exist, which needs the disk.
    pub(super) fn file(
        &self,
        folder: &Folder,
        name: &LockName,
        may_block: bool,
    ) -> Result<Arc<Mutex<LockFile>>, StepAborted> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = open.get(name) {
            return Ok(Arc::clone(file));
        }
        if open.len() >= MAX_OPEN_FILES {
            open.retain(|_, file| Arc::strong_count(file) > 1);
        }
        let (file, created) = LockFile::open(folder, name, may_block)?;
        self.created_since_sweep.fetch_add(usize::from(created), Ordering::Relaxed);
        let file = Arc::new(Mutex::new(file));
        open.insert(name.clone(), Arc::clone(&file));
        Ok(file)
    }

    /// Whether enough files were created for a sweep; resets the count if so.
    pub(super) fn sweep_is_due(&self) -> bool {
        let due = |created: usize| (created >= SWEEP_AFTER_CREATED).then_some(0);
        self.created_since_sweep.fetch_update(Ordering::Relaxed, Ordering::Relaxed, due).is_ok()
    }

    /// Drops a file that was removed from the folder.
    pub(super) fn close(&self, name: &LockName) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }
}

/// One lock's file, and what was last read from it.
#[derive(Debug)]
pub(super) struct LockFile {
    file: File,
    path: PathBuf,
    /// The file's content, as far as its slots are in use; the rest is meaningless.
    pub(super) content: Vec<u8>,
    pub(super) counters: Counters,
}

impl LockFile {
    /// Opens a lock's file; `true` if it was created.
    fn open(folder: &Folder, name: &LockName, may_block: bool) -> Result<(Self, bool), StepAborted> {
        let file = layout::file_name(name);
        match Self::existing(folder, &file) {
            Ok(Some(found)) => Ok((found, false)),
            Ok(None) if !may_block => Err(StepAborted::NeedsSync),
            Ok(None) => {
                create_lock_file(folder, name, &file)?;
                let created = Self::existing(folder, &file)?;
                // Another process may remove it in a sweep before we use it: then start over.
                created.map(|created| (created, true)).ok_or(StepAborted::Busy)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn existing(folder: &Folder, file: &str) -> Result<Option<Self>> {
        let path = folder.locks.path(file);
        match folder.locks.open(file, OFlags::RDWR) {
            Ok(file) => Ok(Some(Self { file, path, content: Vec::new(), counters: Counters::default() })),
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(other) => Err(error::io_error_at(&path, "open", other)),
        }
    }

    /// Latches the file unless it is latched already. Dropping the latch unlocks it.
    pub(super) fn latch(&mut self) -> Result<Latch<'_>, StepAborted> {
        match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Latch(self)),
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => Err(StepAborted::Busy),
            Err(other) => Err(StepAborted::Failed(error::io_error_at(&self.path, "lock", other))),
        }
    }

    /// Whether the file is still the one that others see.
    pub(super) fn is_linked(&self) -> bool {
        self.file.metadata().is_ok_and(|found| found.nlink() > 0)
    }
}

/// After creating this many files, a process sweeps.
const SWEEP_AFTER_CREATED: usize = 128;

/// This many files of free locks stay, because creating one waits for the disk. Above that, the
/// oldest are removed.
const MAX_FREE_FILES: usize = 256;

/// A file that was idle for this long is removed in any case.
const MAX_IDLE_TIME: Duration = Duration::from_secs(24 * 3600);

/// After this time no process is about to remove the second name of a new file.
const NAMING_GRACE: Duration = Duration::from_secs(60);

/// How many files one sweep checks.
const MAX_FILES_CHECKED: usize = 512;

/// The maximum number of files that a sweep removes: when a client starts, and while it runs.
pub(super) const MAX_REMOVED_AT_START: usize = 32;
pub(super) const MAX_REMOVED_WHILE_RUNNING: usize = 256;

/// Removes files of free locks, so that the folder does not grow with every name ever used. It
/// removes files that were unused for a day and, if there are many, those that were unused for the
/// longest time; at most `limit`. To keep tokens rising, it first raises the folder's floor above
/// theirs. `now` is the file system's time.
pub(super) fn sweep(folder: &Folder, now: Duration, limit: usize) {
    let (names, all) = folder::sample_files(&folder.locks, MAX_FILES_CHECKED);
    let mut aged: Vec<(Duration, String)> =
        names.into_iter().filter_map(|name| Some((age(folder, &name, now)?, name))).collect();
    aged.sort_unstable_by_key(|(age, _)| std::cmp::Reverse(*age));
    let mut surplus = all.saturating_sub(MAX_FREE_FILES);
    let mut idle = Vec::new();
    for (age, name) in aged {
        if name.starts_with('.') {
            // A temporary file whose creator died. If it is a lock's second name, that lock cannot
            // be used. Another process may be faster.
            let named = folder.locks.stat(&name).is_ok_and(|found| found.st_nlink > 1);
            if age >= MAX_IDLE_TIME || (named && age >= NAMING_GRACE) {
                let _ = folder.locks.remove(&name);
            }
        } else if age >= MAX_IDLE_TIME || surplus > 0 {
            match highest_token_if_idle(folder, &name) {
                Ok(Some(intent)) => {
                    idle.push((name, intent));
                    surplus = surplus.saturating_sub(1);
                }
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, "a lock's file was not checked"),
            }
        }
        if idle.len() >= limit {
            break;
        }
    }
    if let Err(error) = remove_idle_files(folder, &idle) {
        tracing::debug!(%error, "files of free locks could not be removed");
    }
}

fn age(folder: &Folder, name: &str, now: Duration) -> Option<Duration> {
    let changed_at = u64::try_from(folder.locks.stat(name).ok()?.st_mtime).ok()?;
    Some(now.saturating_sub(Duration::from_secs(changed_at)))
}

/// The highest token that a lock's file may have used, if the lock is free.
fn highest_token_if_idle(folder: &Folder, file: &str) -> Result<Option<u64>> {
    let Some(mut file) = LockFile::existing(folder, file)? else { return Ok(None) };
    let Ok(mut latch) = file.latch() else { return Ok(None) };
    Ok(latch.is_idle(folder)?.then_some(latch.0.counters.intent))
}

/// Removes the files of locks that are still free. Raising the floor waits for the disk, so it is
/// raised once for all, while no lock is kept busy. A process that has a file open finds it
/// unlinked when it enters it, and opens the new one.
fn remove_idle_files(folder: &Folder, idle: &[(String, u64)]) -> Result<()> {
    let Some(floor) = idle.iter().map(|(_, intent)| *intent).max() else { return Ok(()) };
    folder.raise_token_floor(floor)?;
    for (name, _) in idle {
        let Some(mut file) = LockFile::existing(folder, name)? else { continue };
        let Ok(mut latch) = file.latch() else { continue };
        if latch.is_idle(folder)? && latch.0.counters.intent <= floor {
            folder.locks.remove(name).map_err(|e| error::io_error_at(&latch.0.path, "remove", e))?;
        }
    }
    Ok(())
}

/// Creates a lock's file. It is complete before it has its name, so no process sees an incomplete
/// one.
fn create_lock_file(folder: &Folder, name: &LockName, file: &str) -> Result<()> {
    let temp_name = format!(".new-{:032x}", crate::random::random_bits());
    let page = layout::first_page(name, folder.token_floor()?);
    let write = || -> io::Result<()> {
        let created = folder.locks.create(&temp_name)?;
        created.write_all_at(&page, 0)?;
        // A name without its content would be a damaged file after a loss of power.
        created.sync_all()?;
        match folder.locks.rename_to_free_name(&temp_name, file) {
            // Another process was faster: use its file.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        }
    };
    let created = write().map_err(|e| error::io_error_at(&folder.locks.path(file), "make", e));
    // The temporary file was renamed, was never created, or is in the way.
    let _ = folder.locks.remove(&temp_name);
    created
}

/// The exclusive right to change a lock's file.
pub(super) struct Latch<'a>(pub(super) &'a mut LockFile);

impl Drop for Latch<'_> {
    fn drop(&mut self) {
        // Cannot fail for a descriptor that could be locked.
        let _ = flock(&self.0.file, FlockOperation::Unlock);
    }
}

impl Latch<'_> {
    /// Reads the file of this lock.
    pub(super) fn read(&mut self, name: &LockName, boot: u128) -> Result<()> {
        self.load(boot)?;
        match layout::lock_name_in(&self.0.content) {
            Ok(found) if found == name.as_str() => Ok(()),
            _ => Err(error::damaged_file_error(&self.0.path, "it belongs to another lock")),
        }
    }

    /// Reads the file, which may belong to any lock.
    fn read_any(&mut self, boot: u128) -> Result<LockName> {
        self.load(boot)?;
        let name = layout::lock_name_in(&self.0.content).ok().and_then(|name| LockName::new(name).ok());
        name.ok_or_else(|| error::damaged_file_error(&self.0.path, "its name is not a valid lock name"))
    }

    /// Whether the lock has no holders and waiters, and the file is the one that others open.
    fn is_idle(&mut self, folder: &Folder) -> Result<bool> {
        let name = self.read_any(folder.boot_id)?;
        let slots = self.0.counters.slots as usize;
        let idle = (0..slots).all(|index| !layout::is_in_use(&self.0.content, index));
        Ok(idle && self.0.is_linked() && folder.lock_path(&name) == self.0.path)
    }

    /// Reads the file into `content`. The data of an earlier boot is void.
    fn load(&mut self, boot: u128) -> Result<()> {
        let file = &mut *self.0;
        let damage_error = |reason: &str| error::damaged_file_error(&file.path, reason);
        file.content.resize(file.content.len().max(PAGE_SIZE), 0);
        let first = read_at(&file.file, &mut file.content[..PAGE_SIZE], 0)
            .map_err(|e| error::io_error_at(&file.path, "read", e))?;
        if first < PAGE_SIZE {
            return Err(damage_error("it is too short"));
        }
        layout::check_format(&file.content)?;
        layout::lock_name_in(&file.content).map_err(damage_error)?;
        let mut counters = layout::read_counters(&file.content).map_err(damage_error)?;
        let size = layout::slot_offset(counters.slots as usize).max(PAGE_SIZE);
        file.content.resize(file.content.len().max(size), 0);
        if size > PAGE_SIZE {
            let rest = read_at(&file.file, &mut file.content[PAGE_SIZE..size], PAGE_SIZE as u64);
            let rest = rest.map_err(|e| error::io_error_at(&file.path, "read", e))?;
            file.content[PAGE_SIZE + rest..size].fill(0);
        }
        if counters.boot != boot {
            counters = Counters { last: counters.intent, reserved: counters.intent, boot, slots: 0, ..counters };
        }
        file.counters = counters;
        Ok(())
    }

    /// Puts further tokens on disk before any of them is granted.
    pub(super) fn reserve_tokens(&mut self, folder: &Folder, above: u64) -> Result<()> {
        let file = &mut *self.0;
        let created = file.counters.reserved == 0 || file.counters.last == file.counters.reserved;
        if created {
            // Another process may have created, used and removed a file of this name since ours was
            // started.
            let floor = folder.token_floor()?;
            file.counters.last = file.counters.last.max(floor);
        }
        file.counters.reserved = file.counters.reserved.max(file.counters.last);
        file.counters.intent = above.max(file.counters.last) + TOKEN_BLOCK;
        layout::write_counters(&mut file.content, file.counters);
        let sync = || -> io::Result<()> {
            file.file.write_all_at(&file.content[COUNTERS_OFFSET..SLOTS_OFFSET], COUNTERS_OFFSET as u64)?;
            file.file.sync_data()?;
            if created { folder.locks.sync() } else { Ok(()) }
        };
        sync().map_err(|e| error::io_error_at(&file.path, "write", e))?;
        // Only now may a process rely on it; it is written with the present step.
        file.counters.reserved = file.counters.intent;
        Ok(())
    }

    /// The description of the holder in a slot.
    pub(super) fn description_at(&self, index: usize) -> String {
        let (at, length) = layout::text_position(&self.0.content, index);
        let mut text = vec![0; length];
        match read_at(&self.0.file, &mut text, at) {
            Ok(read) if read == length => String::from_utf8_lossy(&text).into_owned(),
            // It is only displayed.
            _ => String::new(),
        }
    }

    /// Writes a table that differs from the file's. If all differences are in one page, it uses one
    /// call; otherwise it writes freed slots, counters and filled slots, in this order.
    pub(super) fn write(&mut self, table: &LockTable<ContenderDetails>) -> Result<()> {
        let file = &mut *self.0;
        let changes = layout::write_table(&mut file.content, file.counters.slots as usize, table);
        file.counters.slots = changes.slots as u64;
        let counters = layout::read_counters(&file.content) != Ok(file.counters);
        layout::write_counters(&mut file.content, file.counters);
        let contenders = table.holders.iter().chain(&table.waiters);
        let new = contenders.filter_map(|contender| match &contender.details.slot {
            SlotRef::New(claim) => Some(&claim.options.holder.description),
            SlotRef::Slot(_) => None,
        });
        for (index, text) in changes.texts.iter().zip(new.filter(|text| !text.is_empty())) {
            let (at, length) = layout::text_position(&file.content, *index);
            let written = file.file.write_all_at(&text.as_bytes()[..length], at);
            written.map_err(|e| error::io_error_at(&file.path, "write", e))?;
        }
        let plan = WritePlan::new(&changes, counters);
        let written =
            plan.spans().try_for_each(|(from, to)| file.file.write_all_at(&file.content[from..to], from as u64));
        // A write that failed half-way leaves one of the states that the order allows.
        written.map_err(|e| error::io_error_at(&file.path, "write", e).effect_unknown())
    }
}

fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match file.read_at(&mut buffer[read..], offset + read as u64) {
            Ok(0) => break,
            Ok(some) => read += some,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

/// The parts to write, and their order.
#[derive(Debug, Default, PartialEq, Eq)]
struct WritePlan {
    freed: Vec<(usize, usize)>,
    counters: Option<(usize, usize)>,
    taken: Vec<(usize, usize)>,
}

impl WritePlan {
    fn new(changes: &TableChanges, counters: bool) -> Self {
        let spans = |slots: &[usize]| {
            slots.iter().map(|slot| (layout::slot_offset(*slot), layout::slot_offset(slot + 1))).collect()
        };
        let counters = counters.then_some((COUNTERS_OFFSET, SLOTS_OFFSET));
        Self { freed: spans(&changes.freed), counters, taken: spans(&changes.taken) }.merge_if_one_page()
    }

    /// A single span, if everything is in one page.
    fn merge_if_one_page(self) -> Self {
        let all = || self.spans();
        let Some(from) = all().map(|(from, _)| from).min() else { return self };
        let to = all().map(|(_, to)| to).max().unwrap_or(from);
        if (to - 1) / PAGE_SIZE == from / PAGE_SIZE {
            return Self { counters: Some((from, to)), ..Self::default() };
        }
        self
    }

    fn spans(&self) -> impl Iterator<Item = (usize, usize)> {
        self.freed.iter().chain(&self.counters).chain(&self.taken).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(freed: &[usize], counters: bool, taken: &[usize]) -> Vec<(usize, usize)> {
        let changes = TableChanges { freed: freed.to_vec(), taken: taken.to_vec(), ..TableChanges::default() };
        WritePlan::new(&changes, counters).spans().collect()
    }

    #[test]
    fn changes_in_one_page_are_one_write() {
        assert_eq!(plan(&[0], true, &[1]), [(COUNTERS_OFFSET, layout::slot_offset(2))]);
        assert_eq!(plan(&[30], false, &[40]), [(layout::slot_offset(30), layout::slot_offset(41))]);
    }

    #[test]
    fn across_pages_slots_are_freed_then_counters_written_then_slots_taken() {
        let slot = |index| (layout::slot_offset(index), layout::slot_offset(index + 1));
        assert_eq!(plan(&[0], true, &[60]), [slot(0), (COUNTERS_OFFSET, SLOTS_OFFSET), slot(60)]);
        assert_eq!(plan(&[60], true, &[0]), [slot(60), (COUNTERS_OFFSET, SLOTS_OFFSET), slot(0)]);
    }

    #[test]
    fn unchanged_data_is_not_written() {
        assert_eq!(plan(&[], false, &[]), []);
    }

    #[test]
    fn no_slot_lies_across_the_end_of_a_page() {
        for index in 0..1000 {
            assert_eq!(layout::slot_offset(index) / PAGE_SIZE, (layout::slot_offset(index + 1) - 1) / PAGE_SIZE);
        }
    }
}
