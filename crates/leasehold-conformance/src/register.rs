//! A resource that several processes write: a number in a file, with the highest token of a write.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::Path;

use leasehold::Token;
use leasehold_internals::logic::fence::{FenceState, admits};

/// A number in a file. The writer chooses whether tokens are checked, so that a test can show both.
#[derive(Debug)]
pub struct Register {
    file: File,
}

impl Register {
    /// Opens the register; a new one is empty.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        Ok(Self { file })
    }

    /// Writes with a token. Returns `false`, and writes nothing, if a higher token has written
    /// before.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn write_fenced(&mut self, token: Token, value: u64) -> io::Result<bool> {
        self.with_file_lock(|content| {
            let (seen, _) = *content;
            let accepted = admits(FenceState { token: Token(seen), owner: None }, token, None);
            if accepted {
                *content = (token.0, value);
            }
            accepted
        })
    }

    /// Writes without a check, as a resource without fencing does.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn write_unfenced(&mut self, value: u64) -> io::Result<bool> {
        self.with_file_lock(|content| {
            content.1 = value;
            true
        })
    }

    /// The number that the last accepted write has stored.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn value(&mut self) -> io::Result<u64> {
        self.with_file_lock(|content| content.1)
    }

    fn with_file_lock<T>(&mut self, act: impl FnOnce(&mut (u64, u64)) -> T) -> io::Result<T> {
        self.file.lock()?;
        let result = self.read_modify_write(act);
        self.file.unlock()?;
        result
    }

    fn read_modify_write<T>(&mut self, act: impl FnOnce(&mut (u64, u64)) -> T) -> io::Result<T> {
        let mut text = String::new();
        self.file.rewind()?;
        self.file.read_to_string(&mut text)?;
        let mut content = if text.is_empty() { (0, 0) } else { serde_json::from_str(&text)? };
        let result = act(&mut content);
        let text = serde_json::to_vec(&content)?;
        self.file.rewind()?;
        self.file.set_len(0)?;
        self.file.write_all(&text)?;
        Ok(result)
    }
}
