//! Watches files with one inotify instance: a client's file for its death, a lock's file for
//! changes.

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

/// All watched files.
#[derive(Debug)]
pub(super) struct FileWatcher {
    inotify: AsyncFd<OwnedFd>,
    watches_by_descriptor: Mutex<HashMap<i32, WatchEntry>>,
}

#[derive(Debug)]
struct WatchEntry {
    event: Arc<Notify>,
    watchers: usize,
}

impl FileWatcher {
    pub(super) fn new() -> io::Result<Arc<Self>> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        Ok(Arc::new(Self { inotify: async_fd(inotify)?, watches_by_descriptor: Mutex::default() }))
    }

    fn watches_by_descriptor(&self) -> MutexGuard<'_, HashMap<i32, WatchEntry>> {
        self.watches_by_descriptor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches for the last close of a client's file: the kernel closes it when the process dies.
    pub(super) fn watch_close(self: &Arc<Self>, path: &Path) -> io::Result<FileWatch> {
        self.add(path, WatchFlags::CLOSE_WRITE | WatchFlags::DELETE_SELF | WatchFlags::DONT_FOLLOW)
    }

    /// Watches for a write to a lock's file.
    pub(super) fn watch_write(self: &Arc<Self>, path: &Path) -> io::Result<FileWatch> {
        self.add(path, WatchFlags::MODIFY | WatchFlags::DELETE_SELF | WatchFlags::DONT_FOLLOW)
    }

    fn add(self: &Arc<Self>, path: &Path, flags: WatchFlags) -> io::Result<FileWatch> {
        let mut by_wd = self.watches_by_descriptor();
        let wd = inotify::add_watch(self.inotify.get_ref(), path, flags)?;
        let watched = by_wd.entry(wd).or_insert_with(|| WatchEntry { event: Arc::default(), watchers: 0 });
        watched.watchers += 1;
        let event = Arc::clone(&watched.event);
        Ok(FileWatch { watcher: Arc::clone(self), wd, event })
    }

    /// Forwards the kernel's events until it is dropped.
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

#[allow(unsafe_code, reason = "tokio has no safe way to wait for a descriptor of ours")]
fn async_fd(inotify: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd is open and the same until it is dropped, and `FileWatcher` only ever lends
    // it.
    unsafe { AsyncFd::register_with_interest(inotify, Interest::READABLE) }.map_err(Into::into)
}

/// A watch on a file, until dropped.
#[derive(Debug)]
pub(super) struct FileWatch {
    watcher: Arc<FileWatcher>,
    wd: i32,
    event: Arc<Notify>,
}

impl FileWatch {
    /// Listens from the call on, not from the first poll.
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
        watched.watchers -= 1;
        if watched.watchers == 0 {
            by_wd.remove(&self.wd);
            // The file, and its watch, may be gone already.
            let _ = inotify::remove_watch(self.watcher.inotify.get_ref(), self.wd);
        }
    }
}
