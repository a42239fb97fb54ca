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
pub(super) struct Watches {
    inotify: AsyncFd<OwnedFd>,
    by_wd: Mutex<HashMap<i32, Watched>>,
}

#[derive(Debug)]
struct Watched {
    event: Arc<Notify>,
    watchers: usize,
}

impl Watches {
    pub(super) fn new() -> io::Result<Arc<Self>> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        Ok(Arc::new(Self { inotify: readable(inotify)?, by_wd: Mutex::default() }))
    }

    fn by_wd(&self) -> MutexGuard<'_, HashMap<i32, Watched>> {
        self.by_wd.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches for the last close of a client's file: the kernel closes it when the process dies.
    pub(super) fn death(self: &Arc<Self>, path: &Path) -> io::Result<Watch> {
        self.add(path, WatchFlags::CLOSE_WRITE | WatchFlags::DELETE_SELF | WatchFlags::DONT_FOLLOW)
    }

    /// Watches for a write to a lock's file.
    pub(super) fn change(self: &Arc<Self>, path: &Path) -> io::Result<Watch> {
        self.add(path, WatchFlags::MODIFY | WatchFlags::DELETE_SELF | WatchFlags::DONT_FOLLOW)
    }

    fn add(self: &Arc<Self>, path: &Path, what: WatchFlags) -> io::Result<Watch> {
        let mut by_wd = self.by_wd();
        let wd = inotify::add_watch(self.inotify.get_ref(), path, what)?;
        let watched = by_wd.entry(wd).or_insert_with(|| Watched { event: Arc::default(), watchers: 0 });
        watched.watchers += 1;
        let event = Arc::clone(&watched.event);
        Ok(Watch { watches: Arc::clone(self), wd, event })
    }

    /// Forwards the kernel's events until it is dropped.
    pub(super) async fn attend(self: Arc<Self>) {
        loop {
            let Ok(mut ready) = self.inotify.readable().await else { return };
            let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
            let mut reader = inotify::Reader::new(self.inotify.get_ref(), &mut buffer);
            loop {
                match reader.next() {
                    Ok(event) => self.tell(event.wd(), event.events()),
                    Err(rustix::io::Errno::INTR) => {}
                    Err(_) => break,
                }
            }
            ready.clear_ready();
        }
    }

    fn tell(&self, wd: i32, events: ReadFlags) {
        let mut by_wd = self.by_wd();
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
fn readable(inotify: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd is open and the same until it is dropped, and `Watches` only ever lends
    // it.
    unsafe { AsyncFd::register_with_interest(inotify, Interest::READABLE) }.map_err(Into::into)
}

/// A watch on a file, until dropped.
#[derive(Debug)]
pub(super) struct Watch {
    watches: Arc<Watches>,
    wd: i32,
    event: Arc<Notify>,
}

impl Watch {
    /// Listens from the call on, not from the first poll.
    pub(super) fn seen(&self) -> tokio::sync::futures::OwnedNotified {
        Arc::clone(&self.event).notified_owned()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut by_wd = self.watches.by_wd();
        let Some(watched) = by_wd.get_mut(&self.wd).filter(|watched| Arc::ptr_eq(&watched.event, &self.event)) else {
            return;
        };
        watched.watchers -= 1;
        if watched.watchers == 0 {
            by_wd.remove(&self.wd);
            // The file, and its watch, may be gone already.
            let _ = inotify::remove_watch(self.watches.inotify.get_ref(), self.wd);
        }
    }
}
