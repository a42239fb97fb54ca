//! What finds two holders at once: a room for tasks, and a folder for processes.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

/// How often the holder of a lock lets others run while it is inside: a lock that does not hold is found out.
const YIELDS: u32 = 3;

/// A room that at most `limit` tasks should be in at the same time.
#[derive(Debug, Default)]
pub struct OverlapProbe {
    current: AtomicU32,
    max_concurrent: AtomicU32,
    visit_count: AtomicU32,
}

impl OverlapProbe {
    /// Is inside for a while, counted as so many.
    pub async fn visit(&self, weight: u32) {
        let now = self.current.fetch_add(weight, Ordering::SeqCst) + weight;
        self.max_concurrent.fetch_max(now, Ordering::SeqCst);
        // Not an atomic addition: two at once lose one.
        let entered = self.visit_count.load(Ordering::SeqCst);
        for _ in 0..YIELDS {
            tokio::task::yield_now().await;
        }
        self.visit_count.store(entered + 1, Ordering::SeqCst);
        self.current.fetch_sub(weight, Ordering::SeqCst);
    }

    /// The most that were inside together.
    pub fn max_concurrent(&self) -> u32 {
        self.max_concurrent.load(Ordering::SeqCst)
    }

    /// How many visits were counted; lower than the truth if two were inside together.
    pub fn visit_count(&self) -> u32 {
        self.visit_count.load(Ordering::SeqCst)
    }
}

/// Is inside a folder for a moment, counting the visit. `true`: somebody else was inside, too.
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

/// How many visits were counted in a folder.
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
