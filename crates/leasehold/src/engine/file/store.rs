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
use super::wire::{self, COUNTERS, Counters, Note, PAGE, Put, RESERVE, Record, SLOTS};
use crate::error::{Error, Result};
use crate::logic::table::Table;
use crate::name::LockName;

/// How many unused lock files are kept open.
const KEPT_OPEN: usize = 256;

/// Why a step was not taken; nothing was changed.
#[derive(Debug)]
pub(super) enum Stop {
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

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// The open lock files.
#[derive(Debug, Default)]
pub(super) struct Store {
    open: Mutex<HashMap<LockName, Arc<Mutex<LockFile>>>>,
    /// How many files were made since the last sweep.
    made: AtomicUsize,
}

impl Store {
    /// The file of a lock; makes it if it does not exist, which needs the disk.
    pub(super) fn file(&self, folder: &Folder, name: &LockName, may_block: bool) -> Result<Arc<Mutex<LockFile>>, Stop> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = open.get(name) {
            return Ok(Arc::clone(file));
        }
        if open.len() >= KEPT_OPEN {
            open.retain(|_, file| Arc::strong_count(file) > 1);
        }
        let (file, made) = LockFile::open(folder, name, may_block)?;
        self.made.fetch_add(usize::from(made), Ordering::Relaxed);
        let file = Arc::new(Mutex::new(file));
        open.insert(name.clone(), Arc::clone(&file));
        Ok(file)
    }

    /// Whether enough files were made for a sweep; resets the count if so.
    pub(super) fn sweep_is_due(&self) -> bool {
        let due = |made: usize| (made >= MADE).then_some(0);
        self.made.fetch_update(Ordering::Relaxed, Ordering::Relaxed, due).is_ok()
    }

    /// Drops a file that was removed from the folder.
    pub(super) fn forget(&self, name: &LockName) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }
}

/// One lock's file, and what was last read from it.
#[derive(Debug)]
pub(super) struct LockFile {
    file: File,
    path: PathBuf,
    /// The file's content, as far as its slots are in use; the rest is meaningless.
    pub(super) image: Vec<u8>,
    pub(super) counters: Counters,
}

impl LockFile {
    /// Opens a lock's file; `true` if it was made.
    fn open(folder: &Folder, name: &LockName, may_block: bool) -> Result<(Self, bool), Stop> {
        let file = wire::file_name(name);
        match Self::existing(folder, &file) {
            Ok(Some(found)) => Ok((found, false)),
            Ok(None) if !may_block => Err(Stop::NeedsSync),
            Ok(None) => {
                make(folder, name, &file)?;
                let made = Self::existing(folder, &file)?;
                // Another process may remove it in a sweep before we use it: then start over.
                made.map(|made| (made, true)).ok_or(Stop::Busy)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn existing(folder: &Folder, file: &str) -> Result<Option<Self>> {
        let path = folder.locks.path(file);
        match folder.locks.open(file, OFlags::RDWR) {
            Ok(file) => Ok(Some(Self { file, path, image: Vec::new(), counters: Counters::default() })),
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(other) => Err(error::at(&path, "open", other)),
        }
    }

    /// Latches the file unless it is latched already. Dropping the latch unlocks it.
    pub(super) fn latch(&mut self) -> Result<Latch<'_>, Stop> {
        match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Latch(self)),
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => Err(Stop::Busy),
            Err(other) => Err(Stop::Failed(error::at(&self.path, "lock", other))),
        }
    }

    /// Whether the file is still the one that others see.
    pub(super) fn is_linked(&self) -> bool {
        self.file.metadata().is_ok_and(|found| found.nlink() > 0)
    }
}

/// After making this many files, a process sweeps.
const MADE: usize = 128;

/// This many files of free locks stay, because making one waits for the disk. Above that, the
/// oldest are removed.
const KEPT: usize = 256;

/// A file that was idle for this long is removed in any case.
const IDLE: Duration = Duration::from_secs(24 * 3600);

/// After this time no process is about to remove the second name of a new file.
const NAMED: Duration = Duration::from_secs(60);

/// How many files one sweep checks.
const LOOKED_AT: usize = 512;

/// The maximum number of files that a sweep removes: when a client starts, and while it runs.
pub(super) const AT_START: usize = 32;
pub(super) const RUNNING: usize = 256;

/// Removes files of free locks, so that the folder does not grow with every name ever used. It
/// removes files that were unused for a day and, if there are many, those that were unused for the
/// longest time; at most `most`. To keep tokens rising, it first raises the folder's floor above
/// theirs. `now` is the file system's time.
pub(super) fn sweep(folder: &Folder, now: Duration, most: usize) {
    let (names, all) = folder::some_of(&folder.locks, LOOKED_AT);
    let mut aged: Vec<(Duration, String)> =
        names.into_iter().filter_map(|name| Some((age(folder, &name, now)?, name))).collect();
    aged.sort_unstable_by_key(|(age, _)| std::cmp::Reverse(*age));
    let mut surplus = all.saturating_sub(KEPT);
    let mut idle = Vec::new();
    for (age, name) in aged {
        if name.starts_with('.') {
            // A draft whose maker died. If it is a lock's second name, that lock cannot be used.
            // Another process may be faster.
            let named = folder.locks.stat(&name).is_ok_and(|found| found.st_nlink > 1);
            if age >= IDLE || (named && age >= NAMED) {
                let _ = folder.locks.remove(&name);
            }
        } else if age >= IDLE || surplus > 0 {
            match idle_intent(folder, &name) {
                Ok(Some(intent)) => {
                    idle.push((name, intent));
                    surplus = surplus.saturating_sub(1);
                }
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, "a lock's file was not looked at"),
            }
        }
        if idle.len() >= most {
            break;
        }
    }
    if let Err(error) = retire(folder, &idle) {
        tracing::debug!(%error, "files of free locks stay");
    }
}

fn age(folder: &Folder, name: &str, now: Duration) -> Option<Duration> {
    let then = u64::try_from(folder.locks.stat(name).ok()?.st_mtime).ok()?;
    Some(now.saturating_sub(Duration::from_secs(then)))
}

/// The highest token that a lock's file may have used, if the lock is free.
fn idle_intent(folder: &Folder, file: &str) -> Result<Option<u64>> {
    let Some(mut file) = LockFile::existing(folder, file)? else { return Ok(None) };
    let Ok(mut latch) = file.latch() else { return Ok(None) };
    Ok(latch.is_idle(folder)?.then_some(latch.0.counters.intent))
}

/// Removes the files of locks that are still free. Raising the floor waits for the disk, so it is
/// raised once for all, with no lock kept busy meanwhile. A process that has a file open finds it
/// unlinked when it enters it, and opens the new one.
fn retire(folder: &Folder, idle: &[(String, u64)]) -> Result<()> {
    let Some(floor) = idle.iter().map(|(_, intent)| *intent).max() else { return Ok(()) };
    folder.raise_floor(floor)?;
    for (name, _) in idle {
        let Some(mut file) = LockFile::existing(folder, name)? else { continue };
        let Ok(mut latch) = file.latch() else { continue };
        if latch.is_idle(folder)? && latch.0.counters.intent <= floor {
            folder.locks.remove(name).map_err(|e| error::at(&latch.0.path, "remove", e))?;
        }
    }
    Ok(())
}

/// Makes a lock's file. It is complete before it has its name, so no process sees a half-made one.
fn make(folder: &Folder, name: &LockName, file: &str) -> Result<()> {
    let draft = format!(".new-{:032x}", crate::random::bits());
    let page = wire::first_page(name, folder.floor()?);
    let write = || -> io::Result<()> {
        let made = folder.locks.create(&draft)?;
        made.write_all_at(&page, 0)?;
        // A name without its content would be a damaged file after a loss of power.
        made.sync_all()?;
        match folder.locks.rename_new(&draft, file) {
            // Another process was faster: use its file.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        }
    };
    let made = write().map_err(|e| error::at(&folder.locks.path(file), "make", e));
    // The draft was renamed, was never made, or is in the way.
    let _ = folder.locks.remove(&draft);
    made
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
        match wire::name_of(&self.0.image) {
            Ok(found) if found == name.as_str() => Ok(()),
            _ => Err(error::damaged(&self.0.path, "it belongs to another lock")),
        }
    }

    /// Reads the file of whichever lock it belongs to.
    fn read_any(&mut self, boot: u128) -> Result<LockName> {
        self.load(boot)?;
        let name = wire::name_of(&self.0.image).ok().and_then(|name| LockName::new(name).ok());
        name.ok_or_else(|| error::damaged(&self.0.path, "its name is no lock name"))
    }

    /// Whether the lock has no holders and waiters, and the file is the one that others open.
    fn is_idle(&mut self, folder: &Folder) -> Result<bool> {
        let name = self.read_any(folder.boot)?;
        let slots = self.0.counters.slots as usize;
        let idle = (0..slots).all(|index| !wire::in_use(&self.0.image, index));
        Ok(idle && self.0.is_linked() && folder.lock_path(&name) == self.0.path)
    }

    /// Reads the file into `image`. The data of an earlier boot is void.
    fn load(&mut self, boot: u128) -> Result<()> {
        let file = &mut *self.0;
        let damaged = |why: &str| error::damaged(&file.path, why);
        file.image.resize(file.image.len().max(PAGE), 0);
        let first = read_at(&file.file, &mut file.image[..PAGE], 0).map_err(|e| error::at(&file.path, "read", e))?;
        if first < PAGE {
            return Err(damaged("it is too short"));
        }
        wire::name_of(&file.image).map_err(damaged)?;
        let mut counters = wire::counters(&file.image).map_err(damaged)?;
        let size = wire::slot_at(counters.slots as usize).max(PAGE);
        file.image.resize(file.image.len().max(size), 0);
        if size > PAGE {
            let rest = read_at(&file.file, &mut file.image[PAGE..size], PAGE as u64);
            let rest = rest.map_err(|e| error::at(&file.path, "read", e))?;
            file.image[PAGE + rest..size].fill(0);
        }
        if counters.boot != boot {
            counters = Counters { last: counters.intent, reserved: counters.intent, boot, slots: 0, ..counters };
        }
        file.counters = counters;
        Ok(())
    }

    /// Puts further tokens on disk before any of them is granted.
    pub(super) fn reserve(&mut self, folder: &Folder, beyond: u64) -> Result<()> {
        let file = &mut *self.0;
        let made = file.counters.reserved == 0 || file.counters.last == file.counters.reserved;
        if made {
            // Another process may have made, used and removed a file of this name since ours was
            // started.
            let floor = folder.floor()?;
            file.counters.last = file.counters.last.max(floor);
        }
        file.counters.reserved = file.counters.reserved.max(file.counters.last);
        file.counters.intent = beyond.max(file.counters.last) + RESERVE;
        wire::put_counters(&mut file.image, file.counters);
        let sync = || -> io::Result<()> {
            file.file.write_all_at(&file.image[COUNTERS..SLOTS], COUNTERS as u64)?;
            file.file.sync_data()?;
            if made { folder.locks.sync() } else { Ok(()) }
        };
        sync().map_err(|e| error::at(&file.path, "write", e))?;
        // Only now may a process rely on it; it is written with the present step.
        file.counters.reserved = file.counters.intent;
        Ok(())
    }

    /// The description of the holder in a slot.
    pub(super) fn text(&self, index: usize) -> String {
        let (at, length) = wire::text_at(&self.0.image, index);
        let mut text = vec![0; length];
        match read_at(&self.0.file, &mut text, at) {
            Ok(read) if read == length => String::from_utf8_lossy(&text).into_owned(),
            // It is only shown to people.
            _ => String::new(),
        }
    }

    /// Writes a table that differs from the file's. If all differences are in one page, it uses one
    /// call; otherwise it writes freed slots, counters and taken slots, in this order.
    pub(super) fn write(&mut self, table: &Table<Note>) -> Result<()> {
        let file = &mut *self.0;
        let put = wire::put_table(&mut file.image, file.counters.slots as usize, table);
        file.counters.slots = put.slots as u64;
        let counters = wire::counters(&file.image) != Ok(file.counters);
        wire::put_counters(&mut file.image, file.counters);
        let parties = table.holders.iter().chain(&table.waiters);
        let new = parties.filter_map(|party| match &party.note.record {
            Record::New(claim) => Some(&claim.terms.holder.text),
            Record::Slot(_) => None,
        });
        for (index, text) in put.texts.iter().zip(new.filter(|text| !text.is_empty())) {
            let (at, length) = wire::text_at(&file.image, *index);
            let written = file.file.write_all_at(&text.as_bytes()[..length], at);
            written.map_err(|e| error::at(&file.path, "write", e))?;
        }
        let plan = Plan::new(&put, counters);
        let written =
            plan.spans().try_for_each(|(from, to)| file.file.write_all_at(&file.image[from..to], from as u64));
        // A write that failed half-way leaves one of the states that the order allows.
        written.map_err(|e| error::at(&file.path, "write", e).effect_unknown())
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

/// What to write, and in which order.
#[derive(Debug, Default, PartialEq, Eq)]
struct Plan {
    freed: Vec<(usize, usize)>,
    counters: Option<(usize, usize)>,
    taken: Vec<(usize, usize)>,
}

impl Plan {
    fn new(put: &Put, counters: bool) -> Self {
        let spans =
            |slots: &[usize]| slots.iter().map(|slot| (wire::slot_at(*slot), wire::slot_at(slot + 1))).collect();
        let counters = counters.then_some((COUNTERS, SLOTS));
        Self { freed: spans(&put.freed), counters, taken: spans(&put.taken) }.merged()
    }

    /// A single span, if everything is in one page.
    fn merged(self) -> Self {
        let all = || self.spans();
        let Some(from) = all().map(|(from, _)| from).min() else { return self };
        let to = all().map(|(_, to)| to).max().unwrap_or(from);
        if (to - 1) / PAGE == from / PAGE {
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
        let put = Put { freed: freed.to_vec(), taken: taken.to_vec(), ..Put::default() };
        Plan::new(&put, counters).spans().collect()
    }

    #[test]
    fn what_lies_in_one_page_is_written_at_once() {
        assert_eq!(plan(&[0], true, &[1]), [(COUNTERS, wire::slot_at(2))]);
        assert_eq!(plan(&[30], false, &[40]), [(wire::slot_at(30), wire::slot_at(41))]);
    }

    #[test]
    fn otherwise_places_are_freed_before_the_counter_rises_and_taken_after() {
        let slot = |index| (wire::slot_at(index), wire::slot_at(index + 1));
        assert_eq!(plan(&[0], true, &[60]), [slot(0), (COUNTERS, SLOTS), slot(60)]);
        assert_eq!(plan(&[60], true, &[0]), [slot(60), (COUNTERS, SLOTS), slot(0)]);
    }

    #[test]
    fn what_is_as_before_is_not_written() {
        assert_eq!(plan(&[], false, &[]), []);
    }

    #[test]
    fn no_slot_lies_across_the_end_of_a_page() {
        for index in 0..1000 {
            assert_eq!(wire::slot_at(index) / PAGE, (wire::slot_at(index + 1) - 1) / PAGE);
        }
    }
}
