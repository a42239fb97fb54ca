//! The textbook's simple lock: one ephemeral node is the lock, and all waiters watch it. For
//! comparison only.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use leasehold_zookeeper::{Acls, Client, CreateMode, Error};

use crate::redis::Oops;

const NODE: &str = "/simple";

/// The counts over all clients of the simple lock.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// How many clients watch the node.
    pub(crate) watching: AtomicUsize,
    /// How often a waiter was woken.
    pub(crate) woken: AtomicU64,
}

/// A client of the simple lock.
pub(crate) struct Simple {
    client: Client,
    counts: Arc<Counts>,
}

impl Simple {
    pub(crate) fn new(client: Client, counts: &Arc<Counts>) -> Self {
        Self { client, counts: Arc::clone(counts) }
    }

    pub(crate) async fn take(&self) -> Result<(), Oops> {
        let options = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
        loop {
            match self.client.create(NODE, b"", &options).await {
                Ok(_) => return Ok(()),
                Err(Error::NodeExists) => {}
                Err(error) => return Err(error.into()),
            }
            // Unlike `exists`, this leaves no watch behind if the node is gone by now.
            match self.client.get_and_watch_data(NODE).await {
                Ok((_, _, watcher)) => {
                    self.counts.watching.fetch_add(1, Ordering::Relaxed);
                    watcher.changed().await;
                    self.counts.watching.fetch_sub(1, Ordering::Relaxed);
                    self.counts.woken.fetch_add(1, Ordering::Relaxed);
                }
                Err(Error::NoNode) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(crate) async fn give(&self) -> Result<(), Oops> {
        Ok(self.client.delete(NODE, None).await?)
    }
}
