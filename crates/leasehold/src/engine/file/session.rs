//! A session is the use of one folder by this process: open handles, a client file, and open lock
//! files. If the folder is removed or replaced, the session is over. The next session opens the
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

/// A folder that is open, and this process's client in it. Dropping it removes the client's files.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) folder: Folder,
    pub(super) client: Client,
    pub(super) lock_files: LockFiles,
    /// The highest token that this process saw in an earlier session, whose folder was removed; 0
    /// in the first session. This session grants only higher tokens.
    pub(super) min_token: u64,
    /// The highest token that this process has seen in this session or an earlier one.
    highest_token: AtomicU64,
    /// The task that receives notifications from other clients.
    receive_task: OnceLock<JoinHandle<()>>,
}

impl Session {
    /// Opens the folder, and registers this process as a client there.
    pub(super) fn open(config: &Config) -> Result<Self> {
        Self::open_with_min_token(config, 0)
    }

    /// Opens the folder for a session that grants only tokens above `min_token`, and removes some
    /// unused lock files.
    fn open_with_min_token(config: &Config, min_token: u64) -> Result<Self> {
        let folder = Folder::open(config)?;
        let client = Client::register(&folder, &Holder::this_process())?;
        let (highest_token, receive_task) = (AtomicU64::new(min_token), OnceLock::new());
        let session = Self { folder, client, lock_files: LockFiles::default(), min_token, highest_token, receive_task };
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

    /// Opens the next session, after the folder of this one was removed or replaced. An error if
    /// there is no folder at the path: only the first session creates it.
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

    /// Notes a token that was granted in the folder, so that later sessions grant only higher ones.
    pub(super) fn note_token(&self, token: u64) {
        self.highest_token.fetch_max(token, Ordering::SeqCst);
    }

    /// The kernel's present time as the file system shows it, since 1970. A process whose own clock
    /// is faked does not change it.
    pub(super) fn file_system_time(&self) -> Result<Duration> {
        self.client.touch_and_read_time().map_err(|e| error::io_error_at(self.client.path(), "touch", e))
    }

    /// Whether the process of a client of this folder is alive.
    pub(super) fn is_alive(&self, client: u128) -> bool {
        client == self.client.id || clients::is_alive(&self.folder, client)
    }

    /// The folder's path.
    pub(super) fn root(&self) -> &Path {
        self.folder.root()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(receive_task) = self.receive_task.get() {
            receive_task.abort();
        }
        clients::remove_client_files(&self.folder, self.client.id);
    }
}
