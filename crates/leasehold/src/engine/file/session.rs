//! A session: this process in one folder, with its handles, its client file, and its open lock
//! files. If the folder is removed or replaced, the session is over, and the next one opens the
//! folder that is at the path then.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::task::JoinHandle;

use super::clients::{self, Client};
use super::config::Config;
use super::error;
use super::folder::Folder;
use super::lock_files::{self, LockFiles};
use super::wakeups::Wakeups;
use crate::types::{Holder, Result};

/// A client of one folder, registered there until the session is dropped.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) folder: Folder,
    pub(super) client: Client,
    pub(super) store: LockFiles,
    /// The highest token granted in an earlier folder that was removed. No token up to it is
    /// granted again.
    pub(super) min_token: u64,
    /// The highest token seen.
    highest_token: AtomicU64,
    receive_task: OnceLock<JoinHandle<()>>,
}

impl Session {
    /// Opens the folder and registers a client there.
    pub(super) fn open(config: &Config) -> Result<Self> {
        Self::open_with_min_token(config, 0)
    }

    fn open_with_min_token(config: &Config, least: u64) -> Result<Self> {
        let folder = Folder::open(config)?;
        let client = Client::register(&folder, &Holder::this_process())?;
        let (highest, receive_task) = (AtomicU64::new(least), OnceLock::new());
        let session = Self {
            folder,
            client,
            store: LockFiles::default(),
            min_token: least,
            highest_token: highest,
            receive_task,
        };
        if let Ok(now) = session.client.touch_and_read_time() {
            lock_files::sweep(&session.folder, now, lock_files::MAX_REMOVED_AT_START);
        }
        Ok(session)
    }

    /// Starts to receive notifications from other clients.
    pub(super) fn start_receiving(&self, wakeups: &Arc<Wakeups>) -> Result<()> {
        let socket = Wakeups::open_socket(&self.folder, self.client.id)?;
        self.receive_task.get_or_init(|| tokio::spawn(Arc::clone(wakeups).forward_notifications(socket)));
        Ok(())
    }

    /// The next session, after the folder of this one was removed. It does not create the folder
    /// itself: see [`Config::create`].
    pub(super) fn open_next(&self, config: &Config, wakeups: &Arc<Wakeups>) -> Result<Self> {
        let next = Self::open_with_min_token(
            &Config { create: false, ..config.clone() },
            self.highest_token.load(Ordering::SeqCst),
        )?;
        next.start_receiving(wakeups)?;
        if next.min_token > 0 {
            next.folder.raise_token_floor(next.min_token)?;
        }
        Ok(next)
    }

    pub(super) fn note_token(&self, token: u64) {
        self.highest_token.fetch_max(token, Ordering::SeqCst);
    }

    /// The file system's present time, which no process's wall clock can falsify.
    pub(super) fn file_system_time(&self) -> Result<Duration> {
        self.client.touch_and_read_time().map_err(|e| error::io_error_at(self.client.path(), "touch", e))
    }

    pub(super) fn is_alive(&self, client: u128) -> bool {
        client == self.client.id || clients::is_alive(&self.folder, client)
    }

    pub(super) fn root(&self) -> &Path {
        self.folder.root()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(receive_task) = self.receive_task.get() {
            receive_task.abort();
        }
        clients::remove_files(&self.folder, self.client.id);
    }
}
