//! Detects overlapping holders: a probe for tasks, and a folder for processes.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

/// How often a holder yields while it is inside, so that a broken lock is detected.
const YIELDS: u32 = 3;

/// Counts the tasks that are inside at the same time.
#[derive(Debug, Default)]
pub struct OverlapProbe {
    current: AtomicU32,
    max_concurrent: AtomicU32,
    visit_count: AtomicU32,
}

impl OverlapProbe {
    /// Stays inside for a while, and counts `weight` (such as the number of permits held)
    /// meanwhile.
    pub async fn visit(&self, weight: u32) {
        let now = self.current.fetch_add(weight, Ordering::SeqCst) + weight;
        self.max_concurrent.fetch_max(now, Ordering::SeqCst);
        // Not an atomic addition, so that concurrent visits lose one.
        let entered = self.visit_count.load(Ordering::SeqCst);
        for _ in 0..YIELDS {
            tokio::task::yield_now().await;
        }
        self.visit_count.store(entered + 1, Ordering::SeqCst);
        self.current.fetch_sub(weight, Ordering::SeqCst);
    }

    /// The highest sum of the weights that were inside at the same time.
    pub fn max_concurrent(&self) -> u32 {
        self.max_concurrent.load(Ordering::SeqCst)
    }

    /// How many visits were counted: fewer than there were if two overlapped.
    pub fn visit_count(&self) -> u32 {
        self.visit_count.load(Ordering::SeqCst)
    }
}

/// Stays inside a folder for a moment and counts the visit. Returns whether another visitor was
/// inside.
///
/// # Errors
/// If the folder cannot be written.
pub async fn visit_folder(folder: &Path) -> io::Result<bool> {
    let marker = folder.join("inside");
    match std::fs::File::create_new(&marker) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(true),
        Err(error) => return Err(error),
    }
    let count = folder_visit_count(folder)?;
    for _ in 0..YIELDS {
        tokio::task::yield_now().await;
    }
    std::fs::write(folder.join("count"), (count + 1).to_string())?;
    std::fs::remove_file(&marker)?;
    Ok(false)
}

/// How many visits of a folder were counted: fewer than there were if two overlapped.
///
/// # Errors
/// If the folder cannot be read.
pub fn folder_visit_count(folder: &Path) -> io::Result<u32> {
    match std::fs::read_to_string(folder.join("count")) {
        Ok(text) => text.parse().map_err(io::Error::other),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    }
}
