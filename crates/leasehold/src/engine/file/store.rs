//! Lock files: made, opened, latched, read and written.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};

use super::error;
use super::folder::{self, Folder};
use super::wire::{self, COUNTERS, Counters, Note, PAGE, Put, RESERVE, Record, SLOTS};
use crate::error::{Error, Result};
use crate::logic::table::Table;
use crate::name::LockName;

/// How many lock files are kept open while nobody uses them.
const KEPT_OPEN: usize = 256;

/// Why a step was not taken; nothing was changed.
#[derive(Debug)]
pub(super) enum Stop {
    /// Somebody else is in the file right now.
    Busy,
    /// Tokens must be put on disk first, which blocks.
    NeedsSync,
    /// It failed.
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// The lock files that are open.
#[derive(Debug, Default)]
pub(super) struct Store {
    open: Mutex<HashMap<LockName, Arc<Mutex<LockFile>>>>,
}

impl Store {
    /// The file of a lock; if there is none it is made, which needs the disk.
    pub(super) fn file(&self, folder: &Folder, name: &LockName, may_block: bool) -> Result<Arc<Mutex<LockFile>>, Stop> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = open.get(name) {
            return Ok(Arc::clone(file));
        }
        if open.len() >= KEPT_OPEN {
            open.retain(|_, file| Arc::strong_count(file) > 1);
        }
        let file = Arc::new(Mutex::new(LockFile::open(folder, name, may_block)?));
        open.insert(name.clone(), Arc::clone(&file));
        Ok(file)
    }

    /// Forgets a file that is gone from the folder.
    pub(super) fn forget(&self, name: &LockName) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }
}

/// One lock's file, with what was last read from it.
#[derive(Debug)]
pub(super) struct LockFile {
    file: File,
    path: PathBuf,
    /// What is in the file, as far as its slots are in use; what lies beyond means nothing.
    pub(super) image: Vec<u8>,
    pub(super) counters: Counters,
}

impl LockFile {
    fn open(folder: &Folder, name: &LockName, may_block: bool) -> Result<Self, Stop> {
        let path = folder.lock_path(name);
        let existing = || folder.open_file(&path, OpenOptions::new().read(true).write(true));
        let file = match existing() {
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => {
                if !may_block {
                    return Err(Stop::NeedsSync);
                }
                make(folder, name, &path)?;
                existing()
            }
            other => other,
        };
        let file = file.map_err(|e| error::at(&path, "open", e))?;
        Ok(Self { file, path, image: Vec::new(), counters: Counters::default() })
    }

    /// Enters the file if nobody else is in it. Left when the latch is dropped.
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

/// How many lock files one start looks at, and for how long a file must have been idle to be taken away.
const SWEEP: usize = 256;
const IDLE: Duration = Duration::from_secs(24 * 3600);

/// Takes away the files of locks that nobody has used for a day, so that the folder does not grow with every name ever
/// used. Their tokens are not forgotten: the folder's floor is raised above them first. `now` is the file system's.
pub(super) fn sweep(folder: &Folder, now: SystemTime) {
    for name in folder::some_of(folder.locks(), SWEEP) {
        let path = folder.locks().join(&name);
        let age =
            fs::metadata(&path).and_then(|found| found.modified()).ok().and_then(|then| now.duration_since(then).ok());
        if age.is_none_or(|age| age < IDLE) {
            continue;
        }
        if name.as_encoded_bytes().starts_with(b".") {
            // A draft whose maker died. Somebody else who starts may be quicker.
            let _ = fs::remove_file(&path);
        } else if let Err(error) = retire(folder, path) {
            tracing::debug!(%error, "an idle lock's file stays");
        }
    }
}

/// Whoever has the file open finds it unlinked when they enter it, and opens the new one.
fn retire(folder: &Folder, path: PathBuf) -> Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(&path).map_err(|e| error::at(&path, "open", e))?;
    let mut file = LockFile { file, path, image: Vec::new(), counters: Counters::default() };
    let Ok(mut latch) = file.latch() else { return Ok(()) };
    let name = latch.read_any(folder.boot)?;
    let slots = latch.0.counters.slots as usize;
    let idle = (0..slots).all(|index| !wire::in_use(&latch.0.image, index));
    if idle && latch.0.is_linked() && folder.lock_path(&name) == latch.0.path {
        folder.raise_floor(latch.0.counters.intent)?;
        fs::remove_file(&latch.0.path).map_err(|e| error::at(&latch.0.path, "remove", e))?;
    }
    Ok(())
}

/// Makes a lock's file: whole before it has its name, so that no half-made one is ever seen.
fn make(folder: &Folder, name: &LockName, path: &PathBuf) -> Result<()> {
    let draft = folder.locks().join(format!(".new-{:032x}", crate::random::bits()));
    let page = wire::first_page(name, folder.floor()?);
    let write = || -> io::Result<()> {
        let file = folder.open_file(&draft, OpenOptions::new().write(true).create_new(true))?;
        file.write_all_at(&page, 0)?;
        // A name without its content would be a damaged file after a loss of power.
        file.sync_all()?;
        match fs::hard_link(&draft, path) {
            // Somebody else was quicker: theirs it is.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        }
    };
    let made = write().map_err(|e| error::at(path, "make", e));
    // If it was not even made, there is nothing to take away.
    let _ = fs::remove_file(&draft);
    made
}

/// The right to change a lock's file.
pub(super) struct Latch<'a>(pub(super) &'a mut LockFile);

impl Drop for Latch<'_> {
    fn drop(&mut self) {
        // Fails for no descriptor that could be locked.
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

    /// Reads the file of whatever lock it is.
    fn read_any(&mut self, boot: u128) -> Result<LockName> {
        self.load(boot)?;
        let name = wire::name_of(&self.0.image).ok().and_then(|name| LockName::new(name).ok());
        name.ok_or_else(|| error::damaged(&self.0.path, "its name is no lock name"))
    }

    /// Reads the file into `image`. Whatever an earlier boot left is void.
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

    /// Puts further tokens on disk, before any of them is granted.
    pub(super) fn reserve(&mut self, folder: &Folder, beyond: u64) -> Result<()> {
        let file = &mut *self.0;
        let made = file.counters.reserved == 0 || file.counters.last == file.counters.reserved;
        if made {
            // Somebody may have made, used and removed a file of this name since ours was begun.
            let floor = folder.floor()?;
            file.counters.last = file.counters.last.max(floor);
        }
        file.counters.reserved = file.counters.reserved.max(file.counters.last);
        file.counters.intent = beyond.max(file.counters.last) + RESERVE;
        wire::put_counters(&mut file.image, file.counters);
        let sync = || -> io::Result<()> {
            file.file.write_all_at(&file.image[COUNTERS..SLOTS], COUNTERS as u64)?;
            file.file.sync_data()?;
            if made { folder.sync_locks() } else { Ok(()) }
        };
        sync().map_err(|e| error::at(&file.path, "write", e))?;
        // Only now may anybody rely on it; it is written with the step that is under way.
        file.counters.reserved = file.counters.intent;
        Ok(())
    }

    /// What the holder of a slot said to `describe`.
    pub(super) fn text(&self, index: usize) -> String {
        let (at, length) = wire::text_at(&self.0.image, index);
        let mut text = vec![0; length];
        match read_at(&self.0.file, &mut text, at) {
            Ok(read) if read == length => String::from_utf8_lossy(&text).into_owned(),
            // It is only shown to people.
            _ => String::new(),
        }
    }

    /// Writes a table that differs from the file's: with one call where the difference lies in one page; otherwise freed
    /// slots, counters, taken slots, in this order.
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

/// What to write, in which order.
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

    /// One span, if all lies in one page.
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
