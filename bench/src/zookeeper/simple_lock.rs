//! The textbook's simple lock: one ephemeral node is the lock, and all waiters watch it. For
//! comparison only.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use leasehold_zookeeper::{Acls, Client, CreateMode, Error};

use crate::redis::BoxError;

const LOCK_NODE: &str = "/simple";

/// The counts over all clients of the simple lock.
#[derive(Debug, Default)]
pub(crate) struct WaitCounts {
    /// How many clients watch the node.
    pub(crate) watcher_count: AtomicUsize,
    /// How often a waiter was woken.
    pub(crate) wake_ups: AtomicU64,
}

/// A client of the simple lock.
pub(crate) struct SimpleLock {
    client: Client,
    counts: Arc<WaitCounts>,
}

impl SimpleLock {
    pub(crate) fn new(client: Client, counts: &Arc<WaitCounts>) -> Self {
        Self { client, counts: Arc::clone(counts) }
    }

    pub(crate) async fn acquire(&self) -> Result<(), BoxError> {
        let options = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
        loop {
            match self.client.create(LOCK_NODE, b"", &options).await {
                Ok(_) => return Ok(()),
                Err(Error::NodeExists) => {}
                Err(error) => return Err(error.into()),
            }
            // Unlike `exists`, this leaves no watch if the node no longer exists.
            match self.client.get_and_watch_data(LOCK_NODE).await {
                Ok((_, _, watcher)) => {
                    self.counts.watcher_count.fetch_add(1, Ordering::Relaxed);
                    watcher.changed().await;
                    self.counts.watcher_count.fetch_sub(1, Ordering::Relaxed);
                    self.counts.wake_ups.fetch_add(1, Ordering::Relaxed);
                }
                Err(Error::NoNode) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(crate) async fn release(&self) -> Result<(), BoxError> {
        Ok(self.client.delete(LOCK_NODE, None).await?)
    }
}
