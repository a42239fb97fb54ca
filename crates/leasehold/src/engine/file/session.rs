//! A session: this process in one folder, with its handles, its client file, and its open lock
//! files. If the folder is removed or replaced, the session is over, and the next one opens the
//! folder that is at the path then.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::task::JoinHandle;

use super::bells::Bells;
use super::clients::{self, Client};
use super::config::Config;
use super::error;
use super::folder::Folder;
use super::store::{self, Store};
use crate::claim::Holder;
use crate::error::Result;

/// A client of one folder, registered there until the session is dropped.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) folder: Folder,
    pub(super) client: Client,
    pub(super) store: Store,
    /// The highest token granted in an earlier folder that is gone. No token up to it is granted
    /// again.
    pub(super) least: u64,
    /// The highest token seen.
    highest: AtomicU64,
    attendant: OnceLock<JoinHandle<()>>,
}

impl Session {
    /// Opens the folder and registers a client there.
    pub(super) fn open(config: &Config) -> Result<Self> {
        Self::open_above(config, 0)
    }

    fn open_above(config: &Config, least: u64) -> Result<Self> {
        let folder = Folder::open(config)?;
        let client = Client::register(&folder, &Holder::this_process())?;
        let (highest, attendant) = (AtomicU64::new(least), OnceLock::new());
        let session = Self { folder, client, store: Store::default(), least, highest, attendant };
        if let Ok(now) = session.client.touch() {
            store::sweep(&session.folder, now, store::AT_START);
        }
        Ok(session)
    }

    /// Starts to receive notifications from other clients.
    pub(super) fn listen(&self, bells: &Arc<Bells>) -> Result<()> {
        let bell = Bells::open(&self.folder, self.client.id)?;
        self.attendant.get_or_init(|| tokio::spawn(Arc::clone(bells).attend(bell)));
        Ok(())
    }

    /// The next session, after the folder of this one is gone. It does not make the folder itself:
    /// see [`Config::create`].
    pub(super) fn next(&self, config: &Config, bells: &Arc<Bells>) -> Result<Self> {
        let next = Self::open_above(&Config { create: false, ..config.clone() }, self.highest.load(Ordering::SeqCst))?;
        next.listen(bells)?;
        if next.least > 0 {
            next.folder.raise_floor(next.least)?;
        }
        Ok(next)
    }

    pub(super) fn saw(&self, token: u64) {
        self.highest.fetch_max(token, Ordering::SeqCst);
    }

    /// The file system's present time, which no process's wall clock can falsify.
    pub(super) fn file_system_time(&self) -> Result<Duration> {
        self.client.touch().map_err(|e| error::at(self.client.path(), "touch", e))
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
        if let Some(attendant) = self.attendant.get() {
            attendant.abort();
        }
        clients::remove(&self.folder, self.client.id);
    }
}
