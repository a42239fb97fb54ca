//! Records: one file each, replaced as a whole.
//!
//! A writer holds `flock` on the folder `records`. It writes the new version beside the old one,
//! syncs it, and renames it over the old one; then it syncs the folder. Readers need no lock: they
//! find one of the two versions.
//!
//! | event | consequence |
//! |---|---|
//! | the writer dies before the rename | the old version stays; the next writer removes the draft |
//! | the writer dies after the rename | the new version stays; whether it survives a loss of power is unknown, as after a lost reply |
//! | two clients write at once | one after the other; the second finds another version |
//! | the writer is stopped inside | others can read, and get an error with that reason when they write |
//! | a record is removed | its version goes into `.floor` first, and is synced: every later record starts above it |
//! | a process's wall clock is wrong | no effect: the time is what the kernel gives a file that was just touched |

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::engine::{self, FileEngine};
use super::folder::Folder;
use super::{error, layout};
use crate::engine::Record;
use crate::logic::record_version::{MAX_RECORD, next_version};
use crate::types::{Error, ErrorKind, FORMAT, LockName, Result};

/// Begins each record; the format number follows.
const MAGIC: &str = "leasehold record ";

/// The name of a new version until it is complete.
const DRAFT_FILE: &str = ".new";
const FLOOR_FILE: &str = ".floor";

/// The maximum size of a record's file: its header, its name and its value.
const MAX_FILE_SIZE: u64 = MAX_RECORD as u64 + 4096;

impl FileEngine {
    pub(super) fn read_record(&self, name: &LockName) -> Result<Record> {
        let session = self.current_session()?;
        let now = session.file_system_time()?;
        let found = read_version_and_value(&session.folder, name)?;
        Ok(found.map_or_else(|| Record::absent(now), |(version, value)| Record { version, value, engine_time: now }))
    }

    /// Writes a record, unless the caller has stopped waiting by the time the write could start.
    pub(super) fn write_record(
        &self,
        name: &LockName,
        expected_version: u64,
        value: String,
        dropped: &AtomicBool,
    ) -> Result<Option<Record>> {
        let session = self.current_session()?;
        let folder = &session.folder;
        let latch = self.lock_records(folder)?;
        if dropped.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Closed, "the caller has stopped waiting"));
        }
        let now = session.file_system_time()?;
        let file = layout::file_name(name);
        let path = folder.records.path(&file);
        let last = read_version_and_value(folder, name)?.map_or(0, |(version, _)| version);
        if last != expected_version {
            return Ok(None);
        }
        match (last, value.is_empty()) {
            (0, true) => Ok(Some(Record::absent(now))),
            (_, true) => {
                raise_version_floor(folder, last)?;
                folder.records.remove(&file).map_err(|e| error::io_error_at(&path, "remove", e))?;
                sync_folder(&latch, &path)?;
                Ok(Some(Record::absent(now)))
            }
            (_, false) => {
                let last = if last == 0 { version_floor(folder)? } else { last };
                let version = next_version(last, now);
                replace_file(folder, &file, encode(name, version, &value).as_bytes())?;
                sync_folder(&latch, &path)?;
                Ok(Some(Record { version, value, engine_time: now }))
            }
        }
    }

    /// Excludes other writers until it is dropped.
    fn lock_records(&self, folder: &Folder) -> Result<File> {
        let latch = folder.records.reopen().map_err(|e| error::io_error_at(folder.records.as_path(), "open", e))?;
        let folder = folder.records.as_path();
        let give_up_at = self.clock.now().saturating_add(engine::BUSY_FILE_TIMEOUT);
        loop {
            match flock(&latch, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(latch),
                Err(Errno::WOULDBLOCK | Errno::INTR) if self.clock.now() < give_up_at => {}
                Err(Errno::WOULDBLOCK | Errno::INTR) => return Err(engine::busy_file_error(folder)),
                Err(other) => return Err(error::io_error_at(folder, "lock", other)),
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The names of all records that start with `prefix`, in order.
pub(super) fn record_names(folder: &Folder, prefix: &str) -> Result<Vec<LockName>> {
    let dir = &folder.records;
    let mut names = Vec::new();
    for file in dir.entry_names(usize::MAX).map_err(|e| error::io_error_at(dir.as_path(), "list", e))? {
        let Some(file) = file.to_str().filter(|file| !file.starts_with('.')) else { continue };
        names.extend(record_name_in(folder, file)?.filter(|name| name.as_str().starts_with(prefix)));
    }
    names.sort();
    Ok(names)
}

/// The name of the record in a file; `None` if it was removed since.
fn record_name_in(folder: &Folder, file: &str) -> Result<Option<LockName>> {
    let Some(text) = read_text(folder, file)? else { return Ok(None) };
    check_format(&text)?;
    let name = text.split('\n').nth(2).and_then(|name| LockName::new(name).ok());
    name.map(Some).ok_or_else(|| damaged_record_error(&folder.records.path(file), "it has no record name"))
}

/// The version and the value; `None` if the record does not exist.
fn read_version_and_value(folder: &Folder, name: &LockName) -> Result<Option<(u64, String)>> {
    let file = layout::file_name(name);
    let Some(text) = read_text(folder, &file)? else { return Ok(None) };
    check_format(&text)?;
    decode(&text, name).map(Some).map_err(|reason| damaged_record_error(&folder.records.path(&file), reason))
}

fn read_text(folder: &Folder, file: &str) -> Result<Option<String>> {
    let path = || folder.records.path(file);
    match folder.records.read(file, MAX_FILE_SIZE) {
        Ok(Some(bytes)) => {
            String::from_utf8(bytes).map(Some).map_err(|_| damaged_record_error(&path(), "it is not UTF-8"))
        }
        Ok(None) => Ok(None),
        Err(long) if long.kind() == io::ErrorKind::InvalidData => Err(damaged_record_error(&path(), &long.to_string())),
        Err(other) => Err(error::io_error_at(&path(), "read", other)),
    }
}

fn encode(name: &LockName, version: u64, value: &str) -> String {
    format!("{MAGIC}{FORMAT}\n{version} {}\n{name}\n{value}", checksum(name, version, value))
}

/// The format number in a record's first line.
fn format_in(line: &str) -> Option<&str> {
    line.strip_prefix(MAGIC).filter(|format| !format.is_empty() && format.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Refuses a record in another format.
fn check_format(text: &str) -> Result<()> {
    match text.lines().next().and_then(format_in).filter(|format| format.parse() != Ok(FORMAT)) {
        Some(format) => Err(Error::unknown_format(format, FORMAT)),
        None => Ok(()),
    }
}

fn decode(text: &str, name: &LockName) -> Result<(u64, String), &'static str> {
    let mut parts = text.splitn(4, '\n');
    let (magic, numbers) = (parts.next(), parts.next().and_then(|line| line.split_once(' ')));
    let (Some(format), Some((version, sum)), Some(found), Some(value)) =
        (magic.and_then(format_in), numbers, parts.next(), parts.next())
    else {
        return Err("it does not begin like a record");
    };
    if format.parse() != Ok(FORMAT) {
        return Err("its format is unknown");
    }
    let version = version.parse().map_err(|_| "its version is not a number")?;
    if found != name.as_str() {
        return Err("it belongs to another record");
    }
    if sum != checksum(name, version, value) {
        return Err("its checksum is wrong");
    }
    Ok((version, value.to_owned()))
}

/// Sixteen hexadecimal digits are enough to detect damage; they are no protection against an
/// attacker.
fn checksum(name: &LockName, version: u64, value: &str) -> String {
    let digest = Sha256::digest(format!("{version}\n{name}\n{value}"));
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Replaces the file of this name, as a whole and durably.
fn replace_file(folder: &Folder, name: &str, content: &[u8]) -> Result<()> {
    let write = || -> io::Result<()> {
        let mut file = folder.records.recreate(DRAFT_FILE)?;
        file.write_all(content)?;
        file.sync_all()?;
        folder.records.rename(DRAFT_FILE, name)
    };
    write().map_err(|e| error::io_error_at(&folder.records.path(name), "write", e))
}

/// Makes a change of the folder durable. The change is done already; if this fails, its durability
/// is unknown.
fn sync_folder(latch: &File, path: &Path) -> Result<()> {
    latch.sync_all().map_err(|e| error::io_error_at(path, "sync", e).effect_unknown())
}

/// The version up to which no new record may start.
fn version_floor(folder: &Folder) -> Result<u64> {
    let path = folder.records.path(FLOOR_FILE);
    let Some(text) = read_text(folder, FLOOR_FILE)? else { return Ok(0) };
    let number = layout::after_format(&text)?.and_then(|number| number.trim().parse().ok());
    number.ok_or_else(|| damaged_record_error(&path, "it is not a number"))
}

fn raise_version_floor(folder: &Folder, version: u64) -> Result<()> {
    if version <= version_floor(folder)? {
        return Ok(());
    }
    replace_file(folder, FLOOR_FILE, format!("{FORMAT} {version}\n").as_bytes())?;
    // Before the record is removed: otherwise a loss of power could leave neither.
    folder.records.sync().map_err(|e| error::io_error_at(&folder.records.path(FLOOR_FILE), "sync", e))
}

fn damaged_record_error(path: &Path, reason: &str) -> Error {
    let message = format!(
        "{} is damaged ({reason}); the file is unchanged. Restore it from a copy, or move it away to start without it",
        path.display()
    );
    Error::new(ErrorKind::Corrupt, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_written_record_is_read_back(name in "[^\\pC]{1,40}", version: u64, value: String) {
            let name = LockName::new(&name).unwrap();
            prop_assert_eq!(decode(&encode(&name, version, &value), &name), Ok((version, value)));
        }

        #[test]
        fn damage_is_noticed(at in 0usize..60, byte in 0u8..128) {
            let name = LockName::new("a").unwrap();
            let contents = encode(&name, 7, "every minute");
            let mut bytes = contents.clone().into_bytes();
            let at = at % bytes.len();
            prop_assume!(bytes[at] != byte);
            bytes[at] = byte;
            prop_assert!(decode(std::str::from_utf8(&bytes).unwrap(), &name).is_err(), "{:?}", bytes);
            prop_assert!(decode(&contents[..at], &name).is_err());
        }
    }
}
