//! Watches files with one inotify instance: a client's file, which is closed when its process dies,
//! and a lock's file, which is written when its holders change.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

/// An inotify instance, and the files that it watches.
#[derive(Debug)]
pub(super) struct FileWatcher {
    inotify: AsyncFd<OwnedFd>,
    /// Keyed by inotify watch descriptor; watches of one file share a descriptor.
    watches_by_descriptor: Mutex<HashMap<i32, WatchEntry>>,
}

/// One watched file.
#[derive(Debug)]
struct WatchEntry {
    /// Notified at every event on the file.
    event: Arc<Notify>,
    /// How many [`FileWatch`]es share the entry.
    watch_count: usize,
}

impl FileWatcher {
    /// # Errors
    /// The system's error if this user has too many inotify instances, for example.
    pub(super) fn new() -> io::Result<Arc<Self>> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        Ok(Arc::new(Self { inotify: async_fd(inotify)?, watches_by_descriptor: Mutex::default() }))
    }

    /// Locks the map of watches.
    fn watches_by_descriptor(&self) -> MutexGuard<'_, HashMap<i32, WatchEntry>> {
        self.watches_by_descriptor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a client's file, which the kernel closes when the client's process dies.
    pub(super) fn watch_close(self: &Arc<Self>, path: &Path) -> io::Result<FileWatch> {
        self.add(path, WatchFlags::CLOSE_WRITE | WatchFlags::DELETE_SELF | WatchFlags::DONT_FOLLOW)
    }

    /// Watches a lock's file for writes.
    pub(super) fn watch_write(self: &Arc<Self>, path: &Path) -> io::Result<FileWatch> {
        self.add(path, WatchFlags::MODIFY | WatchFlags::DELETE_SELF | WatchFlags::DONT_FOLLOW)
    }

    /// Watches a file for these events; shares the watch if there is one on it already.
    fn add(self: &Arc<Self>, path: &Path, flags: WatchFlags) -> io::Result<FileWatch> {
        let mut by_wd = self.watches_by_descriptor();
        let wd = inotify::add_watch(self.inotify.get_ref(), path, flags)?;
        let watched = by_wd.entry(wd).or_insert_with(|| WatchEntry { event: Arc::default(), watch_count: 0 });
        watched.watch_count += 1;
        let event = Arc::clone(&watched.event);
        Ok(FileWatch { watcher: Arc::clone(self), wd, event })
    }

    /// Forwards the kernel's events to the watches. Runs until its task is aborted.
    pub(super) async fn forward_events(self: Arc<Self>) {
        loop {
            let Ok(mut ready) = self.inotify.readable().await else { return };
            let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
            let mut reader = inotify::Reader::new(self.inotify.get_ref(), &mut buffer);
            loop {
                match reader.next() {
                    Ok(event) => self.notify(event.wd(), event.events()),
                    Err(rustix::io::Errno::INTR) => {}
                    Err(_) => break,
                }
            }
            ready.clear_ready();
        }
    }

    /// Notifies the watches of one file; all watches if the kernel has dropped events.
    fn notify(&self, wd: i32, events: ReadFlags) {
        let mut by_wd = self.watches_by_descriptor();
        if events.contains(ReadFlags::QUEUE_OVERFLOW) {
            by_wd.values().for_each(|watched| watched.event.notify_waiters());
        } else if let Some(watched) = by_wd.get(&wd) {
            watched.event.notify_waiters();
            if events.contains(ReadFlags::IGNORED) {
                by_wd.remove(&wd);
            }
        }
    }
}

#[allow(unsafe_code, reason = "tokio has no safe way to wait for a descriptor of another kind than its own")]
fn async_fd(inotify: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd is open and the same until it is dropped, and `FileWatcher` only ever lends
    // it.
    unsafe { AsyncFd::register_with_interest(inotify, Interest::READABLE) }.map_err(Into::into)
}

/// A watch on one file, which ends when it is dropped.
#[derive(Debug)]
pub(super) struct FileWatch {
    watcher: Arc<FileWatcher>,
    /// The kernel's number of the watch.
    wd: i32,
    event: Arc<Notify>,
}

impl FileWatch {
    /// Returns a future that completes at the next event after this call, even if it is polled
    /// later.
    pub(super) fn notified(&self) -> tokio::sync::futures::OwnedNotified {
        Arc::clone(&self.event).notified_owned()
    }
}

impl Drop for FileWatch {
    fn drop(&mut self) {
        let mut by_wd = self.watcher.watches_by_descriptor();
        let Some(watched) = by_wd.get_mut(&self.wd).filter(|watched| Arc::ptr_eq(&watched.event, &self.event)) else {
            return;
        };
        watched.watch_count -= 1;
        if watched.watch_count == 0 {
            by_wd.remove(&self.wd);
            // Fails if the file, and its watch with it, was removed.
            let _ = inotify::remove_watch(self.watcher.inotify.get_ref(), self.wd);
        }
    }
}
