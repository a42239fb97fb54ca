//! Lock files: one per lock. This module creates, opens, latches (locks with `flock`), reads,
//! writes and removes them.

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

/// If this many lock files are open, those that no step uses are closed before another is opened.
const MAX_OPEN_FILES: usize = 256;

/// Why a step did not change the lock; the caller may retry it, except after `Failed`.
#[derive(Debug)]
pub(super) enum StepAborted {
    /// Another process or thread has the lock's file locked right now.
    Busy,
    /// A file must be created, or tokens reserved on disk: the step must run where it may block.
    NeedsSync,
    /// The folder, or this client's file in it, is not at its path any more: it must be opened
    /// again, which blocks.
    FolderGone,
    /// The step failed.
    Failed(Error),
}

impl From<Error> for StepAborted {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// The lock files that this process has open.
#[derive(Debug, Default)]
pub(super) struct LockFiles {
    open: Mutex<HashMap<LockName, Arc<Mutex<LockFile>>>>,
    /// How many lock files this process has created since it last removed files of free locks.
    created_since_sweep: AtomicUsize,
}

impl LockFiles {
    /// The open file of a lock. If there is no such file, creates it if `may_block` is set, else
    /// returns [`StepAborted::NeedsSync`].
    pub(super) fn get_or_open(
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

    /// Whether so many files were created since the last [`sweep`] that another one is due. If so,
    /// the count starts again at 0.
    pub(super) fn sweep_is_due(&self) -> bool {
        let due = |created: usize| (created >= SWEEP_AFTER_CREATED).then_some(0);
        self.created_since_sweep.fetch_update(Ordering::Relaxed, Ordering::Relaxed, due).is_ok()
    }

    /// Closes the file of a lock, after it was removed from the folder.
    pub(super) fn close(&self, name: &LockName) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }
}

/// One lock's open file, and its content as last read or written.
#[derive(Debug)]
pub(super) struct LockFile {
    file: File,
    path: PathBuf,
    /// The file's bytes up to the end of the slots in use; bytes after that are meaningless.
    pub(super) content: Vec<u8>,
    pub(super) counters: Counters,
}

impl LockFile {
    /// Opens a lock's file. `true` if it did not exist and was created, which needs `may_block`.
    fn open(folder: &Folder, name: &LockName, may_block: bool) -> Result<(Self, bool), StepAborted> {
        let file = layout::file_name(name);
        match Self::open_existing(folder, &file) {
            Ok(Some(found)) => Ok((found, false)),
            Ok(None) if !may_block => Err(StepAborted::NeedsSync),
            Ok(None) => {
                create_lock_file(folder, name, &file)?;
                let created = Self::open_existing(folder, &file)?;
                // Another process may have removed it in a sweep since: then the step is retried.
                created.map(|created| (created, true)).ok_or(StepAborted::Busy)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Opens the lock file of this name; `None` if it does not exist.
    fn open_existing(folder: &Folder, file: &str) -> Result<Option<Self>> {
        let path = folder.locks.path(file);
        match folder.locks.open(file, OFlags::RDWR) {
            Ok(file) => Ok(Some(Self { file, path, content: Vec::new(), counters: Counters::default() })),
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(other) => Err(error::io_error_at(&path, "open", other)),
        }
    }

    /// Locks the file with `flock`, or returns [`StepAborted::Busy`] if another process has it
    /// locked. Dropping the latch unlocks the file.
    pub(super) fn latch(&mut self) -> Result<Latch<'_>, StepAborted> {
        match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Latch(self)),
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => Err(StepAborted::Busy),
            Err(other) => Err(StepAborted::Failed(error::io_error_at(&self.path, "lock", other))),
        }
    }

    /// Whether the file still has a name, and was not removed from the folder.
    pub(super) fn is_linked(&self) -> bool {
        self.file.metadata().is_ok_and(|found| found.nlink() > 0)
    }
}

/// After creating this many lock files, a process removes files of free locks.
const SWEEP_AFTER_CREATED: usize = 128;

/// If the folder has more lock files than this, those of free locks are removed, the longest unused
/// first. Some are kept, because creating one waits for the disk.
const MAX_KEPT_FILES: usize = 256;

/// The file of a lock that was unused for this long is removed, even if the folder has few files.
const MAX_IDLE_TIME: Duration = Duration::from_secs(24 * 3600);

/// On some file systems a new lock file has a second, temporary name for a moment. A second name
/// older than this was left by a process that died.
const NAMING_GRACE: Duration = Duration::from_secs(60);

/// How many of the folder's files one sweep checks at most.
const MAX_FILES_CHECKED: usize = 512;

/// How many files a sweep removes at most when a client starts.
pub(super) const MAX_REMOVED_AT_START: usize = 32;
/// How many files a sweep removes at most while a client runs.
pub(super) const MAX_REMOVED_WHILE_RUNNING: usize = 256;

/// Removes at most `limit` files of free locks, so that the folder does not grow with every name
/// ever used: files that were unused for a day and, if the folder has many files, those that were
/// unused for the longest time. To keep tokens rising, it first raises the number in `floor` above
/// the tokens of the removed files. `now` is the file system's time since 1970.
pub(super) fn sweep(folder: &Folder, now: Duration, limit: usize) {
    let (names, file_count) = folder::sample_files(&folder.locks, MAX_FILES_CHECKED);
    let mut aged: Vec<(Duration, String)> =
        names.into_iter().filter_map(|name| Some((age(folder, &name, now)?, name))).collect();
    aged.sort_unstable_by_key(|(age, _)| std::cmp::Reverse(*age));
    let mut surplus = file_count.saturating_sub(MAX_KEPT_FILES);
    let mut idle = Vec::new();
    for (age, name) in aged {
        if name.starts_with('.') {
            // A temporary name whose creator died. If the file also has its final name, that lock
            // cannot be used until this name is removed. Another process may remove it first.
            let has_second_name = folder.locks.stat(&name).is_ok_and(|found| found.st_nlink > 1);
            if age >= MAX_IDLE_TIME || (has_second_name && age >= NAMING_GRACE) {
                let _ = folder.locks.remove(&name);
            }
        } else if age >= MAX_IDLE_TIME || surplus > 0 {
            match highest_token_if_idle(folder, &name) {
                Ok(Some(intent)) => {
                    idle.push((name, intent));
                    surplus = surplus.saturating_sub(1);
                }
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, "could not check whether a lock is free; its file stays"),
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

/// How long ago a file was last written; `None` if it does not exist any more.
fn age(folder: &Folder, name: &str, now: Duration) -> Option<Duration> {
    let changed_at = u64::try_from(folder.locks.stat(name).ok()?.st_mtime).ok()?;
    Some(now.saturating_sub(Duration::from_secs(changed_at)))
}

/// The highest token that a lock may have granted; `None` if the lock is not free.
fn highest_token_if_idle(folder: &Folder, file: &str) -> Result<Option<u64>> {
    let Some(mut file) = LockFile::open_existing(folder, file)? else { return Ok(None) };
    let Ok(mut latch) = file.latch() else { return Ok(None) };
    Ok(latch.is_idle(folder)?.then_some(latch.0.counters.intent))
}

/// Removes these files, each with the highest token of its lock, if the locks are still free.
/// Raising the floor waits for the disk, so it is raised once for all files, and before any file is
/// locked. A process that has a removed file open finds it unlinked at its next step, and opens a
/// new one.
fn remove_idle_files(folder: &Folder, idle: &[(String, u64)]) -> Result<()> {
    let Some(floor) = idle.iter().map(|(_, intent)| *intent).max() else { return Ok(()) };
    folder.raise_token_floor(floor)?;
    for (name, _) in idle {
        let Some(mut file) = LockFile::open_existing(folder, name)? else { continue };
        let Ok(mut latch) = file.latch() else { continue };
        if latch.is_idle(folder)? && latch.0.counters.intent <= floor {
            folder.locks.remove(name).map_err(|e| error::io_error_at(&latch.0.path, "remove", e))?;
        }
    }
    Ok(())
}

/// Creates a lock's file under a temporary name and then renames it, so that no process sees an
/// incomplete file. Succeeds also if another process creates it first.
fn create_lock_file(folder: &Folder, name: &LockName, file: &str) -> Result<()> {
    let temp_name = format!(".new-{:032x}", crate::random::random_bits());
    let page = layout::first_page(name, folder.token_floor()?);
    let write = || -> io::Result<()> {
        let created = folder.locks.create(&temp_name)?;
        created.write_all_at(&page, 0)?;
        // Otherwise the renamed file could be empty after a loss of power, which counts as damage.
        created.sync_all()?;
        match folder.locks.rename_to_free_name(&temp_name, file) {
            // Another process was faster: use its file.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        }
    };
    let created = write().map_err(|e| error::io_error_at(&folder.locks.path(file), "make", e));
    // Fails if the temporary file was renamed or never created, which is fine.
    let _ = folder.locks.remove(&temp_name);
    created
}

/// A lock's file, locked with `flock` until this is dropped: only this process may read and write
/// it.
pub(super) struct Latch<'a>(pub(super) &'a mut LockFile);

impl Drop for Latch<'_> {
    fn drop(&mut self) {
        // An unlock fails only for an invalid descriptor, and this one was locked before.
        let _ = flock(&self.0.file, FlockOperation::Unlock);
    }
}

impl Latch<'_> {
    /// Reads the file; an error if it is damaged or belongs to a lock with another name.
    pub(super) fn read(&mut self, name: &LockName, boot: u128) -> Result<()> {
        self.load(boot)?;
        match layout::lock_name_in(&self.0.content) {
            Ok(found) if found == name.as_str() => Ok(()),
            _ => Err(error::damaged_file_error(&self.0.path, "it belongs to another lock")),
        }
    }

    /// Reads the file, and returns the name of the lock that it belongs to.
    fn read_any(&mut self, boot: u128) -> Result<LockName> {
        self.load(boot)?;
        let name = layout::lock_name_in(&self.0.content).ok().and_then(|name| LockName::new(name).ok());
        name.ok_or_else(|| error::damaged_file_error(&self.0.path, "its name is not a valid lock name"))
    }

    /// Whether the lock has no holders and no waiters, and the file is the one that other processes
    /// open for it.
    fn is_idle(&mut self, folder: &Folder) -> Result<bool> {
        let name = self.read_any(folder.boot_id)?;
        let slots = self.0.counters.slots as usize;
        let idle = (0..slots).all(|index| !layout::is_in_use(&self.0.content, index));
        Ok(idle && self.0.is_linked() && folder.lock_path(&name) == self.0.path)
    }

    /// Reads the file into `content` and `counters`. If it was written in an earlier boot than
    /// `boot`, its slots are void, and its tokens continue above those that may have been granted
    /// then.
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

    /// Writes to disk that [`TOKEN_BLOCK`] more tokens after `above` may be granted, and waits for
    /// the disk. After a loss of power, counting starts after them.
    pub(super) fn reserve_tokens(&mut self, folder: &Folder, above: u64) -> Result<()> {
        let file = &mut *self.0;
        let may_be_new = file.counters.reserved == 0 || file.counters.last == file.counters.reserved;
        if may_be_new {
            // While this file was being created, another process may have created, used and removed
            // a file for the same lock: its tokens are not above the floor.
            let floor = folder.token_floor()?;
            file.counters.last = file.counters.last.max(floor);
        }
        file.counters.reserved = file.counters.reserved.max(file.counters.last);
        file.counters.intent = above.max(file.counters.last) + TOKEN_BLOCK;
        layout::write_counters(&mut file.content, file.counters);
        let sync = || -> io::Result<()> {
            file.file.write_all_at(&file.content[COUNTERS_OFFSET..SLOTS_OFFSET], COUNTERS_OFFSET as u64)?;
            file.file.sync_data()?;
            if may_be_new { folder.locks.sync() } else { Ok(()) }
        };
        sync().map_err(|e| error::io_error_at(&file.path, "write", e))?;
        // Set only after the sync: tokens up to `reserved` may be granted. The present step writes
        // it.
        file.counters.reserved = file.counters.intent;
        Ok(())
    }

    /// The description that the program gave to the claim in a slot; empty if it cannot be read.
    pub(super) fn description_at(&self, index: usize) -> String {
        let (at, length) = layout::text_position(&self.0.content, index);
        let mut text = vec![0; length];
        match read_at(&self.0.file, &mut text, at) {
            Ok(read) if read == length => String::from_utf8_lossy(&text).into_owned(),
            // It is only displayed, so an error does not matter.
            _ => String::new(),
        }
    }

    /// Writes the differences between the file and `table`. If all are in one page, it makes one
    /// call, which a kill cannot split. Otherwise it writes first the freed slots, then the
    /// counters, then the filled slots.
    pub(super) fn write(&mut self, table: &LockTable<ContenderDetails>) -> Result<()> {
        let file = &mut *self.0;
        let changes = layout::write_table(&mut file.content, file.counters.slots as usize, table);
        file.counters.slots = changes.slots as u64;
        let counters_changed = layout::read_counters(&file.content) != Ok(file.counters);
        layout::write_counters(&mut file.content, file.counters);
        let contenders = table.holders.iter().chain(&table.waiters);
        let new_descriptions = contenders.filter_map(|contender| match &contender.details.slot {
            SlotRef::New(claim) => Some(&claim.options.holder.description),
            SlotRef::Slot(_) => None,
        });
        for (index, text) in changes.texts.iter().zip(new_descriptions.filter(|text| !text.is_empty())) {
            let (at, length) = layout::text_position(&file.content, *index);
            let written = file.file.write_all_at(&text.as_bytes()[..length], at);
            written.map_err(|e| error::io_error_at(&file.path, "write", e))?;
        }
        let plan = WritePlan::new(&changes, counters_changed);
        let written =
            plan.ranges().try_for_each(|(from, to)| file.file.write_all_at(&file.content[from..to], from as u64));
        // If only some of the writes succeeded, the file is as if the process had died in between,
        // which the order of the writes makes harmless.
        written.map_err(|e| error::io_error_at(&file.path, "write", e).effect_unknown())
    }
}

/// Reads until the buffer is full or the file ends; returns the number of bytes read.
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

/// The byte ranges of a lock file to write, each from its first byte to the one after its last.
/// They are written in the order of the fields.
#[derive(Debug, Default, PartialEq, Eq)]
struct WritePlan {
    /// The slots that became free.
    freed: Vec<(usize, usize)>,
    /// The counters, if they changed; or one range that covers everything.
    counters: Option<(usize, usize)>,
    /// The slots that were filled, or whose contender changed.
    filled: Vec<(usize, usize)>,
}

impl WritePlan {
    /// The ranges of the slots that changed, and of the counters if those changed.
    fn new(changes: &TableChanges, counters_changed: bool) -> Self {
        let ranges = |slots: &[usize]| {
            slots.iter().map(|slot| (layout::slot_offset(*slot), layout::slot_offset(slot + 1))).collect()
        };
        let counters = counters_changed.then_some((COUNTERS_OFFSET, SLOTS_OFFSET));
        Self { freed: ranges(&changes.freed), counters, filled: ranges(&changes.taken) }.merge_if_one_page()
    }

    /// If all ranges are in one page, replaces them with one range that covers them.
    fn merge_if_one_page(self) -> Self {
        let all = || self.ranges();
        let Some(from) = all().map(|(from, _)| from).min() else { return self };
        let to = all().map(|(_, to)| to).max().unwrap_or(from);
        if (to - 1) / PAGE_SIZE == from / PAGE_SIZE {
            return Self { counters: Some((from, to)), ..Self::default() };
        }
        self
    }

    /// The ranges, in the order in which they are written.
    fn ranges(&self) -> impl Iterator<Item = (usize, usize)> {
        self.freed.iter().chain(&self.counters).chain(&self.filled).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ranges to write if these slots were freed and taken.
    fn plan(freed: &[usize], counters_changed: bool, taken: &[usize]) -> Vec<(usize, usize)> {
        let changes = TableChanges { freed: freed.to_vec(), taken: taken.to_vec(), ..TableChanges::default() };
        WritePlan::new(&changes, counters_changed).ranges().collect()
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
